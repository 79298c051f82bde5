"""Repeated runs of two alternatives in turn, with the median and range of the pairs' ratios."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.machine import wait_for_quiet

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """The rates of both sides (work per second), by pair."""

    ours: list[float]
    peers: list[float]

    @property
    def ratios(self) -> list[float]:
        """Ours over the peer's, pair by pair."""
        return [ours / peer for ours, peer in zip(self.ours, self.peers, strict=True)]

    def line(self, name: str, unit: str, reach: float) -> str:
        """Return one line: medians of the rates, median and range of the ratio, and whether it reaches ``reach``."""
        ratios = self.ratios
        median = statistics.median(ratios)
        rates = f"ours {statistics.median(self.ours):,.0f} {unit}, peer {statistics.median(self.peers):,.0f} {unit}"
        spread = f"range {min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} pairs"
        return f"{name}: {rates}, ratio {median:.3f} ({spread}; to reach {reach}: {'yes' if median >= reach else 'no'})"


def measure(ours: Callable[[int], float], peer: Callable[[int], float], num_pairs: int) -> Ratios:
    """Run both sides ``num_pairs`` times in turn, the first of a pair alternating; each returns its rate."""
    rates: dict[str, list[float]] = {"ours": [], "peer": []}
    for pair in range(num_pairs):
        sides = [("ours", ours), ("peer", peer)]
        for name, side in sides if pair % 2 == 0 else sides[::-1]:
            rates[name].append(side(pair))
        print(f"  pair {pair}: ours {rates['ours'][-1]:,.0f}, peer {rates['peer'][-1]:,.0f}", flush=True)
    return Ratios(ours=rates["ours"], peers=rates["peer"])


def in_turn(sides: Mapping[str, Callable[[], T]], num_turns: int) -> dict[str, list[T]]:
    """Return what each side returns in each turn, after waiting for quiet; another side begins each time."""
    names, found = [*sides], {name: [] for name in sides}
    for turn in range(num_turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            wait_for_quiet()
            found[name].append(sides[name]())
    return found


def spread(values: Sequence[float], form: str = ".3f") -> str:
    """Return median and range."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"
