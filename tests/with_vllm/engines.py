"""The engines of this process share groups of vLLM, which end with the first engine that is closed or forgotten."""

from typing import Any

STARTED: list[Any] = []
"""Teachers with an engine, kept so that none is closed by the garbage collector in the middle of another's work."""


def close_all() -> None:
    """Close all engines of this process: before one that needs other groups, and after each file of tests."""
    while STARTED:
        STARTED.pop().close()
