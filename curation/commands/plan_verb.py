"""The options of ``curate plan``. Like ``curation.cli``, it imports what is heavy when it runs."""

import json
from typing import Any

import click

from curation.commands.filter.verb import rule_options
from curation.commands.options import INPUTS, SET
from curation.commands.tables import forecast_table
from curation.errors import ConfigError
from curation.escaping import echo


@click.command()
@INPUTS
@SET
@click.option("--probe", "num_rows", type=click.IntRange(min=1), metavar="ROWS", help="Rows of the probe.")
@click.option("--no-probe", is_flag=True, help="Label nothing: no forecast.")
@click.option("--save", is_flag=True, help="Keep the forecast beside the run's or filter's record, to be compared.")
@click.option("--graph", is_flag=True, help="Show which stages each stage waits for.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@rule_options
def plan(
    inputs: tuple[str, ...],
    overrides: tuple[str, ...],
    num_rows: int | None,
    no_probe: bool,
    save: bool,
    graph: bool,
    as_json: bool,
    recut: bool,
    **options: Any,
) -> None:
    """Show the stages, their rows and what is already done, and forecast what labelling takes and costs.

    CONFIG is that of a run or of a filter; PACKAGE POOL and the last options are those of `curate filter`. The forecast
    rests on a probe: a random sample of the rows is labelled by the actors that the command itself would start.
    """
    from curation.commands.filter.summary import config_of
    from curation.commands.plan import make_plan, plan_filter
    from curation.config import RunConfig
    from curation.config.filter import FilterConfig
    from curation.config.load import is_filter, load_config
    from curation.pipeline import kept_forecast

    if no_probe and (save or num_rows is not None):
        raise ConfigError("--no-probe: makes no forecast; leave out --save and --probe, or --no-probe")
    probe = not (no_probe or graph)
    settings: RunConfig | FilterConfig
    if len(inputs) > 1 or is_filter(inputs[0]):
        settings = config_of(inputs, overrides, **options)
        planned = plan_filter(settings, recut=recut, probe=probe, num_rows=num_rows)
    else:
        if recut or any(value not in (None, False, ()) for value in options.values()):
            raise ConfigError(f"{inputs[0]}: configures a run; -o, --keep and the options after it are a filter's")
        settings = load_config(inputs[0], overrides)
        planned = make_plan(settings, probe=probe, num_rows=num_rows)
    made = planned.forecast
    path = None
    if save and made is not None:
        forecast = planned.to_json()
        path = kept_forecast.save(made, settings, {name: forecast[name] for name in ("total", "stages")})
    if as_json:
        echo(json.dumps(planned.to_json(), indent=1))
        return
    echo(planned.graph if graph else planned.table)
    if made is not None:
        echo(forecast_table(made.to_json()))
    else:
        for stage, why in planned.left_out:
            echo(f"not in a forecast: {stage} ({why})")
    if path is not None:
        echo(f"forecast: {path}")
