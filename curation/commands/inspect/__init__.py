"""``curate inspect``: shows what is in a Lance table, and which tables a run has."""

from curation.commands.inspect.facts import Facts, Question, examine
from curation.commands.inspect.find import Found, find, is_run, list_tables
from curation.commands.inspect.text import page, tables_page

__all__ = ["Facts", "Found", "Question", "examine", "find", "is_run", "list_tables", "page", "tables_page"]
