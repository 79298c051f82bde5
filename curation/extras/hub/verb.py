"""The commands ``curate export`` and ``export-student``; heavy modules are imported when a command runs."""

from typing import Any

import click

from curation.commands.export_verbs import GENERATION, OUTPUT, RUN_DIR, export_part


@click.command("export")
@RUN_DIR
@click.option("--format", "form", type=click.Choice(["parquet", "jsonl"]), default="parquet", show_default=True)
@click.option("--columns", metavar="A,B", help="Columns of the pool's files to add, such as your ids.")
@click.option("--arm", metavar="ARM", help="The arm that selected the rows (default: trust, or the only one).")
@GENERATION
@OUTPUT
@click.option("--push", metavar="REPO", help="Also upload it to this dataset repository (made private if new).")
@click.option("--force", is_flag=True, help="Replace an earlier export in DIR.")
def export_rows(run_dir: str, output: str, columns: str | None, **asked: Any) -> None:
    """Write the selected rows of the run in RUN_DIR as a data set: a folder that `datasets.load_dataset` reads.

    It holds Parquet or JSONL files, a card (README.md) with the run's numbers, and rows.json.
    """
    from curation.extras.hub.exports import export_rows

    named = {"format": asked["form"], "columns": columns, **{key: asked[key] for key in ("arm", "generation", "push")}}
    names = [] if columns is None else [name.strip() for name in columns.split(",")]
    export_part("export", export_rows, run_dir, output, named, columns=names, **asked)


@click.command("export-student")
@RUN_DIR
@click.option("--arm", metavar="ARM", help="The arm on whose rows it was trained (default: trust, or the only one).")
@GENERATION
@click.option("--student", metavar="NAME", help="Another student of that generation (default: the one that teaches).")
@OUTPUT
@click.option("--force", is_flag=True, help="Replace an earlier export in DIR.")
def export_student(run_dir: str, output: str, **asked: Any) -> None:
    """Write a student of the run in RUN_DIR to a folder: its weights, a model card (README.md) and lineage.json."""
    from curation.extras.hub.exports import export_student

    named = {name: asked[name] for name in ("arm", "generation", "student")}
    export_part("export-student", export_student, run_dir, output, named, **asked)
