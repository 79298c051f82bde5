"""The options of ``curate analyze``. Like ``curation.cli``, it imports what is heavy when it runs."""

import json
import sys
from contextlib import redirect_stdout

import click

from curation.commands.options import ADDRESS, RUN, SET, WAIT, Overrides, at, called, of_run
from curation.commands.tables import analysis_lines
from curation.escaping import echo


@click.command()
@RUN
@SET
@ADDRESS
@WAIT
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON, a generation an item.")
def analyze(config: str, overrides: Overrides, address: str | None, wait: bool, as_json: bool) -> None:
    """Measure why the rows of a finished run teach, and write its report again. CONFIG may also be the run directory.

    A chess engine compares weak with gold moves where they differ, and the base student's gradients show how alike an
    arm's rows are. The section analyze of CONFIG sets both. After a kill, the same command goes on.
    """
    from curation.config.load import load_config
    from curation.pipeline.running import run_analysis

    config, overrides = of_run(config, at(address, overrides))
    settings = load_config(config, overrides)
    with redirect_stdout(sys.stderr):  # where Ray's warnings go, too
        content = run_analysis(settings, config_path=config, command=called("run", config, overrides), wait=wait)
    if as_json:
        echo(json.dumps([generation["analysis"] for generation in content["generations"]], indent=1))
    else:
        for line in analysis_lines(content):
            echo(line)
    echo(f"report: {settings.directory / 'report.html'}", err=as_json)
