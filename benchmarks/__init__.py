"""Benchmarks against a named peer, in alternating pairs; each checks that both sides computed the same thing."""
