"""The search for a trust function: spaces as data, the objective of trials, the search and the choice of its winner."""
