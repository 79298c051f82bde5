"""Chunks for models that answer rows concurrently: the engine's utilisation with long answers, by simulation.

    python -m benchmarks.long_answers

An engine of 1,024 slots answers 20,480 rows, which the project's own ``Cutter`` gives it in chunks, through as many
concurrent calls as an actor of vLLM has. The peer gets all rows at once. Time is virtual. Two kinds of engine:

- ``tokens``: a step takes 8 ms, and 32 ms more with all slots full (about an 8B model on an H100, our estimate), and
  gives each running row a token;
- ``seconds``: an answer takes a fixed time, however many rows run concurrently.

"before" is an earlier rule, by which a row costs its chunk's seconds divided by its rows, with two calls. Rates are
relative to all rows at once on the same engine. Lengths vary as the lines say: ``varied`` are lognormal with sigma .7,
one in a hundred is five times the median or longer.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click
import numpy as np

from curation.config import AskConfig
from curation.passes.cutting import Cutter
from curation.registry import BACKENDS

SLOTS = 1_024
ROWS = 20 * SLOTS
TOKENS = (256, 1_000, 2_500)
SECONDS = (5.0, 60.0, 300.0)


class Rule(NamedTuple):
    """A rule by which an engine gets its rows."""

    name: str
    calls: int
    knows_slots: bool


BEFORE = Rule("before", 2, False)
NOW = Rule("now", BACKENDS["vllm"].calls, True)


def step_seconds(num_running: int) -> float:
    """Return the seconds in which each running row gets a token (``tokens``)."""
    return 0.008 + 0.032 * num_running / SLOTS


def one_second(num_running: int) -> float:
    """Return the second in which each running row comes a second nearer to its end (``seconds``)."""
    return 1.0


def all_at_once(lengths: Sequence[float], pace: Callable[[int], float]) -> float:
    """Return the seconds in which an engine answers rows of these lengths that it has from the start."""
    return simulate(lengths, pace, chunks=None)


def simulate(
    lengths: Sequence[float],
    pace: Callable[[int], float],
    chunks: Rule | None,
    *,
    actors: int = 1,
    chunk_seconds: float = 30.0,
) -> float:
    """Return the seconds until the last of an actor's rows ends; ``chunks=None``: it has all of them at once.

    A call begins a chunk when the one before it has ended; rows wait for a slot in the order in which they came.
    """
    cutter = Cutter(AskConfig(backend="scripted", chunk_seconds=chunk_seconds))
    calls = 1 if chunks is None else chunks.calls
    now = work = 0.0  # seconds, and steps that a row has got which runs from the start on
    running: list[tuple[float, int]] = []  # when a row ends, in steps, and its call
    waiting: deque[tuple[float, int]] = deque()
    left, given = len(lengths), iter(lengths)
    size, open_rows, begun = [0] * calls, [0] * calls, [0.0] * calls

    def begin(call: int) -> None:
        nonlocal left
        if chunks is None:
            wanted = left
        else:
            slots = SLOTS if chunks.knows_slots else None
            wanted = min(left, cutter.rows(left * actors, actors=actors, calls=calls, slots=slots))
        size[call] = open_rows[call] = wanted
        begun[call], left = now, left - wanted
        waiting.extend((length, call) for length in itertools.islice(given, wanted))

    for call in range(calls):
        begin(call)
    while running or waiting:
        while waiting and len(running) < SLOTS:
            length, call = waiting.popleft()
            heapq.heappush(running, (work + length, call))
        end, call = heapq.heappop(running)
        now += (end - work) * pace(len(running) + 1)
        work = end
        open_rows[call] -= 1
        if not open_rows[call]:
            cutter.learn(size[call], now - begun[call])
            if left:
                begin(call)
    return now


def lengths_of(mean: float, *, varied: bool, num_rows: int = ROWS, seed: int = 0) -> list[float]:
    """Return the lengths of answers with a median of about ``mean``, all alike or lognormal."""
    if not varied:
        return [mean] * num_rows
    drawn = np.random.default_rng(seed).lognormal(np.log(mean), 0.7, num_rows)
    return np.maximum(1, drawn).tolist()


def ratio(rule: Rule, lengths: Sequence[float], pace: Callable[[int], float], *, actors: int = 1) -> float:
    """Return the rate of a rule as a share of that of all rows at once."""
    return all_at_once(lengths, pace) / simulate(lengths, pace, rule, actors=actors)


@click.command()
def main() -> None:
    """Print the table."""
    print(f"{SLOTS:,} slots, {ROWS:,} rows an actor; rates as shares of that of all rows at once\n")
    print(f"{'answers':<28}{'before':>8}{'now':>8}")
    for varied in (False, True):
        for mean, pace, unit in (
            *((tokens, step_seconds, "tokens") for tokens in TOKENS),
            *((seconds, one_second, "seconds") for seconds in SECONDS),
        ):
            lengths = lengths_of(mean, varied=varied)
            of = f"{mean:,.0f} {unit}" + (", varied" if varied else "")
            print(f"{of:<28}{ratio(BEFORE, lengths, pace):>8.2f}{ratio(NOW, lengths, pace):>8.2f}", flush=True)


if __name__ == "__main__":
    main()
