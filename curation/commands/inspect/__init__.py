"""``curate inspect``: shows what is in a Lance table, and which tables a run has."""
