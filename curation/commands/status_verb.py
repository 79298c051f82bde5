"""The options of ``curate status``. Like ``curation.cli``, it imports what is heavy when it runs."""

import json
import sys
import time
from typing import Any

import click

from curation.commands.options import RUN, SET, of_run
from curation.errors import ConfigError
from curation.escaping import echo
from curation.storage.lease import holder
from curation.storage.paths import place

BEGIN_SECONDS = 60.0
"""How long ``--watch`` waits for the driver of a run that is not finished."""


@click.command()
@RUN
@SET
@click.option(
    "--watch",
    type=click.FloatRange(min=0.1),
    is_flag=False,
    flag_value=2.0,
    metavar="[SECONDS]",
    help="Refresh every SECONDS seconds (default 2) until the run ends.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(config: str, overrides: tuple[str, ...], watch: float | None, as_json: bool) -> None:
    """Show what a run or a filter has done and is doing. CONFIG may also be the run directory, or a filter's output.

    With --watch, a run that is not finished and has no driver yet is waited for, one minute long.
    """
    from curation.commands import status as run_status
    from curation.config.filter import WORK
    from curation.config.load import is_filter, load_config, load_filter
    from curation.rundir.manifest import record_in

    if as_json and watch is not None:
        raise ConfigError("--json: prints once; leave out --watch")

    shown: Any
    settings: Any
    if record_in(place(config)) == place(config) / WORK:
        from curation.commands.filter import status as shown  # heavier than what a run's status takes
        from curation.pipeline.filter.opening import config_at

        settings = config_at(place(config), overrides)
    else:
        if (place(config) / WORK).is_dir():
            raise ConfigError(f"{config}: no filter has started here yet (no record in {WORK}); `curate filter` does")
        config, overrides = of_run(config, overrides)
        if is_filter(config):
            from curation.commands.filter import status as shown

            settings = load_filter(config, overrides)
        else:
            shown, settings = run_status, load_config(config, overrides)
    if as_json:
        echo(json.dumps(shown.status_json(settings), indent=1))
    elif watch is None:
        echo("\n".join(shown.status_lines(settings)))
    else:
        _watch(shown, settings, watch)


def _watch(shown: Any, settings: Any, seconds: float) -> None:
    """Show the status again and again until its driver, if one comes, has ended."""
    began, has_run = time.monotonic(), False
    try:
        while True:
            runs = holder(settings.directory) is not None
            has_run = has_run or runs
            lines = list(shown.status_lines(settings))
            waits = not has_run and not shown.is_finished(settings) and time.monotonic() - began < BEGIN_SECONDS
            if sys.stdout.isatty():
                click.clear()
            echo("\n".join([f"{time.strftime('%H:%M:%S')} {lines[0]}", *lines[1:], *_waiting(waits)]) + "\n")
            if not (runs or waits):
                return
            time.sleep(seconds)
    except KeyboardInterrupt:
        return


def _waiting(waits: bool) -> list[str]:
    return [f"waiting up to {BEGIN_SECONDS:.0f} s for a driver; Ctrl-C ends"] if waits else []
