"""What outlives a stage because a later one needs it again: actors with a model loaded, processes that train."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol


class Held(Protocol):
    """What is kept."""

    def close(self) -> None:
        """Give back what it takes of the cluster."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """What a stage works by, of which one start serves several stages."""

    name: str
    """Stages of the same name may share one at the same time, where it is ``shared``."""
    kind: str
    """One that is idle serves any stage of the same kind; equal names have equal kinds."""
    shared: bool


@dataclass(eq=False)
class _Kept:
    host: Host
    takes: Mapping[str, float]
    max_idle_seconds: float
    held: Any
    is_sound: bool = True
    users: int = 0
    idle_since: float = field(default_factory=time.monotonic)


class Hosts:
    """The hosts of a run, started when they are first needed."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        self._lock = threading.RLock()

    @contextmanager
    def use(
        self, host: Host, takes: Mapping[str, float], max_idle_seconds: float, start: Callable[[], Held]
    ) -> Iterator[Any]:
        """One that serves ``host``, started by ``start`` where none does; it is kept afterwards.

        After an error it serves nobody anew, and is closed once the others that use it are through.
        """
        with self._lock:
            kept = self._found(host)
            if kept is None:
                kept = _Kept(host, takes, max_idle_seconds, start())
                self._kept.append(kept)
            kept.host, kept.users = host, kept.users + 1
            kept.takes = {name: max(kept.takes.get(name, 0), takes.get(name, 0)) for name in {*kept.takes, *takes}}
        try:
            yield kept.held
        except BaseException:
            with self._lock:
                kept.is_sound = False
            raise
        finally:
            with self._lock:
                kept.users, kept.idle_since = kept.users - 1, time.monotonic()
                if not (kept.users or kept.is_sound):
                    self._close(kept)

    def idle(self) -> list[tuple[Host, Mapping[str, float]]]:
        """Those that nobody uses, and what they take, the one that is idle longest first."""
        with self._lock:
            found = sorted((kept for kept in self._kept if not kept.users), key=lambda kept: kept.idle_since)
            return [(kept.host, kept.takes) for kept in found]

    def give_back(self, host: Host) -> None:
        """Close an idle one."""
        with self._lock:
            for kept in [kept for kept in self._kept if kept.host is host and not kept.users]:
                self._close(kept)

    def keep_for(self, hosts: Iterable[Host]) -> None:
        """Close those that are idle for too long, or that none of the coming stages, by ``hosts``, can use."""
        kinds, now = {host.kind for host in hosts}, time.monotonic()
        with self._lock:
            for kept in [kept for kept in self._kept if not kept.users]:
                if kept.host.kind not in kinds or now - kept.idle_since > kept.max_idle_seconds:
                    self._close(kept)

    def close(self) -> None:
        """Close all."""
        with self._lock:
            for kept in list(self._kept):
                self._close(kept)

    def _found(self, host: Host) -> _Kept | None:
        sound = [kept for kept in self._kept if kept.is_sound]
        same = [kept for kept in sound if kept.host.name == host.name and (host.shared or not kept.users)]
        idle = [kept for kept in sound if kept.host.kind == host.kind and not kept.users]
        return next(iter([*same, *idle]), None)

    def _close(self, kept: _Kept) -> None:
        if kept in self._kept:
            self._kept.remove(kept)
            kept.held.close()
