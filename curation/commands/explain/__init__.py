"""``curate explain``: what a run knows of one row, and which rows taught a student."""

from curation.commands.explain.facts import explain_row, explain_student
from curation.commands.explain.text import row_lines, student_lines

__all__ = ["explain_row", "explain_student", "row_lines", "student_lines"]
