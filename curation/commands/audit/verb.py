"""The verb of the command line, whose heavy imports are inside it, so that ``--help`` answers at once."""

import json
from typing import Any

import click

from curation.escaping import echo

PROGRAM = click.Choice(["label-studio", "argilla"])


@click.command()
@click.argument("run_dir")
@click.option("--arm", metavar="ARM", help="The arm whose selection is audited (default: trust, or the only one).")
@click.option("--num", type=int, metavar="ROWS", help="How many rows to draw (default: 200).")
@click.option("--seed", type=int, metavar="NUMBER", help="Of the draw (default: 0).")
@click.option("--name", metavar="NAME", help="The audit (default: the only one, or for a new one its arm).")
@click.option("--folder", metavar="DIR", help="Where the audits are kept (default: RUN_DIR/audit).")
@click.option("--serve", is_flag=True, help="Serve the page on which people judge, on this machine alone.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the page (default: any free one).")
@click.option("--person", metavar="NAME", help="Who judges, where a file or a page does not say (default: the user).")
@click.option("--verdicts", metavar="FILE", help="Take the verdicts of a CSV file: row_id, verdict[, person].")
@click.option("--result", is_flag=True, help="Print what the verdicts give, and write it to audit.json.")
@click.option("--alpha", type=float, help="With --result: the highest share of wrong labels (default: the run's, 0.1).")
@click.option("--delta", type=float, help="With --result: the highest probability of failure (default: as --alpha).")
@click.option("--json", "as_json", is_flag=True, help="With --result: print JSON.")
@click.option("--export", type=(PROGRAM, str), metavar="PROGRAM FILE", help="Write the rows without a verdict as JSON.")
@click.option("--import", "imported", type=(PROGRAM, str), metavar="PROGRAM FILE", help="Take what PROGRAM exported.")
def audit(run_dir: str, arm: str | None, num: int | None, seed: int | None, name: str | None, **asked: Any) -> None:
    """Let people judge weak labels that the run in RUN_DIR selected, and say how pure its selection is.

    RUN_DIR may also be the output of a filter. Without a further option: draw the rows, or say how far the audit is.
    Verdicts come from a page (--serve), a CSV file (--verdicts), or label-studio or argilla (--export, --import).
    --result gives the purity with its interval, a calibration set, and the certified cut that follows from it.
    """
    from curation.commands.audit import actions
    from curation.commands.audit.words import result_lines
    from curation.errors import ConfigError
    from curation.storage.paths import place

    options = {"serve": "--serve", "verdicts": "--verdicts", "result": "--result", "export": "--export"}
    chosen = [option for key, option in {**options, "imported": "--import"}.items() if asked[key]]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)}: give one of them")
    home = actions.home_of(place(run_dir), asked["folder"])
    if not chosen:
        lines = actions.start(place(run_dir), home, name=name, arm=arm, num=num, seed=seed)
        echo("\n".join(lines))
        return
    if (arm, num, seed) != (None, None, None):
        raise ConfigError(f"--arm, --num and --seed: are of the draw; draw first, then give {chosen[0]} with --name")
    person = asked["person"]
    if asked["serve"]:
        actions.serve_page(home, name, port=asked["port"], person=person, say=echo)
    elif asked["export"]:
        echo(actions.export_rows(home, name, *asked["export"]))
    elif asked["result"]:
        drawn, result = actions.conclude(home, name, alpha=asked["alpha"], delta=asked["delta"])
        echo(json.dumps(result, indent=1) if asked["as_json"] else "\n".join(result_lines(result)))
        echo(
            f"written: {drawn.folder / 'audit.json'}, with judged.parquet and calibration.parquet", err=asked["as_json"]
        )
    else:
        program, path = asked["imported"] or (None, asked["verdicts"])
        lines = actions.take_verdicts(home, name, path, program=program, person=person)
        echo("\n".join(lines))
