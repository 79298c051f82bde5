"""The lease on a run directory: one driver at a time, on whatever machine.

A lease is a small record of who has the directory and until when. It is kept in a register with conditional writes
(:mod:`curation.storage.conditional`): a write succeeds if there is no record yet, or if the record is still the one
that was read. So one of any number of drivers gets the lease. The holder renews it every third of its time to live.
Code that commits calls a guard before each commit (:data:`Guard`; that of a lease is :meth:`Lease.still_held`). A
record that was not renewed in time, or whose driver died on this machine, is taken over.

Clocks: the times of two hosts are never compared. The holder counts its time to live from before each write, by a
steady clock, which nobody sets. Another host takes the directory over only after it saw the record unchanged for that
long and ``MARGIN_SECONDS`` more, by its own steady clock. So a wall clock that is wrong, or jumps, never gives a
directory to two drivers; the record's times tell people, and drivers that wait, whether it is out of date. If a commit
hangs until after a takeover, the store refuses it, since commits are conditional too (:mod:`curation.tables.commits`).
"""

import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from curation.errors import CommitError, RunDirError
from curation.escaping import get_logger
from curation.periodic import every
from curation.storage.conditional import Register, make_register
from curation.storage.inside import require_enclosed
from curation.storage.paths import Place, Remote

logger = get_logger(__name__)

LEASE_SECONDS = 60.0
"""Time to live of a lease that is not renewed."""
MARGIN_SECONDS = 10.0
"""Time that a record is watched beyond its time to live, so that changes begun just before it ended can finish."""
WAIT_SECONDS = 1.0

Guard = Callable[[], None]
"""Function called before a permanent change; raises ``CommitError`` if this driver may no longer make changes."""


def guard_nothing() -> None:
    """Allow every change, for tables outside a run directory."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The record of a lease."""

    owner: str
    """Random identifier of the driver, drawn anew by every driver."""
    host: str
    boot: str
    """Ids of the host's boot and of the namespace of ``pid``; "" if the system does not tell."""
    pid: int
    started: str
    """Start of the process in ticks since the boot, which tells it from a later process with the same pid."""
    since: float
    """Time when the lease was taken, in seconds since 1970, as is ``expires``, which is 0 once it was given back."""
    expires: float
    counter: int
    """Number of writes."""

    @classmethod
    def parse(cls, text: str, directory: Place) -> Self:
        """Return the record in a register's text, or raise ``RunDirError``."""
        try:
            record = cls(**json.loads(text))
            float(record.expires), float(record.since), int(record.pid), int(record.counter)
            return record
        except (ValueError, TypeError) as error:
            raise RunDirError(
                f"{directory / 'lease'}: holds no lease ({error}); remove it if no driver is running"
            ) from error

    def has_ended(self) -> bool:
        """Return whether the lease was given back, or its process died on this machine."""
        here = self.boot != "" and (self.host, self.boot) == (platform.node(), _read_boot())
        return self.expires <= 0 or (here and not _is_alive(self.pid, self.started))

    def is_out_of_date(self) -> bool:
        """Return whether the lease ran out, provided that the clocks of its host and of this one agree."""
        return time.time() >= self.expires + MARGIN_SECONDS

    def __str__(self) -> str:
        since, expires = (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) for at in (self.since, self.expires))
        return f"process {self.pid} on {self.host}, since {since}, until {expires} unless renewed"


@dataclass(frozen=True, kw_only=True)
class LeaseClaim:
    """A driver's lease for its workers, which cannot renew it but see when another driver has the directory."""

    directory: Place
    owner: str

    def require(self) -> None:
        """Raise ``CommitError`` if another driver has the directory; do nothing if the register cannot be read."""
        try:
            _, record = _read_holder(make_register(self.directory / "lease"), self.directory)
        except (OSError, RunDirError):  # the driver will notice
            return
        if record is not None and record.owner != self.owner:
            raise _make_lost_error(self.directory, str(record))


