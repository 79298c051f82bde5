"""The command ``curate explain``. Like ``curation.cli``, it imports heavy modules only when it runs."""

import json

import click

from curation.errors import ConfigError
from curation.escaping import echo, quote_text
from curation.storage.paths import to_place


@click.command()
@click.argument("run_dir")
@click.argument("row_id", required=False)
@click.option("--split", metavar="NAME", help="The split of the row, if rows of several sources have its id.")
@click.option("--student", metavar="ARM | STAGE", help="Show which rows taught a student, instead of one row.")
@click.option(
    "--generation",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="The generation of the student (default: the last).",
)
@click.option("--rows", type=click.IntRange(min=0), help="Rows of the student to show (default: 5).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(
    run_dir: str,
    row_id: str | None,
    split: str | None,
    student: str | None,
    generation: int | None,
    rows: int | None,
    as_json: bool,
) -> None:
    """Show everything that the run in RUN_DIR knows about the row ROW_ID, or which rows taught a student.

    For a row, it shows the source file, the prompt, each teacher's answer, trust and rank, and what every arm did with
    the row. Row ids are in every table and export of a run.
    """
    from curation.extras.explain.facts import explain_row, explain_student
    from curation.extras.explain.text import describe_row, describe_student

    if (row_id is None) == (student is None):
        raise ConfigError("explain: give a ROW_ID, or --student with an arm or a stage; not both")
    if student is not None:
        if split is not None:
            raise ConfigError("--split: applies to a row; leave it out with --student")
        content = explain_student(to_place(run_dir), student, generation, 5 if rows is None else rows)
        lines = describe_student(content)
    else:
        if generation is not None or rows is not None:
            raise ConfigError("--generation, --rows: apply to --student only; a row is shown with all its generations")
        text = str(row_id)
        if not text.isdecimal() or len(text) > 19 or int(text) >= 2**63:
            raise ConfigError(f"ROW_ID: {quote_text(text)} is not a row id, a whole number from 0 to 2^63 - 1")
        content = explain_row(to_place(run_dir), int(text), split)
        lines = describe_row(content)
    if as_json:
        echo(json.dumps(content, indent=1, default=str))
        return
    for line in lines:
        echo(line)
