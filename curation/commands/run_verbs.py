"""The commands ``curate run`` and ``curate tune``, which import heavy modules when they run."""

import sys
from typing import TYPE_CHECKING

import click

from curation.commands.options import (
    ADDRESS,
    CONFIG,
    RUN,
    SET,
    WAIT,
    Overrides,
    add_address,
    find_run_config,
    format_command,
)
from curation.commands.tables import describe_verdict, format_arms
from curation.errors import ConfigError
from curation.escaping import echo
from curation.heavy import Lazy
from curation.json_types import JsonView

if TYPE_CHECKING:
    from curation import report
    from curation.config import load
    from curation.pipeline import running
else:
    report, load, running = Lazy("curation.report"), Lazy("curation.config.load"), Lazy("curation.pipeline.running")

FAILED_VERDICT = 4
"""The exit code of a run whose verdict is at least as grave as ``--fail-on-verdict``."""
GRAVE = {"stop": ("do not use",), "care": ("do not use", "use with care")}
"""Verdict levels for each value of ``--fail-on-verdict``; ``curation.report.rules`` is too heavy to import here."""


@click.command()
@RUN
@SET
@ADDRESS
@WAIT
@click.option("--until", metavar="STAGE", help="Run STAGE and only the stages that it needs.")
@click.option("--only", metavar="STAGE", help="Run STAGE alone; the stages that it needs must be done.")
@click.option("--redo", multiple=True, metavar="STAGE", help="Do STAGE again, and all stages that depend on it.")
@click.option(
    "--fail-on-verdict",
    type=click.Choice([*GRAVE]),
    help='Exit with 4 if the verdict is "do not use" (stop), or that or "use with care" (care).',
)
def run(
    config: str,
    overrides: Overrides,
    address: str | None,
    wait: bool,
    until: str | None,
    only: str | None,
    redo: tuple[str, ...],
    fail_on_verdict: str | None,
) -> None:
    """Run the stages that are missing; after a kill, the same command resumes the run (without --redo).

    `curate plan` shows the names of stages, e.g. gen-0/select. In a run with one generation, select is enough. CONFIG
    may also be the run directory.
    """
    if until is not None and only is not None:
        raise ConfigError("--until and --only: give one of them")
    if fail_on_verdict is not None and (until or only):
        raise ConfigError("--fail-on-verdict: a part of a run has no verdict; leave out --until and --only")
    config, overrides = find_run_config(config, add_address(address, overrides))
    settings = load.load_config(config, overrides)
    if part := until or only:
        running.run_part(settings, part, alone=only is not None, wait=wait, redo=redo)
        return
    content = running.run_chain(
        settings, config_path=config, command=format_command("run", config, overrides), wait=wait, redo=redo
    )
    echo(format_arms(content))
    echo(f"report: {settings.directory / 'report.html'}")
    for line in describe_verdict(content):
        echo(line)
    if fail_on_verdict is not None and is_grave(content, fail_on_verdict):
        sys.exit(FAILED_VERDICT)


def is_grave(content: JsonView, least: str) -> bool:
    """Return whether the verdict is at least as grave as ``least`` (stop or care), or is missing."""
    found = content["verdict"]
    return found is None or found["level"] in GRAVE[least]


@click.command()
@CONFIG
@SET
@ADDRESS
@WAIT
def tune(config: str, overrides: Overrides, address: str | None, wait: bool) -> None:
    """Search for a better trust function, as the section tune of CONFIG describes.

    Stages that are missing before the search are run first. After a kill, the same command goes on: fits that have
    ended are not repeated. The result is best.yaml, a section `trust` for `curate run`.
    """
    overrides = add_address(address, overrides)
    settings = load.load_config(config, overrides)
    command = format_command("tune", config, overrides)
    content = running.run_search(settings, config_path=config, command=command, wait=wait)
    echo("\n".join(content["lines"]))
    echo(f"best: {content['best_path']}")
    echo(f"report: {settings.directory / 'search.html'}")
