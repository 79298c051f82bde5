"""The command ``curate analyze``, which imports heavy modules only when it runs."""

import json
import sys
from contextlib import redirect_stdout

import click

from curation.commands.options import ADDRESS, RUN, SET, WAIT, Overrides, add_address, find_run_config, format_command
from curation.commands.printing import describe_features
from curation.escaping import echo


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
    from curation.config import load
    from curation.pipeline import running

    config, overrides = find_run_config(config, add_address(address, overrides))
    settings = load.load_config(config, overrides)
    with redirect_stdout(sys.stderr):  # where Ray's warnings go, too
        command = format_command("run", config, overrides)
        content = running.run_analysis(settings, config_path=config, command=command, wait=wait)
    found = json.dumps([generation["features"] for generation in content["generations"]], indent=1)
    for line in [found] if as_json else describe_features(content):
        echo(line)
    echo(f"report: {settings.directory / 'report.html'}", err=as_json)
