"""Leaves: features that the core never imports. Each is a folder with all that it has (``curation.features``)."""
