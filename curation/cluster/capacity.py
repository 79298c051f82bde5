"""Checks that a Ray answers at the run's address, and that the cluster has the resources asked for.

Ray itself takes minutes to report that nothing answers, and waits for ever for a node larger than any it has. A cluster
with an autoscaler may still grow; in that case the run reports the missing resources and waits.
"""

import math
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from curation.cluster import nodes, ray_private
from curation.config import RayConfig, RunConfig, TrainSection
from curation.config.base import ACCELERATOR
from curation.errors import ClusterError
from curation.heavy import ray

CONNECT_SECONDS = 5.0  # time limit for the address to accept a connection, and to answer
HTTP2_START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The first bytes of an HTTP/2 client, with an empty SETTINGS frame, which a gRPC server such as Ray's answers."""
SETTINGS = 4  # type of a frame with settings, the fourth byte of a frame
NODE_TYPE = "ray.io/node-group"  # Ray's label with the type of a node that an autoscaler started
LOCAL = "local"  # the address that makes Ray start a new cluster on this machine
AUTO = "auto"  # the address of the Ray that runs on this machine


@dataclass(frozen=True, kw_only=True)
class Need:
    """A demand for ``count`` simultaneous workers, each of which needs ``resources`` (by Ray's names) on one node."""

    key: str  # the configuration key that requests the workers
    count: int
    resources: Mapping[str, float]


def find_address(settings: RayConfig) -> str:
    """Return the address for ``ray.init``: ``ray.address``, else ``RAY_ADDRESS`` (set in a Ray job), else ``LOCAL``."""
    return settings.address or os.environ.get("RAY_ADDRESS") or LOCAL


def check_answers(address: str) -> None:
    """Check that a gRPC server listens at the address of a cluster, for which Ray itself would wait minutes.

    Raises:
        ClusterError: the address is invalid, or no such server listens there.
    """
    if "://" in address:
        raise ClusterError(
            f"ray.address: {address!r} is not a HOST:PORT; run curate on a node of the cluster, or by "
            "`ray job submit -- curate run ...`, which sets the address itself"
        )
    if address in (LOCAL, AUTO):
        try:  # a running Ray, that of RAY_ADDRESS, or the one started last, which may have ended
            address = ray_private.find_head_address(address) or LOCAL
        except (ValueError, OSError) as error:
            raise make_join_error(address, error) from error
        if address == LOCAL:
            return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ClusterError(f"ray.address: {address!r} is not a HOST:PORT and not auto")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
                connection.sendall(HTTP2_START)
                if connection.makefile("rb").read(4)[3:] != bytes([SETTINGS]):
                    raise ConnectionError("what listens there is no Ray")
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"ray.address: no Ray answers at {address} ({error}); is the cluster up, and is this the port of its head "
            "(6379 unless it was started with another; not that of its dashboard)?"
        ) from error


def make_join_error(address: str, reason: object) -> ClusterError:
    """Return the error for a Ray that answers and cannot be joined."""
    return ClusterError(
        f"ray.address: {address!r} cannot be joined from this machine ({reason}); run curate on a node of the cluster, "
        "with its version of Ray and its token (RAY_AUTH_MODE=token)"
    )


def list_needs(config: RunConfig) -> list[Need]:
    """Return the resources that the stages of a run need from the cluster."""
    recipes: list[tuple[str, TrainSection | None]] = [
        ("teacher.adapt", config.teacher.adapt),
        ("trust", config.trust),
        ("student", config.student if config.generations else None),
        *(
            (f"generations.{index}.students.{name}.recipe", student.recipe)
            for index, generation in enumerate(config.generations)
            for name, student in generation.students.items()
        ),
    ]
    return [
        Need(key="teacher.actors", count=1, resources=config.teacher.actors.each),
        *(Need(key=key, count=one.num_workers, resources=one.per_worker) for key, one in recipes if one is not None),
    ]


