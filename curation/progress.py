"""Progress of a stage on the terminal: rows done, rows/s and the time left."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm


@contextmanager
def bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar; what it yields is called with rows done and rows in all, the first call sets the start."""
    shown: tqdm[None] | None = None

    def update(done: int, total: int) -> None:
        nonlocal shown
        if shown is None:
            # A file or a pipe gets a line now and then rather than a line that moves.
            interval = 0.2 if sys.stderr.isatty() else 10.0
            shown = tqdm(
                total=total, initial=done, desc=name, unit="row", mininterval=interval, unit_scale=True, leave=False
            )
        shown.update(done - shown.n)

    try:
        yield update
    finally:
        if shown is not None:
            shown.close()
