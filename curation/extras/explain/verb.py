"""The command ``curate explain``; heavy modules are imported when it runs."""

import click

from curation.errors import ConfigError
from curation.escaping import quote_text
from curation.storage.paths import to_place


@click.command()
@click.argument("run_dir")
@click.argument("row_id")
@click.option("--split", metavar="NAME", help="The split of the row, if rows of several sources have its id.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(run_dir: str, row_id: str, split: str | None, as_json: bool) -> None:
    """Show everything that the run in RUN_DIR knows about the row ROW_ID.

    It shows the source file, the prompt, each teacher's answer, trust and rank, and what every arm did with the row.
    Row ids are in every table and export of a run.
    """
    from curation.commands.printing import show
    from curation.extras.explain.facts import explain_row

    if not row_id.isdecimal() or len(row_id) > 19 or int(row_id) >= 2**63:
        raise ConfigError(f"ROW_ID: {quote_text(row_id)} is not a row id, a whole number from 0 to 2^63 - 1")
    facts = explain_row(to_place(run_dir), int(row_id), split)
    show(facts, "curation.extras.explain:row.j2", as_json=as_json)
