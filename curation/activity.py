"""Names the current work of this process, for the line that a command prints after a long silence."""

from collections.abc import Iterator
from contextlib import contextmanager

_under_way: list[tuple[object, str]] = []
"""A unique mark and the words of each unfinished work. Threads need no lock: each operation below is atomic."""


@contextmanager
def doing(words: str) -> Iterator[None]:
    """Name the work of this process within the context by ``words``, e.g. ``starting Ray``."""
    item = (object(), words)
    _under_way.append(item)
    try:
        yield
    finally:
        _under_way.remove(item)


def get_current_activity() -> str | None:
    """Return the words for the unfinished work that any thread began last, or None."""
    return next((words for _, words in _under_way[-1:]), None)
