"""The loads of stages on the cluster, and a check for room for one more."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from curation.rundir.graph import Stage


class Load(NamedTuple):
    """Resources of a cluster that a stage keeps busy."""

    shared: str | None
    """The name of a host that several stages share: together they take as much as the largest of them."""
    takes: Mapping[str, float]

    @classmethod
    def of(cls, stage: Stage) -> "Load":
        """Return the load of a stage."""
        return cls(stage.host.name if stage.host is not None and stage.host.shared else None, stage.takes)


def has_room(load: Load, beside: Sequence[Load], room: Mapping[str, float]) -> bool:
    """Return whether a cluster of size ``room`` has room for a load beside others; an infinite load fits only alone."""
    with_it = [other for other in beside if other.shared is not None and other.shared == load.shared]
    others = [other for other in beside if other not in with_it]
    all_there_is = {name: room.get(name, 0.0) for name, amount in load.takes.items() if math.isinf(amount)}
    return all(
        amount <= _compute_taken(name, with_it, room)
        or amount + _compute_taken(name, others, room) <= room.get(name, 0.0)
        for name, amount in {**load.takes, **all_there_is}.items()
        if amount
    )


def _compute_taken(name: str, loads: Sequence[Load], room: Mapping[str, float]) -> float:
    """Return how much of a resource the loads take, each capped at the cluster's total."""
    taken: dict[str | int, float] = {}
    for number, load in enumerate(loads):
        key = number if load.shared is None else load.shared
        taken[key] = max(taken.get(key, 0.0), min(load.takes.get(name, 0.0), room.get(name, 0.0)))
    return sum(taken.values())
