"""Lines and progress bars on the terminal; with several stages at once, each bar has its own line."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from curation.escaping import escaped
from curation.redaction import redacted
from curation.telemetry.standing import Pace, Standing, Update

LINE_SECONDS = 10.0
"""The interval between two lines of a stage, without a terminal."""

_bars: set[int] = set()
"""The lines below the cursor that have a bar."""
_lock = threading.RLock()


def say(text: str) -> None:
    """Print a line with the time, above all bars."""
    line = escaped(f"{time.strftime('%H:%M:%S')} {redacted(text)}", page=True)
    if _bars:
        from tqdm import tqdm

        with _lock:
            tqdm.write(line, file=sys.stderr)
    else:
        print(line, file=sys.stderr, flush=True)


@contextmanager
def progress(name: str) -> Iterator[Update]:
    """Yields a function that receives progress updates and shows them: as a bar, or as lines in a file or pipe."""
    with _bar(name) if sys.stderr.isatty() else _lines(name) as update:
        yield update


@contextmanager
def _lines(name: str) -> Iterator[Update]:
    pace, last = Pace(), time.monotonic()

    def update(standing: Standing) -> None:
        nonlocal last
        now = time.monotonic()
        pace.add(now, standing.rows)
        if now - last < LINE_SECONDS:
            return
        last = now
        work = "" if standing.work is None else f"; {standing.work.words()}"
        say(f"{name}: {standing.words(pace.rows_per_second)}{work}")

    yield update


@contextmanager
def _bar(name: str) -> Iterator[Update]:
    from tqdm import tqdm

    shown: Any = None
    place = -1

    def update(standing: Standing) -> None:
        nonlocal shown, place
        with _lock:
            if shown is None:
                place = next(free for free in range(len(_bars) + 1) if free not in _bars)
                _bars.add(place)
                shown = tqdm(
                    total=standing.total,
                    initial=standing.rows,
                    desc=escaped(name),
                    unit=standing.unit.removesuffix("s"),
                    mininterval=0.2,
                    unit_scale=True,
                    leave=False,
                    position=place,
                )
            if standing.work is not None:
                shown.set_postfix_str(escaped(standing.work.words()), refresh=False)
            shown.update(standing.rows - shown.n)
            shown.refresh()

    try:
        yield update
    finally:
        with _lock:
            if shown is not None:
                shown.close()
                _bars.discard(place)
