"""``curate``: the command line. Heavy modules are imported when a command runs, so that ``--help`` answers at once."""

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click

from curation.activity import doing, get_current_activity
from curation.commands.explain_verb import explain
from curation.commands.export_verbs import export_rows, export_student, export_trust
from curation.commands.filter_verb import SHIFTED, filter_pool
from curation.commands.init_verb import init
from curation.commands.options import CONFIG, SET, with_own_modules
from curation.commands.plan_verb import plan
from curation.commands.report_verb import report
from curation.commands.review.verb import review
from curation.commands.run_verbs import ablate, analyze, run, tune
from curation.commands.status_verb import status
from curation.commands.verify.verb import verify
from curation.errors import (
    ConfigError,
    CurationError,
    ShiftError,
    UserError,
    describe_file_error,
    describe_lance_error,
    is_panic,
)
from curation.escaping import echo, get_logger
from curation.namesakes import claim
from curation.periodic import every
from curation.redaction import redact_text
from curation.stopping import Stopped, stopped_by_signals
from curation.storage.paths import to_place
from curation.telemetry.console import is_too_quiet, say

RARE = ("ablate", "analyze", "explain", "verify", "clean", "doctor")
"""Commands that few runs need; ``USUAL`` has the others, in the order in which a user meets them."""
USUAL = (
    "init",
    "validate",
    "plan",
    "run",
    "status",
    "report",
    "inspect",
    "review",
    "tune",
    "export",
    "export-student",
    "export-trust",
    "filter",
)

SPOKEN = {
    "plan": "listing the stages",
    "run": "preparing the run",
    "report": "collecting the report",
    "tune": "preparing the search",
    "ablate": "preparing the variants",
    "analyze": "preparing the analysis",
    "export": "reading the arm's rows",
    "export-student": "copying the student",
    "export-trust": "writing the trust package",
    "filter": "preparing the filter",
}
"""Commands that may work long before they print, with words for their work that are used if no activity is named."""
LATER, LATER_SECONDS = {"validate": "checking the configuration", "status": "reading the record"}, 12.0
"""Such words for commands that usually answer in seconds, and the seconds after which they are printed."""

RESUMABLE = frozenset({"run", "tune", "ablate", "filter", "analyze"})
"""Commands that continue from committed results when they are run again."""


@contextmanager
def _heard(ctx: click.Context) -> Iterator[None]:
    """Within the context, report that a command is at work when it has printed nothing for long."""
    begun = time.monotonic()

    def look() -> None:
        verb = ctx.invoked_subcommand or ""  # known once the command begins
        seconds = time.monotonic() - begun
        is_due = verb in SPOKEN or (verb in LATER and seconds > LATER_SECONDS)
        if is_due and is_too_quiet(begun, patience=1.35):
            words = get_current_activity() or SPOKEN.get(verb) or LATER[verb]
            say(f"curate {verb}: at work for {seconds:.0f} s ({words})")

    with every(0.5, look):
        yield


