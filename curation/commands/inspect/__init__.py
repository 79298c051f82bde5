"""``curate inspect``: shows what is in a Lance table, and which tables a run has."""

from curation.commands.inspect.facts import Facts, TableQuery, examine
from curation.commands.inspect.find import FoundTable, find, list_tables, record_of
from curation.commands.inspect.text import format_facts, format_tables

__all__ = [
    "Facts",
    "FoundTable",
    "TableQuery",
    "examine",
    "find",
    "format_facts",
    "format_tables",
    "list_tables",
    "record_of",
]
