"""``curate init --data``: a configuration for a user's own files, from what their columns and values look like."""
