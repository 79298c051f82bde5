"""Progress of work in another process: the worker writes its progress to a file, and the driver reads it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from curation.periodic import every
from curation.storage.paths import Place, Remote, write_atomically
from curation.telemetry.standing import Standing, Update


def note(path: Place, done: int, total: int, words: str = "") -> None:
    """Write a worker's progress to a file, with ``words`` on the quality of its work so far."""
    write_atomically(path, json.dumps([done, total, words]))


@contextmanager
def follow(path: Place, update: Update, unit: str = "rows") -> Iterator[None]:
    """Read progress from a file repeatedly and pass it to ``update``, as long as the context lasts.

    A file that an earlier worker left there is removed first.
    """
    with suppress(OSError):
        path.unlink(missing_ok=True)
    seconds = 5.0 if isinstance(path, Remote) else 0.5

    def look() -> None:
        with suppress(OSError):  # no progress yet, or the store is unreachable
            done, total, words = json.loads(path.read_text())
            update(Standing(rows=done, total=total, unit=unit, note=words))

    with every(seconds, look):
        yield
    look()
