"""The actors of a pass, as Ray's own books have them: how many run, wait or start again, and how many have died."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import ray
from ray._private import state
from ray.core.generated import common_pb2

from curation.standing import Actors

_Reason: Any = common_pb2.ActorDiedErrorContext  # type: ignore[attr-defined]
_DEATHS = (_Reason.WORKER_DIED, _Reason.NODE_DIED)
"""Ends of an actor that nobody asked for."""


class ActorBook:
    """The actors of a class that Ray Data makes for this job from now on."""

    def __init__(self, actor: type) -> None:
        self._name = f"MapWorker(MapBatches({actor.__name__}))"
        self._before = {info["ActorID"] for info in self._all()}

    def read(self) -> Actors:
        """As of now."""
        mine = [info for info in self._all() if info["ActorID"] not in self._before]
        states = Counter(info["State"] for info in mine)
        return Actors(
            running=states["ALIVE"],
            pending=states["PENDING_CREATION"] + states["DEPENDENCIES_UNREADY"],
            restarting=states["RESTARTING"],
            deaths=sum(info["NumRestarts"] + (info["State"] == "DEAD" and _died(info["DeathCause"])) for info in mine),
        )

    def _all(self) -> Iterator[dict[str, Any]]:
        job = ray.JobID(bytes.fromhex(ray.get_runtime_context().get_job_id()))
        actors = state.actors(job_id=job)
        return (info for info in actors.values() if info["ActorClassName"] == self._name)


def _died(cause: Any) -> bool:
    kind = cause.WhichOneof("context")
    return kind == "oom_context" or (
        kind == "actor_died_error_context" and cause.actor_died_error_context.reason in _DEATHS
    )
