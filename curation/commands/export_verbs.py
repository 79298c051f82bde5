"""The three export commands. Like ``curation.cli``, they import heavy modules only when they run."""

from collections.abc import Mapping
from typing import Any

import click

from curation.escaping import echo
from curation.storage.paths import to_place


def _format_command(verb: str, run_dir: str, named: Mapping[str, object], output: str) -> str:
    """Return the command line that cards and lineage files name, with the options that are set."""
    options = [f"--{name} {value}" for name, value in named.items() if value is not None]
    return " ".join([f"curate {verb} {run_dir}", *options, f"-o {output}"])


@click.command("export")
@click.argument("run_dir")
@click.option("--format", "form", type=click.Choice(["hf"]), default="hf", show_default=True, help="Hugging Face.")
@click.option("--arm", metavar="ARM", help="The arm that selected the rows (default: trust, or the only one).")
@click.option("--generation", type=int, metavar="NUMBER", help="The generation (default: the last).")
@click.option("-o", "--output", required=True, metavar="DIR", help="Folder or URL to write.")
@click.option("--push", metavar="REPO", help="Also upload it to this dataset repository (made private if new).")
@click.option("--force", is_flag=True, help="Replace an earlier export in DIR.")
def export_rows(run_dir: str, output: str, form: str, **asked: Any) -> None:
    """Write the selected rows of the run in RUN_DIR as a data set: a folder that `datasets.load_dataset` reads.

    It holds Parquet files, a card (README.md) with the run's numbers, and rows.json.
    """
    from curation.commands.export.dataset import export_rows

    named = {"format": form, **{name: asked[name] for name in ("arm", "generation", "push")}}
    command = _format_command("export", run_dir, named, output)
    for line in export_rows(to_place(run_dir), to_place(output), command=command, **asked):
        echo(line, err=line.startswith("warning: "))


@click.command("export-student")
@click.argument("run_dir")
@click.option("--arm", metavar="ARM", help="The arm on whose rows it was trained (default: trust, or the only one).")
@click.option("--generation", type=int, metavar="NUMBER", help="The generation (default: the last).")
@click.option("--student", metavar="NAME", help="Another student of that generation (default: the one that teaches).")
@click.option("-o", "--output", required=True, metavar="DIR", help="Folder or URL to write.")
@click.option("--merged", is_flag=True, help="Merge an adapter into its base: full weights and the tokenizer.")
@click.option("--force", is_flag=True, help="Replace an earlier export in DIR.")
def export_student(run_dir: str, output: str, **asked: Any) -> None:
    """Write a student of the run in RUN_DIR to a folder: its weights, a model card (README.md) and lineage.json."""
    from curation.commands.export import export_student

    named = {name: asked[name] for name in ("arm", "generation", "student")}
    command = _format_command("export-student", run_dir, named, output) + (" --merged" if asked["merged"] else "")
    for line in export_student(to_place(run_dir), to_place(output), command=command, **asked):
        echo(line, err=line.startswith("warning: "))


@click.command("export-trust")
@click.argument("run_dir")
@click.option("--trust", "--arm", metavar="NAME", help="A trust function that the run fitted (default: trust).")
@click.option("--generation", type=int, metavar="NUMBER", help="The generation (default: the last).")
@click.option("-o", "--output", required=True, metavar="DIR", help="Folder or URL to write.")
@click.option("--force", is_flag=True, help="Replace an earlier package in DIR.")
def export_trust(run_dir: str, output: str, **asked: Any) -> None:
    """Write a trust function of the run in RUN_DIR as a package for `curate filter`.

    It holds weights, calibration rows, a sample of the teacher's states and what they belong to. The teacher's own
    weights are named, not copied.
    """
    from curation.commands.export.trust import export_trust

    named = {name: asked[name] for name in ("trust", "generation")}
    command = _format_command("export-trust", run_dir, named, output)
    for line in export_trust(to_place(run_dir), to_place(output), command=command, **asked):
        echo(line, err=line.startswith("warning: "))
