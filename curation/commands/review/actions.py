"""Actions of ``curate review``: draw, serve, take verdicts, export, conclude; each says in words what was done."""

import getpass
from collections.abc import Callable
from pathlib import Path

from curation.commands.review import result
from curation.commands.review.exchange import EXCHANGES, export
from curation.commands.review.folder import Review, make_review, open_review, reviews_in
from curation.commands.review.intake import Reader, read_csv, take
from curation.commands.review.server import serve
from curation.commands.review.source import find
from curation.commands.review.words import standing_lines
from curation.errors import ReviewError
from curation.json_types import Json
from curation.storage.paths import Place

DEFAULT_NUM = 200


def home_of(run: Place, folder: str | None) -> Path:
    """Where the reviews of a run are kept: ``<run>/review`` unless a folder is given.

    Raises:
        ReviewError: there is no such run, or it is in an object store, where no line can be appended, and no folder is
            given.
    """
    if folder is not None:
        return Path(folder)
    if isinstance(run, Path):
        if not run.is_dir():
            raise ReviewError(f"{run}: there is no such directory; give the run_dir of a run")
        return run / "review"
    raise ReviewError(
        f"{run}: verdicts are appended to a file, which an object store cannot do; give a local --folder DIR"
    )


def start(run: Place, home: Path, *, name: str | None, arm: str | None, num: int | None, seed: int | None) -> list[str]:
    """Draw a review if there is none of that name yet, which is the arm's unless given; in words, how far it is.

    Raises:
        ReviewError: it cannot be drawn, or was drawn otherwise.
    """
    if name is None and (arm, num, seed) == (None, None, None) and len(reviews_in(home)) == 1:
        return standing_lines(open_review(home, None))
    origin = find(run, arm)
    name = name or origin.arm
    if name not in reviews_in(home):
        return standing_lines(make_review(home, name, origin, num=DEFAULT_NUM if num is None else num, seed=seed or 0))
    review = open_review(home, name)
    asked = {"arm": (arm, review.origin.arm), "num": (num, review.drawn["num"]), "seed": (seed, review.drawn["seed"])}
    for key, (wanted, was) in asked.items():
        if wanted is not None and wanted != was:
            raise ReviewError(
                f"{review.folder}: was drawn with --{key} {was}, not {wanted}; leave it out, or draw another review "
                "with --name"
            )
    return standing_lines(review)


def serve_page(home: Path, name: str | None, *, port: int, person: str | None, say: Callable[[str], None]) -> None:
    """Serve the page of a review until the process is interrupted."""
    review = open_review(home, name)
    serve(review, port, person or user(), say)
    say(standing_lines(review)[1])


def take_verdicts(home: Path, name: str | None, path: str, *, program: str | None, person: str | None) -> list[str]:
    """Take the verdicts of a CSV file, or of what a program exported; in words, what was taken and how far it is."""
    review = open_review(home, name)
    read: Reader = read_csv if program is None else EXCHANGES[program].read
    taken = take(review, Path(path), read, via=program or "csv", person=person or user())
    known = f", {taken.num_known:,} were known already" if taken.num_known else ""
    return [f"{path}: {taken.num_new:,} verdicts taken{known}", standing_lines(review)[1]]


def export_rows(home: Path, name: str | None, program: str, path: str) -> str:
    """Write the rows without a verdict in a program's format; what was written, in words."""
    return export(open_review(home, name), program, Path(path))


def conclude(home: Path, name: str | None, *, alpha: float | None, delta: float | None) -> tuple[Review, Json]:
    """The review, and what its verdicts give (``curation.commands.review.result.conclude``)."""
    review = open_review(home, name)
    return review, result.conclude(review, alpha=alpha, delta=delta)


def user() -> str:
    """The name of the user of this machine."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "someone"
