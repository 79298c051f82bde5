"""Shared parts of the ``curate review`` commands: the folder of reviews, the draw, and the name of the user."""

import getpass
from pathlib import Path

from curation.errors import ReviewError
from curation.extras.review.folder import list_reviews, make_review, open_review
from curation.extras.review.source import find
from curation.extras.review.words import describe_standing
from curation.storage.paths import Place

DEFAULT_NUM = 200


def find_review_home(run: Place, folder: str | None) -> Path:
    """Return the folder of a run's reviews: ``<run>/review`` unless a folder is given.

    Raises:
        ReviewError: no folder is given, and the run does not exist or is in an object store, where lines cannot be
            appended.
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
    """Draw a review unless one of that name (default: the arm) exists, and return its progress in words.

    Raises:
        ReviewError: the review cannot be drawn, or was drawn with other options.
    """
    if name is None and (arm, num, seed) == (None, None, None) and len(list_reviews(home)) == 1:
        return describe_standing(open_review(home, None))
    origin = find(run, arm)
    name = name or origin.arm
    if name not in list_reviews(home):
        return describe_standing(
            make_review(home, name, origin, num=DEFAULT_NUM if num is None else num, seed=seed or 0)
        )
    review = open_review(home, name)
    asked = {"arm": (arm, review.origin.arm), "num": (num, review.drawn["num"]), "seed": (seed, review.drawn["seed"])}
    for key, (wanted, was) in asked.items():
        if wanted is not None and wanted != was:
            raise ReviewError(
                f"{review.folder}: was drawn with --{key} {was}, not {wanted}; leave it out, or draw another review "
                "with --name"
            )
    return describe_standing(review)


def get_user_name() -> str:
    """Return the name of the user of this machine."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "someone"
