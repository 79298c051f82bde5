"""Training: refs in, refs out."""
