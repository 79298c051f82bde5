"""The command ``curate plan``, which imports heavy modules only when it runs."""

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from curation.commands.options import CONFIG, SET
from curation.commands.printing import render_text, show
from curation.errors import ConfigError
from curation.escaping import echo

if TYPE_CHECKING:
    from curation.config import RunConfig
    from curation.config.filter import FilterConfig


@click.command()
@CONFIG
@SET
@click.option("--probe", "num_rows", type=click.IntRange(min=1), metavar="ROWS", help="Number of rows to probe.")
@click.option("--no-probe", is_flag=True, help="Label no rows, and make no forecast.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(config: str, overrides: tuple[str, ...], **how: Any) -> None:
    """Show the stages, their rows and what is already done, and forecast what labelling takes and costs.

    CONFIG is that of a run or of a filter; `curate filter --plan` takes PACKAGE POOL too. The forecast rests on a
    probe: a random sample of the rows is labelled by one of the actors that the command itself would start.
    """
    from curation.config import load

    show_plan((load.load_filter if load.is_filter(config) else load.load_config)(config, overrides), **how)


def show_plan(
    config: "RunConfig | FilterConfig",
    *,
    num_rows: int | None = None,
    no_probe: bool = False,
    as_json: bool = False,
    recut: bool = False,
) -> None:
    """Print the plan of a run or a filter, by the options of ``curate plan``."""
    if no_probe and num_rows is not None:
        raise ConfigError("--no-probe: makes no forecast; leave out --probe, or --no-probe")
    with redirect_stdout(sys.stderr):  # where Ray's warnings go, too: what this command prints is the plan alone
        from curation.extras.plan.forecasting import UNITS
        from curation.extras.plan.planning import make_plan
        from curation.report.costs import describe_amount

        planned = make_plan(config, probe=not no_probe, num_rows=num_rows, recut=recut)
    facts = planned.to_json()
    show(facts, "curation.extras.plan:plan.j2", as_json=as_json)
    if facts["forecast"] is not None and not as_json:
        echo(render_text("curation.extras.plan:forecast.j2", facts["forecast"], units=UNITS, amount=describe_amount))
