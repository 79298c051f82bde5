"""Several finished runs in one page: their averages and pooled tests (``curate report --combine``)."""
