"""Asks all nodes of a Ray cluster a question, finds nodes with other versions than this process, and reports changes.

A question is a nested function, which Ray pickles by value, so that a node can answer even if it has another version of
this project, or none.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from curation.cluster.versions import make_versions_question as make_versions_question
from curation.errors import ClusterError
from curation.escaping import get_logger
from curation.heavy import ray
from curation.json_types import Json, JsonView
from curation.periodic import every

logger = get_logger(__name__)

ANSWER_SECONDS = 60  # time limit for an answer; a node has to start a worker process for it

FOLLOW_SECONDS = 2.0  # the interval between two requests to Ray; the head answers in milliseconds
AGAIN_SECONDS = 300.0  # the interval for repeating an unchanged state, so that it is always near the end of the events

FIX = "install the same on every node (constraints.txt) or take the node away"


@dataclass(frozen=True, kw_only=True)
class NodeAnswer:
    """The answer of a living node; if there is none, ``value`` is None and ``problem`` says why."""

    node: str  # the address and the start of the node's id, because several nodes may share an address
    value: Any
    problem: str | None


def list_living() -> list[Json]:
    """Return Ray's records of the living nodes, sorted by address."""
    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    return sorted(alive, key=lambda node: (node["NodeManagerAddress"], node["NodeID"]))


def ask(
    question: Callable[..., Any],
    make_arguments: Callable[[int], tuple[object, ...]] = lambda number: (),
    *,
    seconds: float = ANSWER_SECONDS,
) -> list[NodeAnswer]:
    """Return the answers of all living nodes to a question, each from a task that takes no resources of its node.

    ``make_arguments`` gets the number of a node; all answers together are waited for at most ``seconds``.
    """
    nodes, answers = list_living(), []
    asked = [make_task(question, node["NodeID"]).remote(*make_arguments(number)) for number, node in enumerate(nodes)]
    if asked:
        ray.wait(asked, num_returns=len(asked), timeout=seconds)
    for node, reference in zip(nodes, asked, strict=True):
        value, problem = None, None
        try:
            value = ray.get(reference, timeout=0)
        except ray.exceptions.GetTimeoutError:
            problem = f"no answer within {seconds:g} seconds"
        except ray.exceptions.RayError as error:
            problem = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
        if problem is not None:
            ray.cancel(reference, force=True)
        answers.append(NodeAnswer(node=name(node), value=value, problem=problem))
    return answers


def make_ray_options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Return the options of a task or an actor for which Ray reserves these resources of a node."""
    others = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU", "memory")}
    return {
        "num_cpus": resources.get("CPU", 0),
        "num_gpus": resources.get("GPU") or None,
        "memory": resources.get("memory") or None,
        "resources": others or None,
    }


def make_task(question: Callable[..., Any], node_id: str) -> Any:
    """Return a remote function that runs only on one node and takes no resources of it."""
    remote: Any = ray.remote(question)
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    return remote.options(num_cpus=0, max_retries=0, scheduling_strategy=affinity)


def name(node: JsonView) -> str:
    """Return a node's address and the start of its id, for messages."""
    return f"{node['NodeManagerAddress']} (node {node['NodeID'][:8]})"


def describe_here() -> str:
    """Return the name of this process's node, for messages."""
    mine = ray.get_runtime_context().get_node_id()
    return next(name(node) for node in list_living() if node["NodeID"] == mine)


def describe_differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return the differences between two sets of versions, as ``torch 2.12.0 (here 2.13.0)``.

    Builds of one version (``2.13.0+cpu``, ``2.13.0+cu130``) count as equal, because a head without a GPU may lead
    workers with one. So do releases of one Python (3.11.7, 3.11.9), because Ray itself checks the release.
    """
    return [
        f"{package} {there.get(package, 'not installed')} (here {here.get(package, 'not installed')})"
        for package in sorted({*here, *there})
        if _normalise_version(package, here.get(package)) != _normalise_version(package, there.get(package))
    ]


def _normalise_version(package: str, version: str | None) -> str | None:
    if version is None:
        return "not installed"
    return ".".join(version.split(".")[:2]) if package == "python" else version.partition("+")[0]


def describe_differing_nodes(here: Mapping[str, str], answers: Sequence[NodeAnswer]) -> Iterator[str]:
    """Yield a line for each node that differs: its address and both versions of each package."""
    for answer in answers:
        if answer.problem is None and (differing := describe_differences(here, answer.value)):
            yield f"{answer.node} has {', '.join(differing)}"


def require_here(versions: Mapping[str, str]) -> None:
    """Raise ``ClusterError``, with address and versions, if this process has other versions than the driver."""
    if differing := describe_differences(versions, make_versions_question()()):
        raise ClusterError(
            f"{describe_here()}, which joined the cluster during the run, has {', '.join(differing)}; {FIX}"
        )


def require_same_versions() -> None:
    """Raise ``ClusterError`` if a living node has other versions than this process; the message has both.

    A node that does not answer, e.g. because it is being removed, only causes a warning.
    """
    question = make_versions_question()
    answers = ask(question)
    for answer in answers:
        if answer.problem is not None:
            logger.warning("%s does not report its versions: %s", answer.node, answer.problem)
    if differing := list(describe_differing_nodes(question(), answers)):
        raise ClusterError(
            f"the nodes of the cluster must have the versions of this process: {'; '.join(differing)}; {FIX}"
        )


@contextmanager
def follow(tell: Callable[..., None], *, seconds: float = FOLLOW_SECONDS) -> Iterator[None]:
    """Call ``tell`` now, at each change of the cluster's nodes and every ``AGAIN_SECONDS`` while the context lasts.

    It gets ``num``, the number of living nodes, and the names of those that ``came`` and ``left`` since the last call.
    """
    known: dict[str, str] = {}
    reported = 0.0

    def look() -> None:
        nonlocal known, reported
        now = {node["NodeID"]: name(node) for node in list_living()}
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


def end_process(node: str, pid: int, seconds: float) -> None:
    """Kill a silent process of Ray on its node, so that Ray starts another one and repeats the call."""

    def end(pid: int, seconds: float) -> None:
        import os
        import signal
        from contextlib import suppress
        from pathlib import Path

        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
                os.kill(pid, signal.SIGKILL)
                words = f"ended process {pid}: it was silent for longer than teacher.actors.hang_seconds: {seconds:g}\n"
                os.write(2, words.encode())

    make_task(end, node).remote(pid, seconds)
