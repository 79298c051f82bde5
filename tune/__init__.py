"""The search for a trust function: spaces as data, what a trial is worth, the search and the choice of its winner."""
