"""The command ``curate analyze``, which imports heavy modules only when it runs."""

import json
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import click

from curation.commands.options import ADDRESS, RUN, SET, WAIT, Overrides, add_address, find_run_config, format_command
from curation.commands.tables import describe_features
from curation.escaping import echo
from curation.heavy import Lazy

if TYPE_CHECKING:
    from curation.config import load
    from curation.pipeline import running
else:
    load, running = Lazy("curation.config.load"), Lazy("curation.pipeline.running")


@click.command()
@RUN
@SET
@ADDRESS
@WAIT
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON, one item per generation.")
def analyze(config: str, overrides: Overrides, address: str | None, wait: bool, as_json: bool) -> None:
    """Measure why the rows of a finished run teach, and write its report again. CONFIG may also be the run directory.

    A chess engine compares weak with gold moves where they differ, and the base student's gradients show how alike an
    arm's rows are. The section analyze of CONFIG configures both. After a kill, the same command resumes.
    """
    config, overrides = find_run_config(config, add_address(address, overrides))
    settings = load.load_config(config, overrides)
    with redirect_stdout(sys.stderr):  # where Ray's warnings go, too
        content = running.run_analysis(
            settings, config_path=config, command=format_command("run", config, overrides), wait=wait
        )
    if as_json:
        echo(json.dumps([generation["features"] for generation in content["generations"]], indent=1))
    else:
        for line in describe_features(content):
            echo(line)
    echo(f"report: {settings.directory / 'report.html'}", err=as_json)
