"""Runs a function on many items in Ray tasks, some of them at a time, and finds the cause of a task's error."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from curation.errors import CurationError, RunFailedError, UserError, describe_lance_error
from curation.heavy import ray
from curation.json_types import Json, JsonView
from curation.stopping import LOOK_SECONDS, check

Result = TypeVar("Result")

MAX_RETRIES = 10
"""Maximum number of retries of a task whose process or node died."""


def run_in_tasks(
    function: Callable[..., Result],
    calls: Iterable[tuple[object, ...]],
    *,
    num_cpus: float = 1,
    num_gpus: float = 0,
    beside_actors: bool = False,
) -> Iterator[Result]:
    """Yield the results of ``function(*arguments)`` for the arguments in ``calls``, in their order.

    At most three tasks per CPU are pending, and a wait can be interrupted.
    ``UserError`` is raised as in the function, ``RayError`` for another error or a process that died too often. With
    ``beside_actors`` idle actors hold CPUs, maybe all of them, until the driver goes on. A task that requests a CPU
    might wait for ever, even if one was free when it was submitted. So tasks request none, at most one per CPU is
    submitted, and if the cluster has workers, none runs on the head, which serves all. At worst two processes share a
    CPU meanwhile.
    """
    most = 3 * max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]
    where: Json = {}
    if beside_actors:
        num_cpus, (most, where) = 0, keep_off_head(ray.nodes())  # type: ignore[no-untyped-call]
    task = ray.remote(function).options(
        num_cpus=num_cpus, num_gpus=num_gpus, scheduling_strategy="SPREAD", max_retries=MAX_RETRIES, **where
    )
    waiting: deque[ray.ObjectRef[Result]] = deque()
    for arguments in calls:
        waiting.append(task.remote(*arguments))
        if len(waiting) == most:
            yield _wait_for_result(waiting.popleft())
    while waiting:
        yield _wait_for_result(waiting.popleft())


HEAD = "node:__internal_head__"
"""The resource by which Ray marks the head."""


def keep_off_head(nodes: Sequence[JsonView]) -> tuple[int, Json]:
    """Return the CPUs for tasks that request none, and options that keep them off the head if there is another node."""
    living = [node for node in nodes if node["Alive"]]
    heads = [node["NodeID"] for node in living if HEAD in node["Resources"]]
    workers = [node for node in living if HEAD not in node["Resources"] and node["Resources"].get("CPU", 0) >= 1]
    num_cpus = max(1, sum(int(node["Resources"].get("CPU", 0)) for node in workers or living))
    if not workers or not heads:
        return num_cpus, {}
    others = {"ray.io/node-id": f"!in({','.join(heads)})"}
    return num_cpus, {"label_selector": others, "fallback_strategy": [{"label_selector": {}}]}


def _wait_for_result(task: "ray.ObjectRef[Result]") -> Result:
    while not ray.wait([task], timeout=LOOK_SECONDS)[0]:
        check()
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(found := find_root_error(error), UserError):
            raise found from None
        raise


def find_root_error(error: BaseException) -> BaseException:
    """Return the error that a task's function raised; return any other error unchanged."""
    while isinstance(error, ray.exceptions.RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error


def make_driver_error(error: BaseException, stage: str) -> CurationError:
    """Return the error to raise in the driver for an error of Ray: a user's mistake in a task, or a failed stage."""
    found = find_root_error(error)
    if isinstance(found, UserError):
        return found
    words = describe_lance_error(found) or f"{type(found).__name__} {(str(found).strip().splitlines() or [''])[0]}"
    return RunFailedError(f"{stage} failed: {words}; the same command resumes from what is committed")
