"""Exports of a run: a student, an arm's rows, and a trust function as a package."""
