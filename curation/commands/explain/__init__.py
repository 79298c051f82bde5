"""``curate explain``: what a run knows of one row, and which rows taught a student."""

from curation.commands.explain.facts import explain_row, explain_student
from curation.commands.explain.text import describe_row, describe_student

__all__ = ["describe_row", "describe_student", "explain_row", "explain_student"]
