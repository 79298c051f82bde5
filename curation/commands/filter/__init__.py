"""``curate filter``: a command line or a YAML file in, a summary out."""
