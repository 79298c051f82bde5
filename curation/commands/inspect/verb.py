"""The options of ``curate inspect``, which imports what is heavy when it runs."""

import json
from dataclasses import asdict
from typing import Any

import click

from curation.escaping import echo


@click.command()
@click.argument("table")
@click.argument("stage", required=False)
@click.option("--where", metavar="SQL", help='Only rows that match an SQL expression, e.g. "label IS NULL".')
@click.option("--columns", metavar="A,B", help="Columns of the sample.")
@click.option("--rows", type=click.IntRange(min=0), default=5, show_default=True, help="Rows of the sample.")
@click.option("--version", type=int, help="Version of the table (default: the manifest's, else the newest).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(table: str, stage: str | None, as_json: bool, columns: str | None, **asked: Any) -> None:
    """Show what is in a table. TABLE is a Lance table, or a run directory followed by the name of a STAGE.

    For a run directory alone, list its tables. A filter's output counts as a run directory.
    """
    from curation.commands.inspect.facts import TableQuery, examine
    from curation.commands.inspect.find import find, list_tables, record_of
    from curation.commands.inspect.text import format_facts, format_tables

    if stage is None and (record := record_of(table)) is not None:
        found = list_tables(record)
        echo(json.dumps([asdict(item) for item in found]) if as_json else format_tables(found))
        return
    uri, version = find(table, stage)
    names = None if columns is None else tuple(name.strip() for name in columns.split(","))
    asked["version"] = version if asked["version"] is None else asked["version"]
    facts = examine(uri, TableQuery(columns=names, **asked))
    echo(json.dumps(asdict(facts), indent=1) if as_json else format_facts(facts))
