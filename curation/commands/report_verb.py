"""The command ``curate report``, for one run or, with ``--combine`` or ``--compare``, for several."""

import json

import click

from curation.activity import doing
from curation.commands.options import SET, Overrides, find_run_config, format_command, with_own_modules
from curation.commands.tables import describe_verdict, format_arms
from curation.errors import ConfigError
from curation.escaping import echo
from curation.registry import load_code

SEVERAL = {"combine": "curation.extras.combine.combined:combine", "compare": "curation.extras.combine.compared:compare"}
"""Functions of several run directories and a folder for the page, by option; imported when they are called."""


@click.command()
@click.argument(
    "configs",
    nargs=-1,
    required=True,
    metavar="CONFIG | --combine DIR DIR... | --compare DIR DIR...",
    callback=with_own_modules,
)
@SET
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--combine", is_flag=True, help="Average the finished runs in several run directories.")
@click.option("--compare", is_flag=True, help="Set the finished runs in several run directories side by side.")
@click.option("-o", "--output", metavar="DIR", help="Folder of the page (default: combined-report, compared-report).")
def report(
    configs: tuple[str, ...],
    overrides: Overrides,
    as_json: bool,
    combine: bool,
    compare: bool,
    output: str | None,
) -> None:
    """Write the report of a finished run again and print its arms. CONFIG may also be the run directory.

    With --combine: write one report of several finished runs that differ in seed, benchmark or teacher. Averages have
    intervals over rows and over runs. The tests compare the arms' students on the test rows of all runs.

    With --compare: say what differs in the configurations of finished runs, and how their results differ from the
    first one's.
    """
    ways = [way for way, is_chosen in (("combine", combine), ("compare", compare)) if is_chosen]
    if len(ways) > 1:
        raise ConfigError("--combine and --compare: give one of them")
    if ways and overrides:
        raise ConfigError(f"--set: changes a CONFIG, and --{ways[0]} reads run directories as they are; drop one")
    if not ways and output is not None:
        raise ConfigError("--output: is where --combine and --compare write; a report goes into its run directory")
    if not ways and len(configs) > 1:
        raise ConfigError(
            f"report: takes one CONFIG, not {len(configs)}; several run directories need --combine or --compare"
        )
    if ways:
        _report_several(ways[0], configs, output, as_json=as_json)
    else:
        _report_one(*find_run_config(configs[0], overrides), as_json=as_json)


def _report_several(way: str, directories: tuple[str, ...], output: str | None, *, as_json: bool) -> None:
    content, page, table = load_code(SEVERAL[way])(directories, output)
    echo(json.dumps(content, indent=1) if as_json else table)
    echo(f"report: {page}", err=as_json)


def _report_one(config: str, overrides: Overrides, *, as_json: bool) -> None:
    with doing("importing curation.pipeline.running"):
        from curation.config.load import load_config
        from curation.pipeline.running import rewrite_report
        from curation.rundir.manifest import Manifest

    settings = load_config(config, overrides)
    if Manifest.load(settings.directory).is_current:
        page = rewrite_report(settings, config_path=config, command=format_command("run", config, overrides))
    else:  # its stages are not known; its report stays as it is
        page = settings.directory / "report.html"
    content = json.loads(page.with_name("report.json").read_text())
    echo(json.dumps(content, indent=1) if as_json else format_arms(content))
    echo(f"report: {page}", err=as_json)
    for line in describe_verdict(content):
        echo(line, err=as_json)
