"""The commands of ``curate review`` and what they print; heavy modules are imported when a command runs."""

import getpass
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from curation.errors import ReviewError
from curation.escaping import echo
from curation.storage.paths import to_place

if TYPE_CHECKING:
    from curation.extras.review.folder import Review

F = Callable[..., Any]


def _get_user_name() -> str:
    """Return the name of the user of this machine."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "someone"


RUN_DIR = click.argument("run_dir")
NAME = click.option(
    "--name", metavar="NAME", help="Name of the review (default: the only one; for a new one, its arm)."
)
FOLDER = click.option("--folder", metavar="DIR", help="Folder of the reviews (default: RUN_DIR/review).")
PERSON = click.option(
    "--person", metavar="NAME", default=_get_user_name, help="The judge, if a file names none (default: the user)."
)
FILE = click.argument("path", metavar="FILE")


@click.group()
def review() -> None:
    """Let people judge weak labels that a run selected, and say how pure its selection is.

    Draw rows, export them for a spreadsheet or Label Studio, and import the verdicts. Then result gives the purity
    with its interval, and the certified cut that follows from it.

    RUN_DIR is the directory of a run.
    """


def _find_home(run_dir: str, folder: str | None) -> Path:
    """Return the folder of a run's reviews: ``<run>/review`` unless a folder is given."""
    run = to_place(run_dir)
    if folder is not None:
        return Path(folder)
    if not isinstance(run, Path):
        raise ReviewError(f"{run}: a review is kept in a local folder, not in an object store; give --folder DIR")
    if not run.is_dir():
        raise ReviewError(f"{run}: there is no such directory; give the run_dir of a run")
    return run / "review"


def _with_review(function: F) -> F:
    """Add the argument and the options that name a review to a command, which is called with the review."""

    @wraps(function)
    def call(run_dir: str, folder: str | None, name: str | None, **options: Any) -> None:
        from curation.extras.review.folder import open_review

        function(open_review(_find_home(run_dir, folder), name), **options)

    return RUN_DIR(NAME(FOLDER(call)))


@review.command()
@RUN_DIR
@NAME
@FOLDER
@click.option("--arm", metavar="ARM", help="The arm whose selection is reviewed (default: trust, or the only one).")
@click.option("--num", type=int, metavar="ROWS", help="Number of rows to draw (default: 200).")
@click.option("--seed", type=int, metavar="NUMBER", help="Seed of the draw (default: 0).")
def draw(run_dir: str, folder: str | None, **asked: Any) -> None:
    """Draw the rows to judge. If they are drawn already, print the progress of the review."""
    from curation.extras.review.folder import open_or_make_review

    echo("\n".join(describe_progress(open_or_make_review(to_place(run_dir), _find_home(run_dir, folder), **asked))))


@review.command("export")
@_with_review
@click.argument("program", type=click.Choice(["csv", "label-studio"]))
@FILE
def export_rows(drawn: "Review", program: str, path: str) -> None:
    """Write the rows without a verdict to FILE: CSV with a column to fill in, or JSON that Label Studio imports."""
    from curation.extras.review.exchange import export

    echo(export(drawn, program, Path(path)))


@review.command("import")
@_with_review
@click.argument("program", type=click.Choice(["csv", "label-studio"]))
@FILE
@PERSON
def import_verdicts(drawn: "Review", program: str, path: str, person: str) -> None:
    """Import the verdicts in FILE: CSV with row_id, verdict[, person], or the JSON that Label Studio exports.

    A verdict is right, wrong or unsure. Importing the same file again changes nothing.
    """
    from curation.extras.review.exchange import import_file

    num_new, num_known = import_file(drawn, program, Path(path), person)
    known = f", {num_known:,} were known already" if num_known else ""
    echo(f"{path}: {num_new:,} verdicts taken{known}")
    echo(describe_progress(drawn)[1])


@review.command()
@_with_review
@click.option("--alpha", type=float, help="The highest share of wrong labels (default: the run's, 0.1).")
@click.option("--delta", type=float, help="The highest probability of failure (default: that of --alpha).")
def result(drawn: "Review", alpha: float | None, delta: float | None) -> None:
    """Compute the result of the verdicts, print it and write it to review.json."""
    from curation.commands.printing import show
    from curation.extras.review.result import conclude

    found = conclude(drawn, alpha=alpha, delta=delta)
    show(found, "curation.extras.review:result.j2", as_json=False)
    echo(f"written: {drawn.folder / 'review.json'}")


def describe_progress(review: "Review") -> list[str]:
    """Return lines on the draw and the progress of a review."""
    drawn, origin = review.drawn, review.origin
    strata = f"{len(review.strata)} strata" if len(review.strata) > 1 else "one stratum"
    where = f"{drawn['num_region']:,} rows of {strata}"
    if origin.ranked:
        where += f" that score at least {drawn['floor']:.6g}"
    return [
        f"{review.folder}: {drawn['num_drawn']:,} rows of arm {origin.arm} of {origin.run}, drawn from {where} "
        f"({drawn['num_uniform']:,} of them uniformly), seed {drawn['seed']}",
        f"{len(review.read_verdicts()):,} of {drawn['num_drawn']:,} rows have a verdict",
    ]
