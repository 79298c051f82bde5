"""Keeps Ray's messages about lost nodes, dead processes and full disks off the driver's standard output.

For a lost node, Ray repeats the last twenty lines of the node's log. All messages go to the events of the run; the
terminal gets only the line that says what happened, once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from curation.telemetry.console import say

MOST, SAME = 200, 60
"""Maximum length of a line on the terminal, and length of the prefix by which lines count as equal, in characters."""

_hearers: list[Callable[[str], None]] = []


@contextmanager
def follow(hear: Callable[[str], None]) -> Iterator[None]:
    """Call ``hear`` with each message of Ray to this process while the context lasts, and print each main line once."""
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
    """Pass a message of Ray to each ``hear`` of :func:`follow`; if there is none, print its main line."""
    if "killed by `ray.kill`" in text:  # the driver itself has ended that actor
        return
    for hear in list(_hearers):
        hear(text)
    if not _hearers:
        say(f"Ray: {find_main_line(text)}")


def find_main_line(text: str) -> str:
    """Return the line that says what happened: the last one if an object could not be spilled, else the first."""
    lines = [line.strip() for line in text.strip().splitlines()] or [""]
    line = lines[-1 if "spill_objects" in text else 0].partition(" Last 20 lines of the Raylet logs")[0]
    return line if len(line) <= MOST else f"{line[:MOST]} ..."
