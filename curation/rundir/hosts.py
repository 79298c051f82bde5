"""Hosts: actors with a loaded model and training processes, which stay alive between the stages that use them."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol


class HostProcess(Protocol):
    """The actors or the process of a host."""

    def close(self) -> None:
        """End the actors or the process, and free their cluster resources."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """The host that a stage needs. Stages that need the same host share one start."""

    name: str
    """A fingerprint of what the host loads. Several stages use a host of one name at the same time if ``shared``."""
    kind: str
    """An idle host serves any stage of the same kind; equal names have equal kinds."""
    shared: bool


@dataclass(eq=False)
class _Kept:
    """A running host and its use."""

    host: Host
    takes: Mapping[str, float]
    max_idle_seconds: float
    held: Any
    is_sound: bool = True
    users: int = 0
    idle_since: float = field(default_factory=time.monotonic)


class Hosts:
    """The hosts of a run, or of several runs in turn; each is started when a stage first needs it."""

    def __init__(self, *, hold_cpus: bool = True, outlive_runs: bool = False) -> None:
        """Set whether hosts hold their CPUs in Ray, so that an idle host is closed if its CPUs are needed.

        On a single machine the run alone decides what runs side by side, so idle hosts can stay. ``outlive_runs``:
        Whether a host that no coming stage of the run needs stays, to serve the next run.
        """
        self.hold_cpus = hold_cpus
        self._outlive_runs = outlive_runs
        self._kept: list[_Kept] = []
        self._lock = threading.RLock()

    @contextmanager
    def use(
        self, host: Host, takes: Mapping[str, float], max_idle_seconds: float, start: Callable[[], HostProcess]
    ) -> Iterator[Any]:
        """Yield a running host that can serve as ``host``, or else the one that ``start`` starts; keep it afterwards.

        After an error the host accepts no new stage, and is closed when the stages that still use it have ended.
        """
        with self._lock:
            sound = [kept for kept in self._kept if kept.is_sound]
            same = [kept for kept in sound if kept.host.name == host.name and (host.shared or not kept.users)]
            alike = [kept for kept in sound if kept.host.kind == host.kind and not kept.users]
            kept = next(iter([*same, *alike]), None)
            if kept is None:
                kept = _Kept(host, takes, max_idle_seconds, start())
                self._kept.append(kept)
            kept.host, kept.users = host, kept.users + 1
            kept.takes = {name: max(kept.takes.get(name, 0), takes.get(name, 0)) for name in {*kept.takes, *takes}}
        try:
            yield kept.held
        except BaseException:  # whatever ended the work, the process may be broken
            with self._lock:
                kept.is_sound = False
            raise
        finally:
            with self._lock:
                kept.users, kept.idle_since = kept.users - 1, time.monotonic()
                if not (kept.users or kept.is_sound):
                    self._close(kept)

    def idle(self) -> list[tuple[Host, Mapping[str, float]]]:
        """Return the idle hosts and the resources that they hold, longest idle first."""
        with self._lock:
            found = sorted((kept for kept in self._kept if not kept.users), key=lambda kept: kept.idle_since)
            free = set() if self.hold_cpus else {"CPU"}
            return [(kept.host, {kind: n for kind, n in kept.takes.items() if kind not in free}) for kept in found]

    def give_back(self, host: Host) -> None:
        """Close an idle host."""
        with self._lock:
            for kept in [kept for kept in self._kept if kept.host is host and not kept.users]:
                self._close(kept)

    def keep_for(self, hosts: Iterable[Host]) -> None:
        """Close idle hosts that no coming stage can use (``hosts``: those of coming stages) or idle for too long."""
        kinds, now = {host.kind for host in hosts}, time.monotonic()
        with self._lock:
            for kept in [kept for kept in self._kept if not kept.users]:
                is_needed = self._outlive_runs or kept.host.kind in kinds
                if not is_needed or now - kept.idle_since > kept.max_idle_seconds:
                    self._close(kept)

    def close(self) -> None:
        """Close all hosts."""
        with self._lock:
            for kept in list(self._kept):
                self._close(kept)

    def _close(self, kept: _Kept) -> None:
        if kept in self._kept:
            self._kept.remove(kept)
            kept.held.close()
