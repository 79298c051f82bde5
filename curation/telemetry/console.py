"""Messages and progress: a line with the time each, on a terminal as in a file.

A running stage writes a line every ten seconds, less often after ten minutes.
"""

import sys
import threading
import time

from curation.escaping import escape_text
from curation.redaction import redact_text
from curation.telemetry.standing import Pace, Standing, Update

LINE_SECONDS = 10.0  # interval between two lines of a stage, in seconds
MAX_LINE_SECONDS = 60.0  # interval between two lines of a stage after an hour, in seconds

_lock = threading.RLock()
_said = time.monotonic()  # time of the last message, in monotonic seconds


def say(text: str) -> None:
    """Print a message with the time."""
    global _said
    line = escape_text(f"{time.strftime('%H:%M:%S')} {redact_text(text)}", page=True)
    with _lock:
        _said = time.monotonic()
        sys.stderr.write(f"{line}\n")  # at once: print writes the end of the line by itself
        sys.stderr.flush()


def is_too_quiet(begun: float, patience: float = 1.2) -> bool:
    """Return whether work that began at ``begun`` (monotonic seconds) has printed nothing for too long.

    ``patience`` is the allowed silence, in intervals between two lines of a stage; above one, progress lines come
    first. It is 0.7 if nothing was printed since the work began, because then no progress line is due.
    """
    now = time.monotonic()
    patience = patience if _said > begun else 0.7
    return now - max(_said, begun) > patience * _compute_interval(now - begun)


def _compute_interval(seconds: float) -> float:
    """Return the interval between two lines of work that has run for ``seconds``."""
    return min(MAX_LINE_SECONDS, max(LINE_SECONDS, seconds / 60))


def tell_progress(name: str) -> Update:
    """Return a function that receives progress updates, and prints some of them as lines."""
    pace = Pace()
    begun = last = time.monotonic()

    def update(standing: Standing) -> None:
        nonlocal last
        now = time.monotonic()
        with _lock:
            pace.add(now, standing.reached)
            if now - last < _compute_interval(now - begun):
                return
            last = now
            work = "" if standing.work is None else f"; {standing.work.brief()}"
            say(f"{name}: {standing.words(pace.rows_per_second, standing.left(pace))}{work}")

    return update
