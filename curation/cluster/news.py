"""Keeps Ray's messages about lost nodes, dead processes and full disks off the driver's standard output.

For a lost node, Ray repeats the last twenty lines of the node's log. All messages go to the events of the run; the
terminal gets only the line that says what happened, once. When Ray's object store is full, so that neither its memory
nor the disk that it spills to has room for an object, the failing stage's message says what to do.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from curation.heavy import ray
from curation.tasks import find_root_error
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


def describe_full_store(error: BaseException | None) -> str | None:
    """Return the advice for an error that a full object store caused; None for any other error.

    Its causes (``raise ... from``) and contexts are searched, too.
    """
    while error is not None and not isinstance(
        find_root_error(error), ray.exceptions.ObjectStoreFullError | ray.exceptions.OutOfDiskError
    ):
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if error is None:
        return None
    return (
        "Ray's object store is full, and so is the disk that it spills to (below /tmp unless RAY_TMPDIR or "
        "RAY_object_spilling_directory, or for a joined Ray an option of ray start, names another folder); free space "
        "there, name a folder on a larger disk, or take less at a time: docs/operations.md, size of a row"
    )


def hide_full_store(record: logging.LogRecord) -> bool:
    """Hide Ray Data's record of a full object store from the terminal, not from its log file; a filter for its logger.

    Ray Data prints the whole stack trace and asks for an issue; the message of the failing stage says what to do.
    """
    if describe_full_store(sys.exc_info()[1]) is not None:
        record.hide = True
    return True
