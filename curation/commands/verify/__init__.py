"""``curate verify``: reads all that a run, a filter or a trust package left, and says what is damaged."""
