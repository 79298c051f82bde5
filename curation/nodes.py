"""What the nodes of a Ray cluster answer: a question to each of them, and who has other versions than this process.

A question is a function inside a function: Ray pickles such a one by value, so that a node answers that has this
project in another version, or not at all.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curation.errors import ClusterError
from curation.versions import PROJECT, ask_versions

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 60
"""A node starts a worker process to answer."""

FIX = "install the same on every node (constraints.txt) or take the node away"

CODE = f"{PROJECT} code"
"""A digest of this project's modules: an editable installation keeps its version while its code changes."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a living node answered; ``value`` is None where ``problem`` says why there is no answer."""

    node: str
    """Address, and the start of the node's id: several nodes may share an address."""
    node_id: str
    value: Any
    problem: str | None


def living() -> list[dict[str, Any]]:
    """Ray's records of the nodes that are alive, by address."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    return sorted(alive, key=lambda node: (node["NodeManagerAddress"], node["NodeID"]))


def ask(question: Callable[..., Any], *arguments: Any, seconds: float = ANSWER_SECONDS) -> list[Answer]:
    """The answers of all living nodes, each given by a task there that takes no resources."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    nodes = living()
    asked = [task(question, node["NodeID"]).remote(*arguments) for node in nodes]
    if asked:
        ray.wait(asked, num_returns=len(asked), timeout=seconds)
    answers = []
    for node, answer in zip(nodes, asked, strict=True):
        value, problem = None, None
        try:
            value = ray.get(answer, timeout=0)
        except GetTimeoutError:
            problem = f"no answer within {seconds:g} seconds"
            ray.cancel(answer, force=True)
        except RayError as error:
            problem = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
        answers.append(Answer(node=name(node), node_id=node["NodeID"], value=value, problem=problem))
    return answers


def task(question: Callable[..., Any], node_id: str, *, num_cpus: float = 0, num_gpus: float = 0) -> Any:
    """A remote function that runs on one node and nowhere else."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    remote: Any = ray.remote(question)
    return remote.options(num_cpus=num_cpus, num_gpus=num_gpus, max_retries=0, scheduling_strategy=there)


def name(node: Mapping[str, Any]) -> str:
    """A node in words."""
    return f"{node['NodeManagerAddress']} (node {node['NodeID'][:8]})"


def installed() -> Callable[[], dict[str, str]]:
    """The question what versions a process has: ``manifest.versions`` and a digest of this project's code."""
    packages, code = ask_versions(), CODE

    def versions() -> dict[str, str]:
        import hashlib
        import importlib.util
        from pathlib import Path

        found = packages()
        spec = importlib.util.find_spec("curation")
        if spec is None or spec.origin is None:
            return found | {code: "not installed"}
        digest, root = hashlib.sha256(), Path(spec.origin).parents[1]
        for path in sorted(path for part in ("curation", "train") for path in (root / part).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
        return found | {code: digest.hexdigest()[:8]}

    return versions


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """What differs between two sets of versions, as ``torch 2.12.0 (here 2.13.0)``.

    Builds of one version (``2.13.0+cpu``, ``2.13.0+cu130``) are the same, as are releases of one Python (3.11.7,
    3.11.9): a head without a GPU leads workers that have one, and Ray itself looks at the release.
    """
    return [
        f"{package} {there.get(package, 'not installed')} (here {here.get(package, 'not installed')})"
        for package in sorted({*here, *there})
        if _comparable(package, here.get(package)) != _comparable(package, there.get(package))
    ]


def _comparable(package: str, version: str | None) -> str | None:
    if version is None:
        return "not installed"
    return ".".join(version.split(".")[:2]) if package == "python" else version.partition("+")[0]


def others(here: Mapping[str, str], answers: Sequence[Answer]) -> Iterator[str]:
    """The nodes that differ, a line each: address and both versions of each package."""
    for answer in answers:
        if answer.problem is None and (differing := differences(here, answer.value)):
            yield f"{answer.node} has {', '.join(differing)}"


def require_here(versions: Mapping[str, str]) -> None:
    """Refuse to work in this process where it has other versions than those, which are the driver's.

    Raises:
        ClusterError: with the node's address and both versions.
    """
    import ray

    if differing := differences(versions, installed()()):
        here = ray.get_runtime_context().get_node_id()
        node = next(name(node) for node in living() if node["NodeID"] == here)
        raise ClusterError(
            f"{node}, which joined the cluster while the run was at work, has {', '.join(differing)}; {FIX}"
        )


def require_same_versions() -> None:
    """Refuse a cluster on which a living node has other versions than this process.

    A node that does not answer, as one that is just being taken away, is warned of.

    Raises:
        ClusterError: with the nodes' addresses and both versions.
    """
    question = installed()
    answers = ask(question)
    for answer in answers:
        if answer.problem is not None:
            logger.warning("%s does not say what versions it has: %s", answer.node, answer.problem)
    if differing := list(others(question(), answers)):
        raise ClusterError(
            f"the nodes of the cluster must have the versions of this process: {'; '.join(differing)}; {FIX}"
        )
