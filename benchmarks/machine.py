"""The load of other processes on a machine, and the measurements that it invalidates."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

QUIET = 0.25
"""Maximum number of cores that other processes may keep busy during a measurement."""
WAIT_SECONDS = float(os.environ.get("BENCHMARK_WAIT_SECONDS", "60"))
"""Maximum time for which a measurement waits until the machine is quiet, in seconds."""
LEAST_TURNS = 3
"""Minimum number of quiet turns; with fewer, all turns are used, and CPU time is compared instead of elapsed time."""


class Busy:
    """A counter of the load since its construction."""

    def __init__(self) -> None:
        self._begun, self._all, self._own = time.monotonic(), _all_seconds(), _own_seconds()

    def others(self, own_seconds: float = 0.0) -> float:
        """Return how many cores others than this process, its ended children and ``own_seconds`` kept busy."""
        passed = time.monotonic() - self._begun
        seconds = _all_seconds() - self._all - (_own_seconds() - self._own) - own_seconds
        return max(0.0, seconds / passed)


class Measured(Protocol):
    """A measurement."""

    @property
    def others(self) -> float:
        """Cores that other processes kept busy meanwhile."""
        ...


M = TypeVar("M", bound=Measured)


def wait_for_quiet(most_seconds: float = WAIT_SECONDS) -> None:
    """Wait until others keep less than ``QUIET`` cores busy for two seconds, but not for ever."""
    ends = time.monotonic() + most_seconds
    while time.monotonic() < ends:
        busy = Busy()
        time.sleep(2)
        if busy.others() < QUIET:
            return


class Turns(NamedTuple, Generic[M]):
    """The measurements of two sides, in pairs by turn."""

    ours: list[M]
    peers: list[M]
    are_quiet: bool
    """Whether only quiet turns are included; otherwise too few were quiet, and all turns are."""
    words: str

    def ratios(self, of: Callable[[M], float]) -> list[float]:
        """Return the ratios of ours to the peer's, of some number of a side."""
        return [of(a) / of(b) for a, b in zip(self.ours, self.peers, strict=True)]


def quiet(ours: Sequence[M], peers: Sequence[M]) -> Turns[M]:
    """Return the turns in which both sides were left alone, if there are enough."""
    pairs = list(zip(ours, peers, strict=True))
    alone = [pair for pair in pairs if max(side.others for side in pair) <= QUIET]
    words, are_quiet = f"{len(alone)} of {len(pairs)} quiet", len(alone) >= LEAST_TURNS
    taken = alone if are_quiet else pairs
    return Turns([a for a, _ in taken], [b for _, b in taken], are_quiet, words)


def peak_mb() -> float:
    """Return the peak resident memory of this process in MB; ``ru_maxrss`` would begin at its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def _all_seconds() -> float:
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    return sum(os.times()[:4])
