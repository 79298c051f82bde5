"""The commands ``export-trust``, ``clean``, ``verify``, ``doctor`` and ``inspect``; heavy modules load on use."""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from curation.commands.options import ALLOW_CODE, SET, with_own_modules
from curation.errors import ConfigError
from curation.escaping import echo
from curation.json_types import Json
from curation.storage.paths import to_place
from curation.telemetry.console import tell_progress

RUN_DIR = click.argument("run_dir")
GENERATION = click.option("--generation", type=int, metavar="NUMBER", help="The generation (default: the last).")
OUTPUT = click.option("-o", "--output", required=True, metavar="DIR", help="Folder or URL to write.")


def export_part(
    verb: str, export: Callable[..., list[str]], run_dir: str, output: str, named: Json, **asked: Any
) -> None:
    """Export a part of a run and print what was written; cards and lineage files name the command line."""
    options = [f"--{name} {value}" for name, value in named.items() if value is not None]
    command = " ".join([f"curate {verb} {run_dir}", *options, f"-o {output}"])
    for line in export(to_place(run_dir), to_place(output), command=command, **asked):
        echo(line, err=line.startswith("warning: "))


@click.command("export-trust")
@RUN_DIR
@click.option("--trust", "--arm", metavar="NAME", help="A trust function that the run fitted (default: trust).")
@GENERATION
@OUTPUT
@click.option("--force", is_flag=True, help="Replace an earlier package in DIR.")
def export_trust(run_dir: str, output: str, **asked: Any) -> None:
    """Write a trust function of the run in RUN_DIR as a package for `curate filter`.

    It holds weights, calibration rows, a sample of the teacher's states and what they belong to. The teacher's own
    weights are named, not copied.
    """
    from curation.commands.export.trust import export_trust

    named = {name: asked[name] for name in ("trust", "generation")}
    export_part("export-trust", export_trust, run_dir, output, named, **asked)


@click.command()
@RUN_DIR
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Keep files written in the last HOURS hours.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
def clean(run_dir: str, older_than: float, dry_run: bool) -> None:
    """Remove superseded results of RUN_DIR: of stages that ran again later with other settings.

    RUN_DIR may be a filter's output: only its record is cleaned, since `curate filter` itself removes superseded data.
    """
    from curation.commands.clean import clean
    from curation.commands.printing import format_size

    num_files = num_bytes = 0
    for folder, files in clean(to_place(run_dir), older_than, dry=dry_run):
        size = sum(file.size for file in files)
        echo(f"{folder}: {len(files):,} files, {format_size(size)}")
        num_files, num_bytes = num_files + len(files), num_bytes + size
    echo(f"{'to be removed' if dry_run else 'removed'}: {num_files:,} files, {format_size(num_bytes)}")


@click.command()
@click.argument("target", metavar="RUN_DIR | OUT | PACKAGE")
@ALLOW_CODE
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(target: str, allow_code: tuple[str, ...], as_json: bool) -> None:
    """Read all files of a run, and say which are damaged and how to make them again.

    It compares sizes and digests with those recorded when the files were written. It writes nothing. It also reads the
    output of `curate filter` and trust packages. The exit code is 1 if anything is damaged.
    """
    from curation.commands.printing import show
    from curation.commands.verify import verify

    found = verify(target, tell_progress("verify"), allow_code)
    show(asdict(found), "curation.commands:verify.j2", as_json=as_json)
    sys.exit(1 if found.damage else 0)


@click.command()
@click.argument("config", required=False, callback=with_own_modules)
@SET
@click.option("--address", help="Ray cluster to check, as `--set ray.address=...`.")
def doctor(config: str | None, overrides: tuple[str, ...], address: str | None) -> None:
    """Check machine, storage and Ray, and say how to fix each problem.

    CONFIG names the run directory and the cluster; `curate validate` checks what else it needs. The exit code is 1 if
    any check fails.
    """
    if overrides and config is None:
        raise ConfigError("--set: needs a CONFIG to override")
    from curation.commands.doctor import examine

    states: Counter[str] = Counter()
    for name, found in examine(config, overrides, address=address):
        words = f"{found.finding}; {found.fix}" if found.fix else found.finding
        echo(f"{found.state:<5} {name:<16} {' '.join(words.split())}")
        states[found.state] += 1
    echo(f"{states['ok']} ok, {states['warn']} warn, {states['fail']} fail")
    sys.exit(1 if states["fail"] else 0)


@click.command()
@click.argument("table")
@click.argument("stage", required=False)
@click.option("--where", metavar="SQL", help='Only rows that match an SQL expression, e.g. "label IS NULL".')
@click.option("--columns", metavar="A,B", help="Columns of the sample.")
@click.option("--rows", type=click.IntRange(min=0), default=5, show_default=True, help="Rows of the sample.")
def inspect(table: str, stage: str | None, columns: str | None, **asked: Any) -> None:
    """Show what is in a table. TABLE is a Lance table, or a run directory followed by the name of a STAGE.

    For a run directory alone, list its tables. A filter's output counts as a run directory.
    """
    from curation.commands.inspect import describe_table, find, format_tables, list_tables, record_of

    if stage is None and (record := record_of(table)) is not None:
        lines = format_tables(list_tables(record))
    else:
        names = None if columns is None else [name.strip() for name in columns.split(",")]
        lines = describe_table(*find(table, stage), columns=names, **asked)
    echo("\n".join(lines))
