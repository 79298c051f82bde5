"""Measurements against a named peer, pairs in turn in one run; each checks that both sides computed the same thing."""
