"""The engine of runs and filters: holds a directory, opens it, starts Ray if something is left to do, runs the stages.

A subclass of :class:`Opened` says what differs between a run and a filter: the stages, the resources that the cluster
must have, the files written to the directory before the first stage, and the checks before anything is labelled.

Starting Ray, an actor for the models and a process for the trainings takes most of the time of a small run. A single
run ends them when it ends; within a :func:`session` the next run finds them warm.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Generic, TypeVar

from curation.activity import doing
from curation.cluster import capacity, news, nodes
from curation.cluster.session import local_or_cluster
from curation.config import RayConfig, RunConfig
from curation.config.filter import FilterConfig
from curation.errors import RunFailedError, describe_file_error
from curation.rundir.graph import Stage, find_dependents
from curation.rundir.hosts import Hosts
from curation.rundir.manifest import Manifest
from curation.rundir.run import Run
from curation.rundir.status import Status, iter_statuses
from curation.stopping import Stopped
from curation.storage import lease
from curation.storage.paths import Place
from curation.telemetry import metrics
from curation.telemetry.console import say
from curation.telemetry.metrics import Telemetry

IMPORTED_ONCE = ("torch", "transformers", "sklearn.linear_model", "sklearn.feature_extraction.text")
"""Modules that are imported before the first stage starts. Stages run in threads: two that import a module at once may
find torch or scikit-learn half imported, due to circular imports, and see transformers replace its own module."""


@dataclass
class _Session:
    stack: ExitStack
    hosts: Hosts | None = None
    """Hosts of the session's runs, or None until a run starts Ray."""


_session: ContextVar[_Session | None] = ContextVar("_session", default=None)


@contextmanager
def session() -> Iterator[None]:
    """Share Ray, actors and training processes among the runs of this thread within the context.

    The first run that has something to do starts or joins Ray, by its section ``ray``. A process serves later runs that
    ask for the same resources. It ends with the session, after ``max_idle_seconds`` of idle time, or when a stage needs
    its resources. A session within a session has no effect.
    """
    if _session.get() is not None:
        yield
        return
    with ExitStack() as stack:
        token = _session.set(_Session(stack))
        try:
            yield
        finally:
            _session.reset(token)


@contextmanager
def started(settings: RayConfig, needs: Sequence[capacity.Need]) -> Iterator[Hosts]:
    """Start or join Ray for a run or a filter, unless its session has; yield the hosts of its stages.

    Raises:
        ClusterError: no Ray that can be joined answers at the address, or it has no room for the ``needs``.
        RunFailedError: Ray did not start.
    """
    with ExitStack() as own:
        current = _session.get()
        hosts = None if current is None else current.hosts
        if hosts is None:
            stack = own if current is None else current.stack
            stack.enter_context(local_or_cluster(settings))
            hosts = Hosts(hold_cpus=not capacity.is_one_machine(settings), outlive_runs=current is not None)
            stack.enter_context(closing(hosts))
            if current is not None:
                current.hosts = hosts
        _require_room(needs)
        for module in IMPORTED_ONCE:
            with doing(f"importing {module}"):
                import_module(module)
        yield hosts


@contextmanager
def joined(settings: RayConfig, needs: Sequence[capacity.Need]) -> Iterator[None]:
    """Start or join Ray for a forecast, which has no stages."""
    with local_or_cluster(settings):
        _require_room(needs)
        yield


def _require_room(needs: Sequence[capacity.Need]) -> None:
    if (waits := capacity.check_room(needs)) is not None:
        say(waits)


Config = TypeVar("Config", bound=RunConfig | FilterConfig)


@dataclass(frozen=True, kw_only=True)
class Opened(ABC, Generic[Config]):
    """A directory checked against its configuration, and the stages to run in it."""

    config: Config
    manifest: Manifest
    name: str
    """Name under which metrics are emitted."""
    stages: Sequence[Stage]
    """All stages, each after the stages that it depends on."""
    needs: Sequence[capacity.Need]
    """Cluster resources that the stages need."""
    growth: Mapping[str, str | None]
    """Descriptions of rows or splits that are new since the last start, by the field of a plan that holds them."""

    @abstractmethod
    def save(self) -> None:
        """Write the definition of the work to its directory, before the first stage."""

    @abstractmethod
    def begin(self) -> Iterator[str]:
        """Yield lines to print before Ray is started for the stages left to do; refuse work that cannot succeed."""

    @property
    def statuses(self) -> list[Status]:
        """The status of every stage."""
        return list(iter_statuses(self.stages, self.manifest))

    def is_settled(self, stages: Sequence[Stage] | None = None) -> bool:
        """Return whether these stages, or all stages if None, are done."""
        found = self.stages if stages is None else stages
        return all(status.is_settled for status in iter_statuses(found, self.manifest))


