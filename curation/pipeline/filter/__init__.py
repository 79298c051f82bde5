"""A filter: its stages, its output, and what it would cost."""
