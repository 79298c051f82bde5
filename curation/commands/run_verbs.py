"""The commands that work on a run or a filter, from ``curate run`` to ``filter``; heavy modules are imported on use."""

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from curation.commands.options import (
    ADDRESS,
    ALLOW_CODE,
    CONFIG,
    INPUTS,
    RUN,
    SET,
    WAIT,
    Overrides,
    add_address,
    find_run_config,
    format_command,
    with_own_modules,
)
from curation.commands.printing import describe_verdict, format_arms
from curation.errors import ConfigError, ShiftError, UserError
from curation.escaping import echo
from curation.features import list_flags
from curation.heavy import Lazy
from curation.redaction import redact_text
from curation.registry import load_code
from curation.storage.paths import to_place

if TYPE_CHECKING:
    from curation.cluster import capacity
    from curation.commands import filter as filters
    from curation.commands import status as statuses
    from curation.commands import validate as validating
    from curation.config import RunConfig, load
    from curation.config import filter as filter_config
    from curation.filter import opened
    from curation.filter import run as filtering
    from curation.pipeline import running
    from curation.rundir import manifest
else:
    capacity, manifest, running = map(
        Lazy, ("curation.cluster.capacity", "curation.rundir.manifest", "curation.pipeline.running")
    )
    load, filter_config, opened, filtering = map(
        Lazy, ("curation.config.load", "curation.config.filter", "curation.filter.opened", "curation.filter.run")
    )
    filters, statuses, validating = (Lazy(f"curation.commands.{name}") for name in ("filter", "status", "validate"))

COMBINE = "curation.extras.combine.combined:combine"
"""Function of several run directories and a folder for the page; imported when it is called."""
SHOW_PLAN = "curation.extras.plan.verb:show_plan"
"""Function that prints the plan of a run or a filter."""


@click.command()
@RUN
@SET
@ADDRESS
@WAIT
@click.option("--until", metavar="STAGE", help="Run STAGE and only the stages that it needs.")
@click.option("--redo", multiple=True, metavar="STAGE", help="Do STAGE again, and all stages that depend on it.")
def run(
    config: str, overrides: Overrides, address: str | None, wait: bool, until: str | None, redo: tuple[str, ...]
) -> None:
    """Run the stages that are missing; after a kill, the same command resumes the run (without --redo).

    `curate plan` shows the names of stages, e.g. gen-0/select. In a run with one generation, select is enough. CONFIG
    may also be the run directory.
    """
    config, overrides = find_run_config(config, add_address(address, overrides))
    settings = load.load_config(config, overrides)
    if until:
        running.run_part(settings, until, wait=wait, redo=redo)
        return
    content = running.run_chain(
        settings, config_path=config, command=format_command("run", config, overrides), wait=wait, redo=redo
    )
    echo(format_arms(content))
    echo(f"report: {settings.directory / 'report.html'}")
    for line in describe_verdict(content):
        echo(line)


@click.command()
@CONFIG
@SET
@ADDRESS
@WAIT
def tune(config: str, overrides: Overrides, address: str | None, wait: bool) -> None:
    """Search for a better trust function, as the section tune of CONFIG describes.

    Stages that are missing before the search are run first. After a kill, the same command goes on: fits that have
    ended are not repeated. The result is best.yaml, a section `trust` for `curate run`.
    """
    overrides = add_address(address, overrides)
    settings = load.load_config(config, overrides)
    command = format_command("tune", config, overrides)
    content = running.run_search(settings, config_path=config, command=command, wait=wait)
    echo("\n".join(content["lines"]))
    echo(f"best: {content['best_path']}")
    echo(f"report: {settings.directory / 'search.html'}")


