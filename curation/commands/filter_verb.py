"""The command ``curate filter``. Like ``curation.cli``, it imports heavy modules only when it runs."""

import sys
from collections.abc import Callable
from typing import Any

import click

from curation.activity import doing
from curation.commands.options import ADDRESS, ALLOW_CODE, INPUTS, SET
from curation.commands.plan_verb import add_plan_options, show_plan
from curation.errors import ConfigError, ShiftError
from curation.escaping import echo
from curation.features import list_flags

_RULE_OPTIONS = (
    click.option("-o", "--output", metavar="OUT", help="Folder or URL to write."),
    click.option("--keep", metavar="SHARE|ROWS", help="Keep this share of the rows (below 1), or this number of rows."),
    click.option("--threshold", type=float, metavar="TRUST", help="Keep rows with at least this trust."),
    click.option(
        "--certified", type=float, metavar="ALPHA", help="Keep the most rows, with at most ALPHA wrong (certified)."
    ),
    click.option("--format", "form", type=click.Choice(["parquet", "jsonl", "lance"]), help="File format."),
    click.option(
        "--on-shift",
        type=click.Choice(["warn", "fail", "ignore"]),
        help="If the pool differs from the package's rows: write and exit with 3 (default), write nothing, or go on.",
    ),
    *(click.option(f"--{name}", name, is_flag=True, help=text) for name, text in list_flags().items()),
    ALLOW_CODE,
    click.option("--anyway", is_flag=True, help='Use a package although its run\'s verdict is "do not use".'),
    click.option(
        "--recut", is_flag=True, help="Choose the cut again from all labelled rows, and write all files again."
    ),
)


def add_rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that replace a filter's configuration file, such as output and cut, to a command."""
    for option in reversed(_RULE_OPTIONS):
        command = option(command)
    return command


@click.command("filter")
@INPUTS
@SET
@add_rule_options
@ADDRESS
@click.option("--wait", is_flag=True, help="If another filter is writing to OUT, wait until it ends.")
@click.option("--plan", is_flag=True, help="Filter nothing: show the stages and forecast, as `curate plan` does.")
@add_plan_options
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

    With --plan it labels only a sample; --probe, --no-probe, --save, --graph and --json are those of `curate plan`.
    """
    with doing("importing curation.filter.run"):
        from curation.commands.filter import describe_filtered, make_filter_config
        from curation.filter.run import run_filter

    how = {name: options.pop(name) for name in ("num_rows", "no_probe", "save", "graph", "gpu", "as_json")}
    if not plan and any(how.values()):
        raise ConfigError("--probe, --no-probe, --save, --graph, --gpu and --json: belong to --plan; add it")
    if address is not None:
        overrides = (*overrides, f"ray.address={address}")
    config = make_filter_config(inputs, overrides, options)
    if plan:
        show_plan(config, recut=recut, **how)
        return
    filtered = run_filter(config, recut=recut, wait=wait)
    for line in describe_filtered(filtered, str(config.output_directory)):
        echo(line)
    if filtered.alarm is not None:
        echo(f"curate: shift: {filtered.alarm}", err=True)
        sys.exit(ShiftError.exit_code)
