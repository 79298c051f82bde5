"""Names the current work of this process, for the line that a command prints after a long silence."""

from collections.abc import Iterator
from contextlib import contextmanager

_under_way: list[str] = []


@contextmanager
def doing(words: str) -> Iterator[None]:
    """Name the work of this process within the context by ``words``, e.g. ``starting Ray``."""
    _under_way.append(words)
    try:
        yield
    finally:
        _under_way.remove(words)


def get_current_activity() -> str | None:
    """Return the words for the unfinished work that any thread began last, or None."""
    return next(iter(_under_way[-1:]), None)
