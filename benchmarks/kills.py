"""The work that is lost when a driver is killed: ``python -m benchmarks.kills``.

One actor of a scripted teacher that answers 5 rows per second labels a pool with the default chunks and commits. The
driver is killed ten times without warning, each after a random time of labelling, and restarted by the same command.
The teacher logs each row that it is given.

Checked, with exit code 1 on failure: no committed row is labelled again, and a kill repeats less than a minute of the
actor's work.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.sums_run import SumsRun

MOST_SECONDS = 60.0
"""Maximum work that a kill may repeat, in seconds of an actor."""
WORK_SECONDS = (15.0, 90.0)
"""Shortest and longest time of labelling before a kill, in seconds."""
NO_LIMIT = 1_000_000
"""Number of rows per chunk so large that only the seconds limit a chunk."""


def killed(run: SumsRun, seconds: float, rows_per_second: float) -> tuple[set[int], int]:
    """Start the driver and kill it after ``seconds`` of labelling; return the committed ids and the log's length."""
    driver = run.start("--until", "label-pool")
    before = len(run.labelled())
    while driver.poll() is None and len(run.labelled()) < before + seconds * rows_per_second:
        time.sleep(0.1)
    assert driver.poll() is None, f"the run ended before it was killed: {run.errors()}"
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    return set(run.committed()), len(run.labelled())


def measured(directory: Path, num_kills: int, rows_per_second: float, seed: int) -> bool:
    """Return whether both checks hold; print a line per kill."""
    chance = random.Random(seed)
    pauses = [chance.uniform(*WORK_SECONDS) for _ in range(num_kills)]
    run = SumsRun(
        directory,
        num_pool=round(2 * sum(pauses) * rows_per_second),
        actors={"min": 1, "max": 1},
        seconds_per_row=1 / rows_per_second,
        chunk_rows=NO_LIMIT,
        commit_seconds=2,
    )
    holds = True
    marks: list[tuple[set[int], int]] = []
    for number, pause in enumerate(pauses, 1):
        marks.append(killed(run, pause, rows_per_second))
        log = run.labelled()
        begun = marks[-2][1] if len(marks) > 1 else 0
        repeated = len(set(log[:begun]).intersection(log[begun:]))
        again = sum(len(committed.intersection(log[length:])) for committed, length in marks)
        seconds = repeated / rows_per_second
        holds = holds and not again and seconds < MOST_SECONDS
        print(
            f"kill {number} after {pause:.0f} s: {len(marks[-1][0]):,} rows committed of {len(set(log)):,} answered; "
            f"the last kill's repeated {repeated} ({seconds:.0f} s), committed rows labelled again: {again}",
            flush=True,
        )
    return holds


def main() -> None:
    """Run and print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rows-per-second", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        holds = measured(Path(directory), options.kills, options.rows_per_second, options.seed)
    print("holds" if holds else "does not hold")
    sys.exit(not holds)


if __name__ == "__main__":
    main()
