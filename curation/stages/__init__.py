"""Stages: references in, references out. What a stage did is in the manifest; it can be cut off and called again."""
