"""The commands of ``curate review``, which import heavy modules when they run, so that ``--help`` is fast."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from curation.escaping import echo
from curation.heavy import Lazy
from curation.storage.paths import to_place

if TYPE_CHECKING:
    from curation.extras.review import actions, words
    from curation.extras.review.folder import Review
else:
    actions, words = Lazy("curation.extras.review.actions"), Lazy("curation.extras.review.words")

F = Callable[..., Any]

RUN_DIR = click.argument("run_dir")
NAME = click.option(
    "--name", metavar="NAME", help="Name of the review (default: the only one; for a new one, its arm)."
)
FOLDER = click.option("--folder", metavar="DIR", help="Folder of the reviews (default: RUN_DIR/review).")
PERSON = click.option("--person", metavar="NAME", help="The judge, if a file or page names none (default: the user).")
FILE = click.argument("path", metavar="FILE")


class _Steps(click.Group):
    """A group that lists its commands in the order in which a review uses them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of their definition."""
        return list(self.commands)


@click.group(cls=_Steps)
def review() -> None:
    """Let people judge weak labels that a run selected, and say how pure its selection is.

    First draw rows, then take verdicts: from a page (serve), a CSV file, Label Studio or Argilla (export, import). Then
    result gives the purity with its interval, a calibration set, and the certified cut that follows from it.

    RUN_DIR is the directory of a run, or the output of a filter.
    """


def _add_review_options(function: F) -> F:
    """Add the argument and the options that name a review to a command."""
    return RUN_DIR(NAME(FOLDER(function)))


def _open(run_dir: str, folder: str | None, name: str | None) -> "Review":
    from curation.extras.review.folder import open_review

    return open_review(actions.find_review_home(to_place(run_dir), folder), name)


@review.command()
@_add_review_options
@click.option("--arm", metavar="ARM", help="The arm whose selection is reviewed (default: trust, or the only one).")
@click.option("--num", type=int, metavar="ROWS", help="Number of rows to draw (default: 200).")
@click.option("--seed", type=int, metavar="NUMBER", help="Seed of the draw (default: 0).")
def draw(run_dir: str, folder: str | None, name: str | None, **asked: Any) -> None:
    """Draw the rows to judge. If they are drawn already, print the progress of the review."""
    home = actions.find_review_home(to_place(run_dir), folder)
    echo("\n".join(actions.start(to_place(run_dir), home, name=name, **asked)))


@review.command()
@_add_review_options
@PERSON
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the page (default: any free one).")
def serve(run_dir: str, folder: str | None, name: str | None, port: int, person: str | None) -> None:
    """Serve the page on which people judge rows, to this machine only, until Ctrl-C."""
    from curation.extras.review import server

    drawn = _open(run_dir, folder, name)
    server.serve(drawn, port, person or actions.get_user_name(), echo)
    echo(words.describe_standing(drawn)[1])


@review.command("export")
@_add_review_options
@click.argument("program", type=click.Choice(["label-studio", "argilla"]))
@FILE
def export_rows(run_dir: str, folder: str | None, name: str | None, program: str, path: str) -> None:
    """Write the rows without a verdict to FILE, as JSON that the program imports."""
    from curation.extras.review.exchange import export

    echo(export(_open(run_dir, folder, name), program, Path(path)))


@review.command("import")
@_add_review_options
@click.argument("program", type=click.Choice(["csv", "label-studio", "argilla"]))
@FILE
@PERSON
def import_verdicts(
    run_dir: str, folder: str | None, name: str | None, program: str, path: str, person: str | None
) -> None:
    """Import the verdicts in FILE: the export of a program, or CSV with row_id, verdict[, person].

    A verdict is right, wrong or unsure. Importing the same file again changes nothing.
    """
    from curation.extras.review.exchange import EXCHANGES
    from curation.extras.review.intake import read_csv, take

    drawn, read = _open(run_dir, folder, name), read_csv if program == "csv" else EXCHANGES[program].read
    taken = take(drawn, Path(path), read, via=program, person=person or actions.get_user_name())
    known = f", {taken.num_known:,} were known already" if taken.num_known else ""
    echo(f"{path}: {taken.num_new:,} verdicts taken{known}")
    echo(words.describe_standing(drawn)[1])


@review.command()
@_add_review_options
@click.option("--alpha", type=float, help="The highest share of wrong labels (default: the run's, 0.1).")
@click.option("--delta", type=float, help="The highest probability of failure (default: that of --alpha).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def result(
    run_dir: str, folder: str | None, name: str | None, alpha: float | None, delta: float | None, as_json: bool
) -> None:
    """Compute the result of the verdicts, print it and write it to review.json."""
    from curation.extras.review.result import conclude

    drawn = _open(run_dir, folder, name)
    found = conclude(drawn, alpha=alpha, delta=delta)
    echo(json.dumps(found, indent=1) if as_json else "\n".join(words.describe_result(found)))
    echo(f"written: {drawn.folder / 'review.json'}, with judged.parquet and calibration.parquet", err=as_json)
