"""``curate review``: people judge rows of a selection; their verdicts give its purity and a new certified cut."""
