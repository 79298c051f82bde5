"""Training of students and trust functions: takes references and returns references."""
