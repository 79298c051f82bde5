"""``curate inspect``: shows what is in a Lance table, and which tables a run has."""

from curation.commands.inspect.facts import Facts, Question, examine
from curation.commands.inspect.find import Found, find, list_tables, record_of
from curation.commands.inspect.text import page, tables_page

__all__ = ["Facts", "Found", "Question", "examine", "find", "list_tables", "page", "record_of", "tables_page"]
