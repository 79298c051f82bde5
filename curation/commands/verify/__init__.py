"""``curate verify``: reads all files of a run, a filter or a trust package, and reports which are damaged."""
