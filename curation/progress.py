"""Progress of a stage on the terminal: rows done, rows/s, the time left, and what its actors are at.

What works in the driver calls the bar itself; a worker notes its progress in a file, which the driver follows.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tqdm import tqdm

from curation.places import Place, Remote, write_atomically
from curation.standing import Standing, Update
from curation.ticking import every


@contextmanager
def bar(name: str) -> Iterator[Update]:
    """A progress bar; the first call of what it yields sets the start."""
    shown: Any = None

    def update(standing: Standing) -> None:
        nonlocal shown
        if shown is None:
            # A file or a pipe gets a line now and then rather than a line that moves.
            interval = 0.2 if sys.stderr.isatty() else 10.0
            shown = tqdm(
                total=standing.total,
                initial=standing.rows,
                desc=name,
                unit="row",
                mininterval=interval,
                unit_scale=True,
                leave=False,
            )
        if standing.work is not None:
            shown.set_postfix_str(standing.work.words(), refresh=False)
        shown.update(standing.rows - shown.n)
        if sys.stderr.isatty():
            shown.refresh()

    try:
        yield update
    finally:
        if shown is not None:
            shown.close()


def note(path: Place, done: int, total: int) -> None:
    """State in a file how far a worker is."""
    write_atomically(path, json.dumps([done, total]))


@contextmanager
def follow(path: Place, update: Update) -> Iterator[None]:
    """Pass on what is noted in a file, again and again as long as the context lasts."""
    seconds = 5.0 if isinstance(path, Remote) else 0.5

    def look() -> None:
        with suppress(OSError):  # nothing is noted yet, or the store is away
            done, total = json.loads(path.read_text())
            update(Standing(rows=done, total=total))

    with every(seconds, look):
        yield
