"""Several finished runs in one page: averages (``curate report --combine``) or side by side (``--compare``)."""
