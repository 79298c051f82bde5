"""The stages of a filter, one per file, with their work."""
