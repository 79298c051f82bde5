"""Follows the cluster's nodes during a run: one event at the start, and one each time nodes come or leave.

A pool of actors grows and shrinks with its nodes. With spot machines or an autoscaler, check the nodes first when a run
is slow.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from curation.cluster import nodes
from curation.escaping import logger_of
from curation.heavy import ray
from curation.periodic import every

SECONDS = 2.0
"""The interval between two requests to Ray; the head answers in milliseconds."""
AGAIN_SECONDS = 300.0
"""The interval for repeating an unchanged state, so that it is always near the end of the events."""

logger = logger_of(__name__)


@contextmanager
def follow(tell: Callable[..., None], *, seconds: float = SECONDS) -> Iterator[None]:
    """Call ``tell`` now and at each change of the cluster's nodes, as long as the context lasts.

    Its arguments are ``num``, the number of living nodes, and ``came`` and ``left``, the names of those that came and
    left since the last call.
    """
    known: dict[str, str] = {}
    reported = 0.0

    def look() -> None:
        nonlocal known, reported
        now = {node["NodeID"]: nodes.name(node) for node in nodes.living()}
        came = [now[node] for node in now if node not in known]
        left = [known[node] for node in known if node not in now]
        if came or left or time.monotonic() - reported > AGAIN_SECONDS:
            tell(num=len(now), came=came, left=left)
            known, reported = now, time.monotonic()

    def look_again() -> None:
        try:
            look()
        except (OSError, ray.exceptions.RayError) as error:  # the head is briefly unreachable
            logger.warning("the cluster's nodes are not known: %s", error)

    look()
    with every(seconds, look_again):
        yield