def get_local_resources(settings: RayConfig) -> dict[str, float]:
    """Return the resources that a Ray started on this machine has."""
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return {"CPU": settings.num_cpus or os.cpu_count() or 1, "GPU": gpus}


def describe_lacking(asked: Sequence[Need], nodes: Sequence[Mapping[str, float]]) -> list[str]:
    """Return messages on the needs that these nodes can never meet, assuming that nothing else runs there."""
    words = []
    for need in asked:
        places = sum(_count_places(need.resources, node) for node in nodes)
        if places < need.count:
            own = ({name: node.get(name, 0.0) for name in need.resources} for node in nodes)
            has = "; ".join(sorted({*map(_describe_resources, own)}))
            workers = f"{need.count} workers" if need.count > 1 else "a worker"
            words.append(
                f"{need.key} asks for {workers} of {_describe_resources(need.resources)}, and there is room for "
                f"{places} (nodes: {has or 'none'})"
            )
    return words


def _describe_resources(resources: Mapping[str, float]) -> str:
    words = []
    for name, amount in resources.items():
        if name.startswith(ACCELERATOR):
            words.append(f"{'' if amount else 'no '}accelerator type {name.removeprefix(ACCELERATOR)}")
        else:
            words.append(f"{amount / 2**30:.1f} GiB of memory" if name == "memory" else f"{amount:g} {name}")
    return " and ".join(words)


def check_room(asked: Sequence[Need]) -> str | None:
    """Return None if this process's Ray cluster has room for the needs, or a message if its autoscaler must add nodes.

    Raises:
        ClusterError: there is no room, and no autoscaler.
    """
    words = describe_lacking(asked, [node["Resources"] for node in nodes.list_living()])
    if not words:
        return None
    if can_autoscale():
        return f"{'; '.join(words)}: waiting for the cluster's autoscaler"
    raise ClusterError(
        f"the cluster is too small: {'; '.join(words)}; ask for less there (num_cpus, num_gpus, memory_gib, "
        "cpus_per_worker, gpus_per_worker, memory_gib_per_worker, accelerator_type, num_workers) or add nodes"
    )


def check_machine(settings: RayConfig, asked: Sequence[Need]) -> None:
    """Check, before Ray is started here, that this machine has the CPUs and GPUs of the needs, else ``ClusterError``.

    Before a cluster is joined, its resources are unknown and not checked.
    """
    if find_address(settings) != LOCAL:
        return
    machine = get_local_resources(settings)
    here = [
        replace(need, resources={name: amount for name, amount in need.resources.items() if name in machine})
        for need in asked
    ]
    if words := describe_lacking(here, [machine]):
        raise ClusterError(
            f"this machine is too small: {'; '.join(words)}; ask for less there (num_cpus, num_gpus, cpus_per_worker, "
            "gpus_per_worker, num_workers), raise ray.num_cpus, or set ray.address to a cluster that has it"
        )


def count_fitting(each: Mapping[str, float]) -> int:
    """Return how many workers that need ``each`` fit on the living nodes, if nothing else runs on them."""
    return sum(_count_places(each, node["Resources"]) for node in nodes.list_living())


def _count_places(each: Mapping[str, float], node: Mapping[str, float]) -> int:
    """Return how many workers that need ``each`` fit on an idle node: any number if they need nothing."""
    fitting = (math.floor(node.get(name, 0) / amount) for name, amount in each.items() if amount)
    return min(fitting, default=sys.maxsize)


def get_total_resources() -> dict[str, float]:
    """Return the total resources of the cluster's nodes, by Ray's names."""
    found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return found


def is_one_machine(settings: RayConfig) -> bool:
    """Return whether Ray was started on this machine and has no other node, and no autoscaler to add one."""
    return find_address(settings) == LOCAL and len(nodes.list_living()) == 1 and not can_autoscale()


def can_autoscale() -> bool:
    """Return whether an autoscaler may add nodes: version 2, the default of ``ray up``, labels each with its type."""
    return any(node["Labels"].get(NODE_TYPE) for node in nodes.list_living())
