"""Progress of work in another process: a worker notes in a file how far it is, and the driver follows."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from curation.places import Place, Remote, write_atomically
from curation.standing import Standing, Update
from curation.ticking import every


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