class Lease:
    """A driver's hold on a run directory."""

    def __init__(self, directory: Place, *, seconds: float = LEASE_SECONDS, register: Register | None = None) -> None:
        self._directory = directory
        self._seconds = seconds
        self._watched_seconds = seconds + MARGIN_SECONDS
        self._register = register or make_register(directory / "lease")
        self._record = Holder(
            owner=uuid.uuid4().hex,
            host=platform.node(),
            boot=_read_boot(),
            pid=os.getpid(),
            started=_read_start_time(os.getpid()) or "",
            since=time.time(),
            expires=0.0,
            counter=0,
        )
        self._token: str | None = None
        self._until = self._expires = 0.0
        self._seen: tuple[str, float] | None = None
        """Token of another driver's record, and the time since which the record has been the same."""
        self._lost_to: str | None = None
        self._lock = threading.Lock()
        self._kept = ExitStack()

    def acquire(self, *, wait: bool = False) -> None:
        """Take the directory at once or, with ``wait``, when it is free; a thread renews the lease from then on.

        A record that is out of date is watched as long as a living driver would need to renew it. Else ``RunDirError``.
        """
        announced, first = "", None
        while (holder := self._take()) is not None:
            first = first or holder
            if not wait and not (holder.is_out_of_date() and holder == first):
                wrong = "; its clock or that of this machine is wrong" if holder.is_out_of_date() else ""
                raise RunDirError(
                    f"{self._directory}: another run is using it ({holder}{wrong}); wait for it (--wait) or stop it"
                )
            if holder.owner != announced:
                logger.warning(
                    "%s: %s (%s); it is taken over if %g s pass without a sign of life",
                    self._directory,
                    "the lease of another run ran out" if holder.is_out_of_date() else "waiting for another run",
                    holder,
                    self._watched_seconds,
                )
                announced = holder.owner
            time.sleep(min(WAIT_SECONDS, self._watched_seconds / 4))
        self._kept.enter_context(every(self._seconds / 3, self._renew))

    @property
    def claim(self) -> LeaseClaim:
        """The claim that workers are given."""
        return LeaseClaim(directory=self._directory.resolve(), owner=self._record.owner)

    @property
    def loss(self) -> CommitError | None:
        """Error to raise if the last renewal found that another driver has the directory; else None."""
        return None if self._lost_to is None else _make_lost_error(self._directory, self._lost_to)

    def still_held(self) -> None:
        """Check that this driver holds the lease, and renew it if it is late; raise ``CommitError`` if it was lost."""
        if self._is_late():  # perhaps nobody has taken it: the conditional write shows that
            self._renew()
        if self._token is None:
            raise _make_lost_error(self._directory, self._lost_to or "nobody")
        if self._is_late():
            raise CommitError(
                f"{self._directory}: the lease ran out and could not be renewed; run the same command again"
            )

    def require_newest(self, directory: Remote) -> None:
        """Raise ``RunDirError`` for a store that does not show the lease just written at once: tables need that."""
        try:
            found, listed = self._register.read(), [path.name for path in directory.iterdir()]
        except OSError as error:
            raise RunDirError(
                f"{directory}: the run directory cannot be read and listed ({error}); give rights to do both"
            ) from error
        is_read = found is not None and Holder.parse(found.text, directory).owner == self._record.owner
        if not is_read or "lease" not in listed:
            raise RunDirError(
                f"{directory}: the store {'lists' if is_read else 'reads'} the run directory as it was before the "
                "lease was written; use a store, or a setting of it, whose reads and listings show each write at once "
                "(docs/operations.md, object stores)"
            )

    def release(self) -> None:
        """Give the directory back."""
        self._kept.close()
        with self._lock:
            if self._token is not None:
                try:
                    self._register.put_if_match(self._advance_record(0.0), self._token)
                except OSError as error:
                    logger.warning("%s: the lease was not given back (%s); it runs out", self._directory, error)
            self._token = None

    def _take(self) -> Holder | None:
        """Take the directory; return its holder if another driver has it."""
        while True:
            begun, now = _read_steady_clock(), time.time()
            try:
                old, holder = _read_holder(self._register, self._directory)
                if holder is not None and not holder.has_ended() and not self._is_silent(old):
                    return holder
                counter = 0 if holder is None else holder.counter
                self._record = replace(self._record, since=now, expires=now, counter=counter)
                text = self._advance_record(now + self._seconds)
                is_first = holder is None
                token = self._register.put_if_absent(text) if is_first else self._register.put_if_match(text, old)
            except OSError as error:
                raise RunDirError(
                    f"{self._directory}: no lease can be written there ({error}); "
                    "give a run_dir that can be written, on a file system with hard links or in an object store"
                ) from error
            if token is not None:
                self._token, self._until, self._expires = token, begun + self._seconds, now + self._seconds
                return None

    def _is_silent(self, token: str) -> bool:
        """Return whether another driver's record has been unchanged for longer than a living driver would leave it."""
        if self._seen is None or self._seen[0] != token:
            self._seen = (token, _read_steady_clock())
        return _read_steady_clock() - self._seen[1] >= self._watched_seconds

    def _renew(self) -> None:
        with self._lock:
            if self._token is None:
                return
            begun, now = _read_steady_clock(), time.time()
            try:
                token = self._register.put_if_match(self._advance_record(now + self._seconds), self._token)
                if token is None:
                    newest, holder = _read_holder(self._register, self._directory)
                    if holder is not None and holder.owner == self._record.owner:  # our own write, its answer was lost
                        token = self._register.put_if_match(self._advance_record(now + self._seconds), newest)
                    self._lost_to = None if token is not None else str(holder or "nobody")
            except OSError as error:  # the thread tries again, and the guard before a commit
                logger.warning("%s: the lease was not renewed (%s)", self._directory, error)
                return
            self._token = token
            if token is not None:
                self._until, self._expires = begun + self._seconds, now + self._seconds

    def _is_late(self) -> bool:
        """Return whether the lease ran out by the steady clock, which a paused machine stops, or by the wall clock."""
        return _read_steady_clock() >= self._until or time.time() >= self._expires

    def _advance_record(self, expires: float) -> str:
        self._record = replace(self._record, expires=expires, counter=self._record.counter + 1)
        return json.dumps(asdict(self._record))