@click.command()
@CONFIG
@SET
@click.option("--json", "as_json", is_flag=True, help="Print JSON, also for an error.")
def validate(config: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check the configuration, the input files and the models without running anything.

    Read 1,000 rows of each source to estimate how many rows cannot be used.
    """
    try:
        lines = []
        loaded = load.load_config(config, overrides)
        capacity.check_machine(loaded.ray, capacity.list_needs(loaded))
        for line in validating.check(loaded):
            lines.append(line._asdict())
            if not as_json:
                echo(line.text)
    except UserError as error:
        if as_json:
            echo(json.dumps({"valid": False, "error": redact_text(str(error))}, indent=1))
        raise
    echo(json.dumps({"valid": True, "checked": lines}, indent=1) if as_json else f"{config}: is valid")


@click.command()
@click.argument(
    "configs",
    nargs=-1,
    required=True,
    metavar="CONFIG | --combine DIR DIR...",
    callback=with_own_modules,
)
@SET
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--combine", is_flag=True, help="Average the finished runs in several run directories.")
@click.option("-o", "--output", metavar="DIR", help="Folder of the page (default: combined-report).")
def report(
    configs: tuple[str, ...],
    overrides: Overrides,
    as_json: bool,
    combine: bool,
    output: str | None,
) -> None:
    """Write the report of a finished run again and print its arms. CONFIG may also be the run directory.

    With --combine: write one report of several finished runs that differ in seed, benchmark or teacher. Averages have
    intervals over rows and over runs. The tests compare the arms' students on the test rows of all runs.
    """
    if combine and overrides:
        raise ConfigError("--set: changes a CONFIG, and --combine reads run directories as they are; drop one")
    if not combine and output is not None:
        raise ConfigError("--output: is where --combine writes; a report goes into its run directory")
    if not combine and len(configs) > 1:
        raise ConfigError(f"report: takes one CONFIG, not {len(configs)}; several run directories need --combine")
    if combine:
        content, page, table = load_code(COMBINE)(configs, output)
    else:
        config, overrides = find_run_config(configs[0], overrides)
        settings = load.load_config(config, overrides)
        page = settings.directory / "report.html"
        if manifest.Manifest.load(settings.directory).is_current:  # a run of another format keeps its report
            page = running.rewrite_report(
                settings, config_path=config, command=format_command("run", config, overrides)
            )
        content = json.loads(page.with_name("report.json").read_text())
        table = format_arms(content)
    echo(json.dumps(content, indent=1) if as_json else table)
    echo(f"report: {page}", err=as_json)
    for line in () if combine else describe_verdict(content):
        echo(line, err=as_json)


@click.command()
@RUN
@SET
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(config: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show what a run or a filter has done and is doing. CONFIG may also be the run directory, or a filter's output."""
    settings: RunConfig | filter_config.FilterConfig
    work = to_place(config) / filter_config.WORK
    if manifest.record_in(to_place(config)) == work:
        settings = opened.load_kept_config(to_place(config), overrides)
    elif work.is_dir():
        raise ConfigError(
            f"{config}: no filter has started here yet (no record in {filter_config.WORK}); run `curate filter`"
        )
    else:
        config, overrides = find_run_config(config, overrides)
        settings = (load.load_filter if load.is_filter(config) else load.load_config)(config, overrides)
    shown = filters.look(settings) if isinstance(settings, filter_config.FilterConfig) else statuses.look(settings)
    if as_json:
        echo(json.dumps(statuses.make_status_json(shown), indent=1))
    else:
        echo("\n".join(statuses.describe_status(shown)))


def _add_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options by which features of a filter are turned on."""
    for name, text in reversed(list_flags().items()):
        command = click.option(f"--{name}", name, is_flag=True, help=text)(command)
    return command


@click.command("filter")
@INPUTS
@SET
@click.option("-o", "--output", metavar="OUT", help="Folder or URL to write.")
@click.option("--keep", metavar="SHARE|ROWS", help="Keep this share of the rows (below 1), or this number of rows.")
@click.option("--threshold", type=float, metavar="TRUST", help="Keep rows with at least this trust.")
@click.option(
    "--certified", type=float, metavar="ALPHA", help="Keep the most rows, with at most ALPHA wrong (certified)."
)
@click.option("--format", "form", type=click.Choice(["parquet", "jsonl"]), help="File format.")
@click.option(
    "--on-shift",
    type=click.Choice(["warn", "fail", "ignore"]),
    help="If the pool differs from the package's rows: write and exit with 3 (default), write nothing, or go on.",
)
@_add_flags
@ALLOW_CODE
@click.option("--anyway", is_flag=True, help='Use a package although its run\'s verdict is "do not use".')
@click.option("--recut", is_flag=True, help="Choose the cut again from all labelled rows, and write all files again.")
@ADDRESS
@click.option("--wait", is_flag=True, help="If another filter is writing to OUT, wait until it ends.")
@click.option("--plan", is_flag=True, help="Filter nothing: show the stages and forecast, as `curate plan` does.")
def filter_pool(
    inputs: tuple[str, ...],
    overrides: tuple[str, ...],
    address: str | None,
    plan: bool,
    recut: bool,
    wait: bool,
    **options: Any,
) -> None:
    """Label and score a pool by a trust package, and write the rows that are trusted most.

    POOL is a file, folder or glob, or a URL; CONFIG is a YAML file that names package, pool and output. The same
    command resumes after a kill. Later it labels only files that are new in the pool, and passes them through the same
    cut. OUT/filter.json names the files that were written. The exit code is 3 if the newest rows differ from the
    package's.

    With --plan it labels only a sample; `curate plan CONFIG` has more options.
    """
    config = filters.make_filter_config(inputs, add_address(address, overrides), options)
    if plan:
        load_code(SHOW_PLAN)(config, recut=recut)
        return
    filtered = filtering.run_filter(config, recut=recut, wait=wait)
    for line in filters.describe_filtered(filtered, str(config.output_directory)):
        echo(line)
    if filtered.alarm is not None:
        echo(f"curate: shift: {filtered.alarm}", err=True)
        sys.exit(ShiftError.exit_code)