AnyOpened = TypeVar("AnyOpened", bound=Opened)  # type: ignore[type-arg]


@contextmanager
def at_work(
    directory: Place,
    opening: Callable[[lease.Guard], AnyOpened],
    stages: Callable[[AnyOpened], Sequence[Stage]] = lambda opened: opened.stages,
    *,
    wait: bool,
    redo: Callable[[AnyOpened], Sequence[str]] = lambda opened: (),
    redo_by: str | None = None,
) -> Iterator[tuple[AnyOpened, Run]]:
    """Hold and open a directory and, if one of the ``stages`` is left to do, start Ray and follow the cluster's nodes.

    Without work, Ray is not started and no model is loaded, as both take longer than opening the directory.

    Args:
        directory: the directory; while another driver works in it, this driver is refused or, with ``wait``, waits.
        opening: function that opens the directory, given the guard of the lease; it writes nothing.
        stages: function that returns the stages to do, by default all.
        wait: whether to wait for another driver.
        redo: function that returns the names of stages to do again; stages that depend on them are done again too.
        redo_by: the command, followed by a stage's name, that does the stage again, for messages; None without one.

    Raises:
        UserError: the directory does not fit its configuration, or the cluster has no room.
    """
    with lease.hold(directory, wait=wait) as held, ExitStack() as stack, files_of(directory):
        opened = opening(held.still_held)
        opened.manifest.require_own_tables()
        own = {stage.name for stage in opened.stages}
        again = [*find_dependents(named := redo(opened), opened.stages), *(name for name in named if name not in own)]
        has_work, hosts = not own.isdisjoint(again) or not opened.is_settled(stages(opened)), None
        if has_work:
            for line in opened.begin():
                say(line)
            hosts = stack.enter_context(started(opened.config.ray, opened.needs))
        opened.save()
        if again:
            opened.manifest.event("redo", stages=again)
            say(f"to be done again: {', '.join(again)}")
            opened.manifest.redo(again, named=named)
        if has_work:
            stack.enter_context(_heartbeat(opened.name))
            stack.enter_context(nodes.follow(partial(opened.manifest.event, "nodes")))
            stack.enter_context(news.follow(lambda text: opened.manifest.event("ray", text=text)))
        else:
            say("all stages are done")
        run = Run(
            opened.name,
            opened.manifest,
            max_stages=opened.config.ray.max_stages,
            room=capacity.get_total_resources,
            hosts=hosts,
            redo=redo_by,
            lease=held,
        )
        yield opened, run


@contextmanager
def _heartbeat(run: str) -> Iterator[None]:
    """Report within the context that this driver is alive and, when it ends regularly, that it has ended.

    After an error the end is not reported, so that the alarm on a missing driver is raised.
    """
    telemetry = Telemetry(run=run, stage="driver")
    telemetry.set(metrics.DRIVER_ALIVE, 1)
    try:
        yield
    except (KeyboardInterrupt, Stopped):
        telemetry.set(metrics.DRIVER_ALIVE, 0)
        raise
    else:
        telemetry.set(metrics.DRIVER_ALIVE, 0)
    finally:
        telemetry.forget()


@contextmanager
def files_of(directory: Place) -> Iterator[None]:
    """Turn errors of the run directory itself (e.g. a full disk), outside the stages, into ``RunFailedError``."""
    try:
        yield
    except (IsADirectoryError, NotADirectoryError) as error:
        raise RunFailedError(f"{describe_file_error(error) or error} (run directory {directory})") from error
    except OSError as error:
        raise RunFailedError(f"{error} (run directory {directory}; run the same command to resume)") from error
