"""Optional features and commands that the core never imports; each is one folder (``curation.features``)."""
