"""The command ``curate plan`` and its options, which ``curate filter --plan`` shares."""

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from curation.activity import doing
from curation.commands.options import CONFIG, SET
from curation.commands.tables import format_forecast
from curation.errors import ConfigError
from curation.escaping import echo

if TYPE_CHECKING:
    from curation.config import RunConfig
    from curation.config.filter import FilterConfig

_PLAN_OPTIONS = (
    click.option("--probe", "num_rows", type=click.IntRange(min=1), metavar="ROWS", help="Number of rows to probe."),
    click.option("--no-probe", is_flag=True, help="Label no rows, and make no forecast."),
    click.option("--save", is_flag=True, help="Keep the forecast, so that the report compares it with what is used."),
    click.option("--graph", is_flag=True, help="Show which stages each stage waits for."),
    click.option("--gpu", metavar="CARD", help="Compare the memory of a run's processes with this card: L4, H100, ..."),
    click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON."),
)


def add_plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a plan, which are the keyword arguments of :func:`show_plan`, to a command."""
    for option in reversed(_PLAN_OPTIONS):
        command = option(command)
    return command


@click.command()
@CONFIG
@SET
@add_plan_options
def plan(config: str, overrides: tuple[str, ...], **how: Any) -> None:
    """Show the stages, their rows and what is already done, and forecast what labelling takes and costs.

    CONFIG is that of a run or of a filter; `curate filter --plan` takes PACKAGE POOL too. The forecast rests on a
    probe: a random sample of the rows is labelled by the actors that the command itself would start.
    """
    with doing("importing curation.config.load"):
        from curation.config.load import is_filter, load_config, load_filter

    show_plan((load_filter if is_filter(config) else load_config)(config, overrides), **how)


def show_plan(
    config: "RunConfig | FilterConfig",
    *,
    num_rows: int | None,
    no_probe: bool,
    save: bool,
    graph: bool,
    as_json: bool,
    gpu: str | None,
    recut: bool = False,
) -> None:
    """Print the plan of a run or a filter.

    Raises:
        ConfigError: options exclude each other, or a process of a run does not fit on the card.
    """
    with doing("importing curation.commands.plan"):
        from curation.commands.plan import make_plan
        from curation.pipeline import kept_forecast

    if no_probe and (save or num_rows is not None):
        raise ConfigError("--no-probe: makes no forecast; leave out --save and --probe, or --no-probe")
    with redirect_stdout(sys.stderr):  # where Ray's warnings go, too: what this command prints is the plan alone
        planned = make_plan(config, probe=not (no_probe or graph), num_rows=num_rows, recut=recut, gpu=gpu)
    made, path = planned.forecast, None
    if save and made is not None:
        described = planned.to_json()
        path = kept_forecast.save(made, config, {name: described[name] for name in ("total", "stages")})
    if as_json:
        echo(json.dumps(planned.to_json(), indent=1))
        return
    echo(planned.graph if graph else planned.table)
    if made is not None:
        echo(format_forecast(made.to_json()))
    else:
        for stage, why in planned.left_out:
            echo(f"not in a forecast: {stage} ({why})")
    if path is not None:
        echo(f"forecast: {path}")
