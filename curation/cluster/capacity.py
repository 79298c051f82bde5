"""Checks that a Ray cluster answers at the run's address and has the resources that the configuration asks for.

Ray itself takes minutes to report that nothing answers, and waits for ever for a node larger than any it has. A cluster
with an autoscaler may still grow; in that case the run reports the missing resources and waits.
"""

import math
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from curation.cluster import nodes, ray_private
from curation.config import RayConfig, RunConfig, TrainSection
from curation.config.base import ACCELERATOR
from curation.errors import ClusterError, ConfigError
from curation.heavy import ray

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 30.0
"""Time limits for the address to accept a connection, and to answer as Ray, with the start of the asking process."""
NODE_TYPE = "ray.io/node-group"
"""Ray's label with the type of a node that an autoscaler started."""
LOCAL = "local"  # the address that makes Ray start a new cluster on this machine


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
    """Check that a Ray which this process can join answers at the address, in ``CONNECT_SECONDS + ANSWER_SECONDS``.

    Raises:
        ClusterError: the address is invalid, nothing listens there, or the listener is not Ray, has another version,
            has no node on this machine or refuses the token.
    """
    if "://" in address:
        raise ClusterError(
            f"ray.address: {address!r} is not a HOST:PORT; run curate on a node of the cluster, or by "
            "`ray job submit -- curate run ...`, which sets the address itself"
        )
    try:
        found = ray_private.find_head_address(address)
    except ConnectionError:
        raise ClusterError(
            f"ray.address: {address!r} finds no Ray on this machine; start it (`ray start`), name its HOST:PORT, "
            "or leave ray.address out to have one started for the run"
        ) from None
    except (ValueError, OSError) as error:
        raise ClusterError(f"ray.address: {address!r} is not a HOST:PORT and not auto ({error})") from error
    if found is None:
        return
    host, _, port = found.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        named = address if address == found else f"{address} ({found})"
        raise ClusterError(
            f"ray.address: no Ray answers at {named} ({error}); is the cluster up, and is this the port of its head "
            "(6379 unless it was started with another)?"
        ) from error
    _check_ray(found, takes_token=address == "auto")


def _check_ray(address: str, *, takes_token: bool = False) -> None:
    """Call :func:`ask` in a separate process, as Ray's client cannot be interrupted and has very long timeouts.

    With ``takes_token`` it authenticates with a token that there is, as ``ray.init`` does of itself.
    """
    code = "import sys; from curation.cluster import capacity; capacity.ask(sys.argv[1])"
    environment = dict(os.environ)
    is_named = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & environment.keys()
    if takes_token and (is_named or (Path.home() / ".ray" / "auth_token").exists()):
        environment.setdefault("RAY_AUTH_MODE", "token")
    command = [sys.executable, "-c", code, address]
    try:
        asked = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"ray.address: what listens at {address} did not answer as Ray in {ANSWER_SECONDS:.0f} s; "
            "the address is that of the head's GCS (port 6379 unless set), not of its dashboard"
        ) from None
    if asked.returncode == 0:
        return
    words = asked.stderr.strip().splitlines()[-1] if asked.stderr.strip() else f"exit code {asked.returncode}"
    if "AuthenticationError" in words:
        raise ClusterError(
            f"ray.address: the Ray at {address} does not take this token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN "
            "or RAY_AUTH_TOKEN_PATH to the cluster's own"
        )
    raise ClusterError(f"ray.address: the Ray at {address} cannot be joined: {words.partition('Error: ')[2] or words}")


def ask(address: str) -> None:
    """Check that a driver on this machine can join the Ray at ``HOST:PORT``.

    Raises:
        ClusterError: that Ray has another version, or no node on this machine.
        ray.exceptions.RayError: that Ray does not answer, or refuses the token.
    """
    version, sockets = ray_private.ask_head(address, timeout=ANSWER_SECONDS)
    if version not in (None, ray.__version__):
        raise ClusterError(
            f"the cluster runs Ray {version}, and this driver {ray.__version__}; install the same version on both"
        )
    if not any(Path(path).exists() for path in sockets):
        raise ClusterError(
            "none of its nodes is this machine; run curate on one, or by `ray job submit -- curate run ...`"
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


def describe_idle(config: RunConfig, nodes: Sequence[Mapping[str, float]]) -> list[str]:
    """Return messages on the CPUs and GPUs that every pass of the teacher would leave idle on these nodes."""
    actors = config.teacher.actors
    cpus = actors.cpus(config.teacher.ask.backend, [node.get("CPU", 0) for node in nodes])
    words = []
    for kind, key, each in (("CPU", "num_cpus", cpus), ("GPU", "num_gpus", actors.num_gpus)):
        total, used = sum(node.get(kind, 0) for node in nodes), actors.max * each
        if total > used and not (kind == "CPU" and actors.num_gpus):
            one = actors.max == 1
            words.append(
                f"teacher.actors: {actors.max} actor{'' if one else 's'} of {each:g} {kind} leave{'s' if one else ''} "
                f"{total - used:g} of {total:g} {kind}s idle in every pass; raise max, or {key}"
            )
    return words


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


NVIDIA_TYPE = re.compile(r"(?!NVIDIA-|TESLA-)(?:[A-Z]+-)*[A-Z]*[0-9][A-Z0-9]*|GeForce-[A-Za-z0-9-]+")
"""Pattern of the names that Ray gives to NVIDIA cards, such as H200, listed in ``ray.util.accelerators`` or not."""


def check_accelerators(asked: Sequence[Need]) -> None:
    """Raise ``ConfigError`` if a need names a type of accelerator that no node can have, before anything waits."""
    named = [(need.key, name) for need in asked for name in need.resources if name.startswith(ACCELERATOR)]
    if not named:
        return
    from ray.util.accelerators import accelerators

    known = {of for key, of in vars(accelerators).items() if not key.startswith("_") and isinstance(of, str)}
    for key, resource in named:
        name = resource.removeprefix(ACCELERATOR)
        if name not in known and not NVIDIA_TYPE.fullmatch(name):
            raise ConfigError(
                f"{key}.accelerator_type: {name!r} is not a name that Ray gives to accelerators "
                f"({', '.join(sorted(known))}; for another NVIDIA card, give its model, such as H200)"
            )


def check_room(asked: Sequence[Need]) -> str | None:
    """Return None if this process's Ray cluster has room for the needs, or a message if its autoscaler must add nodes.

    Raises:
        ClusterError: there is no room, and no autoscaler. A type of accelerator that none has is a ``ConfigError``.
    """
    check_accelerators(asked)
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

    Before a cluster is joined, its resources are unknown and not checked, but for the types of accelerators.
    """
    check_accelerators(asked)
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
    """Return whether an autoscaler may add nodes, which have types (otherwise Ray says ``node_`` and the node's id)."""
    types = {node["Labels"].get(NODE_TYPE, "") for node in nodes.list_living()} | ray_private.list_reported_types()
    return any(name and not re.fullmatch("node_[0-9a-f]{56}", name) for name in types)
