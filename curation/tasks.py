"""Runs a function on many items in Ray tasks, some of them at a time, and finds the cause of a task's error."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from curation.errors import CurationError, RunFailedError, UserError, of_lance
from curation.stopping import LOOK_SECONDS

if TYPE_CHECKING:
    import ray

Result = TypeVar("Result")

MAX_RETRIES = 10
"""How often a task is repeated whose process or node died."""


def in_tasks(
    function: Callable[..., Result], calls: Iterable[tuple[Any, ...]], *, num_cpus: float = 1, num_gpus: float = 0
) -> Iterator[Result]:
    """The results of ``function(*arguments)`` for the arguments in ``calls``, in their order.

    At most three tasks a CPU of the cluster are under way or have a result that is not taken. A wait can be interrupted
    (:mod:`curation.stopping`).

    Raises:
        UserError: as the function raised it.
        ray.exceptions.RayError: another error in a task, or its process or node died too often.
    """
    import ray

    task = ray.remote(function).options(
        num_cpus=num_cpus, num_gpus=num_gpus, scheduling_strategy="SPREAD", max_retries=MAX_RETRIES
    )
    most = 3 * max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]
    waiting: deque[ray.ObjectRef[Result]] = deque()
    for arguments in calls:
        waiting.append(task.remote(*arguments))
        if len(waiting) == most:
            yield _result(waiting.popleft())
    while waiting:
        yield _result(waiting.popleft())


def _result(task: "ray.ObjectRef[Result]") -> Result:
    import ray

    while not ray.wait([task], timeout=LOOK_SECONDS)[0]:
        pass
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(found := root(error), UserError):
            raise found from None
        raise


def root(error: BaseException) -> BaseException:
    """The error that a function raised in a task; another error of Ray as it is."""
    import ray

    while isinstance(error, ray.exceptions.RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error


def cause(error: BaseException, stage: str) -> CurationError:
    """The error to raise in the driver for an error of Ray: the user's mistake that a task found, or a failed stage."""
    found = root(error)
    if isinstance(found, UserError):
        return found
    told = of_lance(found) or f"{type(found).__name__} {(str(found).strip().splitlines() or [''])[0]}"
    return RunFailedError(f"{stage} failed: {told}; the same command resumes from what is committed")
