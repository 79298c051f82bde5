"""The commands ``curate plan`` and ``curate filter``, which share options; heavy modules are imported on use."""

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from curation.commands.options import ADDRESS, ALLOW_CODE, CONFIG, INPUTS, SET, add_address
from curation.commands.tables import format_forecast
from curation.errors import ConfigError, ShiftError
from curation.escaping import echo
from curation.features import list_flags
from curation.heavy import Lazy

if TYPE_CHECKING:
    from curation.commands import filter as filters
    from curation.commands import plan as planning
    from curation.config import RunConfig, load
    from curation.config.filter import FilterConfig
    from curation.filter import run as filtering
    from curation.pipeline import numbers
else:
    filters, planning = Lazy("curation.commands.filter"), Lazy("curation.commands.plan")
    filtering, numbers = Lazy("curation.filter.run"), Lazy("curation.pipeline.numbers")
    load = Lazy("curation.config.load")


@click.command()
@CONFIG
@SET
@click.option("--probe", "num_rows", type=click.IntRange(min=1), metavar="ROWS", help="Number of rows to probe.")
@click.option("--no-probe", is_flag=True, help="Label no rows, and make no forecast.")
@click.option("--save", is_flag=True, help="Keep the forecast, so that the report compares it with what is used.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(config: str, overrides: tuple[str, ...], **how: Any) -> None:
    """Show the stages, their rows and what is already done, and forecast what labelling takes and costs.

    CONFIG is that of a run or of a filter; `curate filter --plan` takes PACKAGE POOL too. The forecast rests on a
    probe: a random sample of the rows is labelled by the actors that the command itself would start.
    """
    show_plan((load.load_filter if load.is_filter(config) else load.load_config)(config, overrides), **how)


def show_plan(
    config: "RunConfig | FilterConfig",
    *,
    num_rows: int | None = None,
    no_probe: bool = False,
    save: bool = False,
    as_json: bool = False,
    recut: bool = False,
) -> None:
    """Print the plan of a run or a filter, by the options of ``curate plan``."""
    if no_probe and (save or num_rows is not None):
        raise ConfigError("--no-probe: makes no forecast; leave out --save and --probe, or --no-probe")
    with redirect_stdout(sys.stderr):  # where Ray's warnings go, too: what this command prints is the plan alone
        planned = planning.make_plan(config, probe=not no_probe, num_rows=num_rows, recut=recut)
    made, path = planned.forecast, None
    if save and made is not None:
        path = numbers.save_forecast(made, config)
    if as_json:
        echo(json.dumps(planned.to_json(), indent=1))
        return
    echo(planned.table)
    if made is not None:
        echo(format_forecast(made.to_json()))
    else:
        for stage, why in planned.left_out:
            echo(f"not in a forecast: {stage} ({why})")
    if path is not None:
        echo(f"forecast: {path}")


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
        show_plan(config, recut=recut)
        return
    filtered = filtering.run_filter(config, recut=recut, wait=wait)
    for line in filters.describe_filtered(filtered, str(config.output_directory)):
        echo(line)
    if filtered.alarm is not None:
        echo(f"curate: shift: {filtered.alarm}", err=True)
        sys.exit(ShiftError.exit_code)
