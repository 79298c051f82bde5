"""Names the work that this process does, for the line of a command that has said nothing for long."""

from collections.abc import Iterator
from contextlib import contextmanager

_under_way: list[str] = []


@contextmanager
def doing(words: str) -> Iterator[None]:
    """Within the context ``words`` name the work of this process, e.g. ``starting Ray``."""
    _under_way.append(words)
    try:
        yield
    finally:
        _under_way.remove(words)


def get_current_activity() -> str | None:
    """Return what was begun last and goes on, of all threads; None if nothing was named."""
    return next(iter(_under_way[-1:]), None)