@contextmanager
def hold(directory: Place, *, wait: bool = False, seconds: float = LEASE_SECONDS) -> Iterator[Lease]:
    """Hold the lease on a run directory; ``RunDirError`` if another driver has it, or it cannot safely be written."""
    require_enclosed(directory)
    lease = Lease(directory, seconds=seconds)
    lease.acquire(wait=wait)
    try:
        if isinstance(directory, Remote):
            lease.require_newest(directory)
        yield lease
    finally:
        lease.release()


def find_holder(directory: Place) -> Holder | None:
    """Return the holder of a run directory, provided that the hosts' clocks agree; None if no driver has it."""
    _, record = _read_holder(make_register(directory / "lease"), directory)
    return None if record is None or record.has_ended() or record.is_out_of_date() else record


def _read_holder(register: Register, directory: Place) -> tuple[str, Holder | None]:
    """Return the token and the record of a register; "" and None if nothing was written yet."""
    found = register.read()
    return ("", None) if found is None else (found.token, Holder.parse(found.text, directory))


def _make_lost_error(directory: Place, holder: str) -> CommitError:
    return CommitError(f"{directory}: the lease was lost to {holder}; this driver commits nothing more")


def _read_steady_clock() -> float:
    """Return seconds of a clock that nobody sets and that, if the system has such a clock, runs during sleep."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _read_boot() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _read_start_time(pid: int) -> str | None:
    """Return the start of a process in ticks since the boot; "" for a zombie, None if it cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]


def _is_alive(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _read_start_time(pid) in (started, None)
