"""``curate explain``: what a run knows of one row, and which rows taught a student."""
