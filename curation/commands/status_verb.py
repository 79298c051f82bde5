"""The command ``curate status``, which imports heavy modules only when it runs."""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from curation.activity import doing
from curation.commands.options import RUN, SET, find_run_config
from curation.errors import ConfigError
from curation.escaping import echo
from curation.storage.lease import find_holder
from curation.storage.paths import to_place

if TYPE_CHECKING:
    from curation.commands.status import Shown
    from curation.config import RunConfig
    from curation.storage.paths import Place

BEGIN_SECONDS = 60.0
"""How long ``--watch`` waits for the driver of an unfinished run to start."""


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

    With --watch, the command waits up to one minute for the driver of an unfinished run to start.
    """
    if as_json and watch is not None:
        raise ConfigError("--json: prints once; leave out --watch")
    with doing("importing curation.commands.status"):
        from curation.commands import status as run_status
        from curation.config.filter import WORK, FilterConfig
        from curation.config.load import is_filter, load_config, load_filter
        from curation.rundir.manifest import record_in

    look_again: Callable[[], Shown]
    settings: RunConfig | FilterConfig
    if record_in(to_place(config)) == to_place(config) / WORK:
        from curation.filter.opened import load_kept_config

        settings = load_kept_config(to_place(config), overrides)
    else:
        if (to_place(config) / WORK).is_dir():
            raise ConfigError(f"{config}: no filter has started here yet (no record in {WORK}); run `curate filter`")
        config, overrides = find_run_config(config, overrides)
        settings = (load_filter if is_filter(config) else load_config)(config, overrides)
    if isinstance(settings, FilterConfig):
        from curation.commands import filter_status  # heavy, and a run needs none of it

        look_again = partial(filter_status.look, settings)
    else:
        look_again = partial(run_status.look, settings)
    if as_json:
        echo(json.dumps(run_status.make_status_json(look_again()), indent=1))
    elif watch is None:
        echo("\n".join(run_status.describe_status(look_again())))
    else:
        _watch(look_again, settings.directory, watch)


def _watch(look: "Callable[[], Shown]", directory: "Place", seconds: float) -> None:
    """Show the status repeatedly until the driver has ended, or no driver starts within :data:`BEGIN_SECONDS`."""
    from curation.commands.status import describe_status

    began, has_run = time.monotonic(), False
    try:
        while True:
            runs = find_holder(directory) is not None  # before the look: what it then shows is the end's
            has_run = has_run or runs
            shown = look()
            lines = list(describe_status(shown))
            waits = not has_run and not shown.is_finished and time.monotonic() - began < BEGIN_SECONDS
            if sys.stdout.isatty():
                click.clear()
            lines[0] = f"{time.strftime('%H:%M:%S')} {lines[0]}"
            if waits:
                lines.append(f"waiting up to {BEGIN_SECONDS:.0f} s for a driver; Ctrl-C stops")
            echo("\n".join(lines) + "\n")
            if not (runs or waits):
                return
            time.sleep(seconds)
    except KeyboardInterrupt:
        return
