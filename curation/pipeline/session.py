"""Ray, and the processes in which stages work, for one run or shared by several runs of this process.

Starting Ray, an actor for the models and a process for the trainings takes most of the time of a small run. A single
run ends them when it ends; within a :func:`session` the next run finds them warm.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module

from curation.activity import doing
from curation.cluster import capacity
from curation.cluster.session import local_or_cluster
from curation.config import RayConfig
from curation.rundir.hosts import Hosts
from curation.telemetry.console import say

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
