"""Ablations: variants of one run, measured on the same rows (``curate ablate``)."""
