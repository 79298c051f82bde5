"""The process that trains students, teachers and trust functions one after the other, if one worker is enough."""

from collections.abc import Iterator
from contextlib import contextmanager

from curation.config import TrainSection
from curation.refs import fingerprint
from curation.rundir.hosts import Host
from curation.rundir.run import Task

MAX_IDLE_SECONDS = 120.0
"""A training process that is idle for this long is ended."""


def training_host(recipe: TrainSection) -> Host | None:
    """The host for trainings with the resources of this recipe; ``None`` for a group of several workers."""
    if recipe.num_workers > 1:
        return None
    name = fingerprint(["training", recipe.per_worker])
    return Host(name=name, kind=name, shared=False)


@contextmanager
def training(task: Task, recipe: TrainSection) -> Iterator[None]:
    """Within the context, training runs in the process that the stage names as its host, if it names one."""
    from train.launch import TrainProcess, trained_in

    if task.stage.host is None:
        yield
        return
    hold_cpus = task.hosts.hold_cpus
    hosted = task.hosted(lambda: TrainProcess(recipe, hold_cpus=hold_cpus), max_idle_seconds=MAX_IDLE_SECONDS)
    with hosted as process, trained_in(process):
        yield
