"""Training: takes references and returns references."""
