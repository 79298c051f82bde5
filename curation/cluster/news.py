"""Keeps what Ray tells the driver of lost nodes, dead processes and full disks off the standard output.

Of a lost node it is its last twenty lines of log, again and again. All goes to the events of the run; the terminal gets
the line that says what happened, once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from curation.telemetry.console import say

MOST, SAME = 200, 60
"""The maximum characters of a line on the terminal, and how many at the beginning of two equal lines must agree."""

_hearers: list[Callable[[str], None]] = []


@contextmanager
def follow(hear: Callable[[str], None]) -> Iterator[None]:
    """Call ``hear`` with all that Ray tells this process, a text each, as long as the context lasts."""
    said: set[str] = set()

    def hear_and_say(text: str) -> None:
        hear(text)
        line = find_main_line(text)
        if line[:SAME] not in said:
            said.add(line[:SAME])
            say(f"Ray: {line} (whole, and again: events.jsonl)")

    _hearers.append(hear_and_say)
    try:
        yield
    finally:
        _hearers.remove(hear_and_say)


def tell(text: str) -> None:
    """Hand a text of Ray to those who follow; where nobody does, say its line."""
    if "killed by `ray.kill`" in text:  # the driver itself has ended that actor
        return
    for hear in list(_hearers):
        hear(text)
    if not _hearers:
        say(f"Ray: {find_main_line(text)}")


def find_main_line(text: str) -> str:
    """Return the line that says what happened: of an object that could not be spilled the last one, else the first."""
    lines = [line.strip() for line in text.strip().splitlines()] or [""]
    line = lines[-1 if "spill_objects" in text else 0].partition(" Last 20 lines of the Raylet logs")[0]
    return line if len(line) <= MOST else f"{line[:MOST]} ..."
