"""The stages of a filter: a file each, with the work that it does."""