class _Verbs(click.Group):
    """The group of commands, which prints errors in one line. Exit codes: 2 user error, 1 failed run, 3 shifted pool.

    SIGINT at any time gives 130 and SIGTERM 143, with a line that says what is kept.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of ``--help``."""
        return [*USUAL, *RARE]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their two headings."""
        for heading, names in (("Commands", USUAL), ("What only a few runs need", RARE)):
            room = formatter.width - 6 - max(map(len, names))
            commands = {name: command for name in names if (command := self.get_command(ctx, name)) is not None}
            with formatter.section(heading):
                formatter.write_dl([(name, command.get_short_help_str(room)) for name, command in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        def farewell(number: signal.Signals) -> None:
            kept = "; what is committed stays, the same command goes on" if ctx.invoked_subcommand in RESUMABLE else ""
            echo(f"curate: ended by {number.name} without waiting for what was at work{kept}", err=True)

        with stopped_by_signals(farewell) as signals, _heard(ctx):
            try:
                return self._invoke(ctx)
            except BaseException as stop:  # what the first signal made fail was stopped, too
                if signals.first is None:
                    raise
                words = str(stop) if isinstance(stop, KeyboardInterrupt | Stopped) else ""
                if ctx.invoked_subcommand in RESUMABLE:
                    words = f"{words or 'no stage was at work'}; run the same command to go on"
                echo(f"curate: stopped by {signals.first.name}{': ' if words else ''}{words}", err=True)
                signals.end()

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            claim()
            return super().invoke(ctx)
        except CurationError as error:
            echo(f"curate: {redact_text(' '.join(str(error).split()))}", err=True)
            sys.exit(2 if isinstance(error, UserError) else SHIFTED if isinstance(error, ShiftError) else 1)
        except BaseException as error:  # of a file, or a library that reads tables; any other one is our fault
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            if isinstance(error, OSError) and (words := describe_file_error(error)) is not None:
                echo(f"curate: {redact_text(words)}", err=True)
                sys.exit(1)
            if (words := describe_lance_error(error)) is None:
                raise
            get_logger(__name__).info("a table cannot be read", exc_info=True)
            echo(f"curate: {words}; `curate verify` with its run directory says what is damaged", err=True)
            sys.exit(1)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trust-curation")
def main() -> None:
    """Curate data with a weak teacher and a trust function.

    A weak teacher labels a pool. A trust function says how likely each label is right. Trusted rows train a student.
    """


@main.command()
@CONFIG
@SET
@click.option("--json", "as_json", is_flag=True, help="Print JSON; of a mistake too.")
def validate(config: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check the configuration, the input files and the models without running anything.

    Read 1,000 rows of each source to estimate how many rows cannot be used.
    """
    with doing("importing curation.commands.validate"):
        from curation.cluster.capacity import check_machine, list_needs
        from curation.commands.validate import check
        from curation.config.load import load_config

    try:
        lines = []
        loaded = load_config(config, overrides)
        check_machine(loaded.ray, list_needs(loaded))
        for line in check(loaded):
            lines.append(line._asdict())
            if not as_json:
                echo(line.text)
    except UserError as error:
        if as_json:
            echo(json.dumps({"valid": False, "error": redact_text(str(error))}, indent=1))
        raise
    echo(json.dumps({"valid": True, "checked": lines}, indent=1) if as_json else f"{config}: is valid")


@main.command()
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
    from curation.commands import inspect as tables

    if stage is None and (record := tables.record_of(table)) is not None:
        found = tables.list_tables(record)
        echo(json.dumps([asdict(item) for item in found]) if as_json else tables.format_tables(found))
        return
    uri, version = tables.find(table, stage)
    names = None if columns is None else tuple(name.strip() for name in columns.split(","))
    asked["version"] = version if asked["version"] is None else asked["version"]
    facts = tables.examine(uri, tables.TableQuery(columns=names, **asked))
    echo(json.dumps(asdict(facts), indent=1) if as_json else tables.format_facts(facts))


@main.command("clean")
@click.argument("run_dir")
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Keep files written in the last HOURS hours.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
def clean_run(run_dir: str, older_than: float, dry_run: bool) -> None:
    """Remove old versions, orphaned files and superseded results that the manifest of RUN_DIR does not name.

    RUN_DIR may be a filter's output: only its record is cleaned, since `curate filter` itself removes superseded data.
    """
    from curation.commands.clean import clean
    from curation.commands.inspect.text import format_size

    files = num_bytes = 0
    for item in clean(to_place(run_dir), older_than, dry=dry_run):
        versions = f"{item.versions:,} versions, " if item.versions else ""
        echo(f"{item.path}: {versions}{item.files:,} files, {format_size(item.bytes)}")
        files, num_bytes = files + item.files, num_bytes + item.bytes
    echo(f"{'to be removed' if dry_run else 'removed'}: {files:,} files, {format_size(num_bytes)}")


@main.command()
@click.argument("config", required=False, callback=with_own_modules)
@SET
@click.option("--address", help="Ray cluster to check, as `--set ray.address=...`.")
@click.option("--vllm", is_flag=True, help="Start vLLM even if the configuration does not use it.")
@click.option(
    "--cluster", is_flag=True, help="Let an actor on every node label rows, and write them to the run's store."
)
def doctor(config: str | None, overrides: tuple[str, ...], **asked: Any) -> None:
    """Check machine, packages, storage and Ray, and say how to fix each problem.

    With a CONFIG, also check everything that it needs. The exit code is 1 if any check fails.
    """
    if overrides and config is None:
        raise ConfigError("--set: needs a CONFIG to override")
    from curation.commands.doctor import examine

    states: Counter[str] = Counter()
    for finding in examine(config, overrides, **asked):
        echo(finding.line)
        states[finding.state] += 1
    echo(f"{states['ok']} ok, {states['warn']} warn, {states['fail']} fail")
    sys.exit(1 if states["fail"] else 0)


for verb in (init, run, plan, status, report, analyze, explain, tune, ablate):
    main.add_command(verb)
for verb in (export_rows, export_student, export_trust, filter_pool, review, verify):
    main.add_command(verb)

if __name__ == "__main__":
    main()
