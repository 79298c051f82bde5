"""Finds the columns of preference data: pairs of answers, one of which is better."""

from collections.abc import Sequence

from curation.extras.init.table import TableFiles, is_id

ORDERED, OPEN = ("chosen", "rejected"), ("first", "second")


def has_preferences(table: TableFiles) -> bool:
    """Return whether a file has both columns of preferences: the better answer and the worse one."""
    return {*ORDERED} <= {*table.columns}


def find_pair_columns(tables: Sequence[TableFiles], texts: Sequence[str]) -> dict[str, str]:
    """Return the options with which the domain ``pair`` reads columns of other names than its own, if they are clear.

    ``texts`` are usual names of prompts. In a file that does not say which answer is better, the answers are the only
    two columns that are not in every file.
    """
    if not any(map(has_preferences, tables)):
        return {}
    common = [name for name in tables[0].columns if all(name in table.columns for table in tables)]
    named = [name for name in common if name.casefold() in (*texts, "instruction")]
    options = {"prompt": named[0]} if "prompt" not in common and len(named) == 1 else {}
    for table in tables:
        own = [name for name in table.columns if name not in common and not is_id(name)]
        if not has_preferences(table) and not {*OPEN} <= {*own} and len(own) == 2:
            options |= dict(zip(OPEN, own, strict=True))
    return options
