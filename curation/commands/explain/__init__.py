"""``curate explain``: what a run knows of one row, and which rows taught a student."""

from curation.commands.explain.row import explain_row
from curation.commands.explain.student import explain_student
from curation.commands.explain.text import row_lines, student_lines

__all__ = ["explain_row", "explain_student", "row_lines", "student_lines"]
