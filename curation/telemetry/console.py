"""Messages and progress: on a terminal, each running stage has its own progress line below all messages.

In a file or a pipe, a stage writes a line every ten seconds, less often after ten minutes, and overwrites nothing.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from curation.escaping import escape_text
from curation.redaction import redact_text
from curation.telemetry.standing import Pace, Standing, Update

LINE_SECONDS = 10.0  # interval between two lines of a stage if the output is not a terminal, in seconds
MAX_LINE_SECONDS = 60.0  # interval between two lines of a stage after an hour, in seconds
BAR_CELLS = 20

_bars: dict[int, str] = {}  # names of the stages that have a progress line, by the position of the line
_lock = threading.RLock()
_said = time.monotonic()  # time of the last message, in monotonic seconds


def say(text: str) -> None:
    """Print a message with the time, above the progress lines of the stages."""
    global _said
    line = escape_text(f"{time.strftime('%H:%M:%S')} {redact_text(text)}", page=True)
    with _lock:
        _said = time.monotonic()
        if _bars:
            from tqdm import tqdm

            tqdm.write(line, file=sys.stderr)
        else:
            sys.stderr.write(f"{line}\n")  # at once: print writes the end of the line by itself
            sys.stderr.flush()


def is_too_quiet(begun: float, patience: float = 1.2) -> bool:
    """Return whether work that began at ``begun`` (monotonic seconds) has printed nothing for too long.

    ``patience`` is the allowed silence, in intervals between two lines of a stage; above one, progress lines come
    first. It is 0.7 if nothing was printed since the work began, because then no progress line is due.
    """
    now = time.monotonic()
    patience = patience if _said > begun else 0.7
    return not _bars and now - max(_said, begun) > patience * _compute_interval(now - begun)


def _compute_interval(seconds: float) -> float:
    """Return the interval between two lines of work that has run for ``seconds``."""
    return min(MAX_LINE_SECONDS, max(LINE_SECONDS, seconds / 60))


@contextmanager
def progress(name: str) -> Iterator[Update]:
    """Yield a function that receives progress updates and shows them: as a bar, or as lines in a file or pipe."""
    is_terminal, pace = sys.stderr.isatty(), Pace()
    begun = last = time.monotonic()
    bar: Any = None
    place = -1  # of the bar

    def update(standing: Standing) -> None:
        nonlocal last, bar, place
        now = time.monotonic()
        with _lock:
            pace.add(now, standing.reached)
            work = "" if standing.work is None else f"; {standing.work.brief()}"
            text = f"{standing.words(pace.rows_per_second, standing.left(pace))}{work}"
            if not is_terminal:
                if now - last >= _compute_interval(now - begun):
                    last = now
                    say(f"{name}: {text}")
                return
            if bar is None:
                from tqdm import tqdm

                place = next(free for free in range(len(_bars) + 1) if free not in _bars)
                _bars[place] = escape_text(name)
                # tqdm places the line and cuts it at the terminal's width; the speed is ours: rows come in bursts
                bar = tqdm(bar_format="{desc}", position=place, leave=False, dynamic_ncols=True, file=sys.stderr)
            full = BAR_CELLS * standing.reached // max(standing.total, 1)
            drawn = "█" * full + "░" * (BAR_CELLS - full)
            width = max(map(len, _bars.values()))
            bar.set_description_str(f"{_bars[place]:<{width}} {drawn} {escape_text(text)}", refresh=True)

    try:
        yield update
    finally:
        with _lock:
            if bar is not None:
                bar.close()
                del _bars[place]
