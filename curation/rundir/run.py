"""Runs the stages of a run in its run directory, except those that are recorded as done.

A stage's directory is named with the digest of its inputs (``gen-0/label-pool-1f3a...``). So a changed setting writes
beside the old result, and a stage that a killed run left unfinished continues in the same directory. Each stage runs in
its own thread; Ray does its work in the cluster.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

from curation.activity import doing
from curation.cluster import news
from curation.errors import CommitError, CurationError, RunDirError, RunFailedError, UserError, describe_lance_error
from curation.json_types import Json
from curation.refs import iter_table_refs
from curation.rundir.graph import Done, Known, Outputs, Skipped, Stage, make_cache_key
from curation.rundir.hosts import HostProcess, Hosts
from curation.rundir.manifest import Manifest
from curation.rundir.status import Status, iter_statuses
from curation.stopping import Stopped, check, deferred, stopped_by
from curation.storage.lease import Guard, Lease
from curation.storage.paths import Place, to_place
from curation.tables.versions import remove_older
from curation.tasks import find_root_error
from curation.telemetry.console import is_too_quiet, say, tell_progress
from curation.telemetry.metrics import Telemetry
from curation.telemetry.standing import ProgressJournal, Standing, Update, format_speed

ROOM_SECONDS = 1.0
"""The interval for checking whether the cluster has room for more stages; also the longest delay of a signal."""
STOP_SECONDS = 20.0
"""The seconds that interrupted stages have to commit finished work, well below ``stopping.LIMIT_SECONDS``."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The argument of :meth:`Stage.run`: what a stage needs beside its own fields."""

    name: str
    directory: Place
    manifest: Manifest
    telemetry: Telemetry
    """Emits the metrics of the stage."""
    stage: Stage
    hosts: Hosts
    lease: Lease | None = None
    """The lease that the run works under."""
    standings: dict[str, Standing] = field(default_factory=dict)
    """The last progress of each stage, by name."""

    def hosted(self, start: Callable[[], HostProcess], *, max_idle_seconds: float) -> AbstractContextManager[Any]:
        """Return a context with the stage's host: one that is running, or else the one that ``start`` starts."""
        assert self.stage.host is not None, "the stage names its host"
        return self.hosts.use(self.stage.host, self.stage.takes, max_idle_seconds, start)

    @property
    def guard(self) -> Guard:
        """The function to call before each commit."""
        return self.manifest.guard

    def say(self, text: str) -> None:
        """Print a line on the terminal, after the stage's name."""
        say(f"{self.name}: {text}")

    @contextmanager
    def progress(self) -> Iterator[Update]:
        """Yield a function that receives progress updates, for the terminal and the event log at intervals."""
        journal, tell = ProgressJournal(), tell_progress(self.name)

        def update(standing: Standing) -> None:
            check()
            self.standings[self.name] = standing
            tell(standing)
            if (fields := journal.fields(standing, time.monotonic())) is not None:
                self.manifest.event("progress", stage=self.name, **fields)

        yield update


class _Working(NamedTuple):
    """A running stage."""

    stage: Stage
    thread: threading.Thread
    begun: float
    """The start of the stage, in seconds of the monotonic clock."""


class _Ended(NamedTuple):
    """A stage that has ended: its result and duration, or its error."""

    stage: Stage
    key: Json
    done: Done | None
    sealed: Json | None
    seconds: float
    error: BaseException | None


class Load(NamedTuple):
    """Resources of a cluster that a stage keeps busy."""

    shared: str | None
    """The name of a host that several stages share: together they take as much as the largest of them."""
    takes: Mapping[str, float]

    @classmethod
    def of(cls, stage: Stage) -> Self:
        """Return the load of a stage."""
        return cls(stage.host.name if stage.host is not None and stage.host.shared else None, stage.takes)


def has_room(load: Load, beside: Sequence[Load], room: Mapping[str, float]) -> bool:
    """Return whether a cluster of size ``room`` has room for a load beside others; an infinite load fits only alone."""
    for name, amount in load.takes.items():
        most, taken = room.get(name, 0.0), dict[str | int, float]()  # by host, each capped at the cluster's total
        for number, other in enumerate(beside):
            key = number if other.shared is None else other.shared
            taken[key] = max(taken.get(key, 0.0), min(other.takes.get(name, 0.0), most))
        amount = most if math.isinf(amount) else amount
        with_it = 0.0 if load.shared is None else taken.pop(load.shared, 0.0)
        if amount > with_it and amount + sum(taken.values()) > most:
            return False
    return True


class Run:
    """Runs stages in one run directory."""

    def __init__(
        self,
        name: str,
        manifest: Manifest,
        *,
        max_stages: int | None = None,
        room: Callable[[], Mapping[str, float]],
        hosts: Hosts | None = None,
        redo: str | None = None,
        lease: Lease | None = None,
    ) -> None:
        """Limit the run to ``max_stages`` at once and to ``room``, the cluster's resources by Ray's names.

        ``hosts``: The hosts of the stages; the caller closes them. ``redo``: The command that, followed by the name of
        a stage, does that stage again, or None. ``lease``: The lease that the run works under; if it is lost, the
        running stages are stopped.
        """
        self.name = name
        self.manifest = manifest
        self.directory = manifest.directory
        self._max_stages, self._room, self._redo = max_stages, room, redo
        self._hosts, self._lease = hosts or Hosts(), lease
        self._standings: dict[str, Standing] = {}
        self._stop = threading.Event()
        """An event that tells the running stages to end."""

    @deferred()
    def do(self, stages: Sequence[Stage]) -> Known:
        """Run the ordered ``stages`` that are not done; return the outputs of all, with those skipped marked so.

        Stages that do not wait for each other run side by side as far as there is room. If one fails, no other starts;
        the running ones finish and are recorded. Ctrl-C and SIGTERM interrupt all of them; the exception then says how
        much they have done.

        Raises:
            UserError: a stage raised it; it is passed on unchanged.
            RunDirError: a stage lost rows that it would not make again by itself.
            RunFailedError: any other error, with the stage, the run directory and how to resume.
        """
        known: dict[str, Outputs | Skipped] = {}
        left, working = self._settle_stages(stages, known), dict[str, _Working]()
        for status in left:
            self._refuse_broken(status)
        ended: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
        failed: Exception | None = None
        try:
            while True:
                check()
                unfinished = [*(item.stage for item in working.values()), *(status.stage for status in left)]
                self._hosts.keep_for(stage.host for stage in unfinished if stage.host is not None)
                ready = self._select_ready(left, working) if failed is None else []
                for status in ready:
                    left.remove(status)
                    name = status.stage.name
                    if status.state == "lost" and status.stage.host is not None:
                        self.manifest.redo([name])  # a model may answer differently: use another folder
                if ready:
                    self.manifest.begin({status.stage.name: make_cache_key(status.stage, known) for status in ready})
                for status in ready:
                    stage = status.stage
                    say(stage.name if status.state == "new" else f"{stage.name}: {status.words}")
                    task = partial(self._work, status, dict(known), ended)
                    working[stage.name] = _Working(stage, threading.Thread(target=task, daemon=True), time.monotonic())
                    working[stage.name].thread.start()
                if not working:
                    break
                try:
                    end = ended.get(timeout=ROOM_SECONDS)
                except queue.Empty:
                    if self._lease is not None and (loss := self._lease.loss) is not None:
                        self._stop_stages(working)
                        raise failed or self._make_failure(next(iter(working)), loss) from loss
                    if working and is_too_quiet(min(item.begun for item in working.values())):
                        now = time.monotonic()  # loading a model, for example, reports no progress
                        at_work = (f"{name} for {now - item.begun:.0f} s" for name, item in working.items())
                        say(f"at work: {', '.join(at_work)}")
                    continue
                working.pop(end.stage.name).thread.join()
                try:
                    known[end.stage.name] = self._record_stage(end)
                except Exception as error:  # whatever the error, the other running stages finish first
                    if failed is None and working:
                        say(f"{end.stage.name} failed; waiting for the running stages: {', '.join(working)}")
                    failed = failed or self._make_failure(end.stage.name, error)
                left = self._settle_stages([status.stage for status in left], known)
        except (KeyboardInterrupt, Stopped) as stopped:
            self._stop_stages(working)
            stopped.args = (self._describe_progress(stages, known, working),)
            raise
        finally:
            self._hosts.keep_for([])
        if failed is not None:
            raise failed
        assert not left, f"stages wait for nothing that runs: {[status.stage.name for status in left]}"
        return known

    def _settle_stages(self, left: Sequence[Stage], known: dict[str, Outputs | Skipped]) -> list[Status]:
        """Add to ``known`` the stages that are done or have nothing to do; return the states of the others."""
        found = iter_statuses(left, self.manifest, known)
        return [status for status in found if not status.is_settled]

    def _refuse_broken(self, status: Status) -> None:
        """Raise ``RunDirError`` if a table of a stage lost some of its rows: the stage would not make them again."""
        name = status.stage.name
        if status.state != "damaged":
            return
        broken = self.manifest.lost[name].broken
        folder = (self.directory / broken[0]).parent
        mend = f"remove {folder}: the same command then makes it again"
        if self._redo:
            mend = f"`{self._redo} {name}` makes it anew, and what depends on it"
        raise RunDirError(
            f"{self.directory}: stage {name} is damaged: {status.why}, and the rows that are left in {broken[0]} count "
            f"as done; restore the files, or {mend}"
        )

    def _select_ready(self, left: Sequence[Status], working: Mapping[str, _Working]) -> list[Status]:
        """Return the stages that can start now, beside the running ones."""
        running = [item.stage for item in working.values()]
        most = len(left) if self._max_stages is None else self._max_stages - len(running)
        can_begin = [status for status in left if status.state != "waits"]
        room = self._room() if can_begin and most > 0 else {}
        warm = {host.kind for host, _ in self._hosts.idle()} | {stage.host.kind for stage in running if stage.host}

        def sort_key(status: Status) -> tuple[bool, bool, int]:  # stages with a warm host first, then by most rows
            host = status.stage.host
            return host is None or host.kind not in warm, host is None, -(status.stage.num_rows or 0)

        ready: list[Status] = []
        for status in sorted(can_begin, key=sort_key):
            stage, beside = status.stage, [*running, *(other.stage for other in ready)]
            load, loads = Load.of(stage), [Load.of(other) for other in beside]
            if len(ready) >= most or (beside and not has_room(load, loads, room)):
                continue
            ready.append(status)
            # Idle hosts are closed until the stage fits, except those that it, or one beside it, can use: a stage that
            # has just begun may not have taken its host yet.
            kinds = {other.host.kind for other in (stage, *beside) if other.host is not None}
            others = [(host, takes) for host, takes in self._hosts.idle() if host.kind not in kinds]
            while others and not has_room(load, [*loads, *(Load(None, takes) for _, takes in others)], room):
                host, _ = others.pop(0)
                self._hosts.give_back(host)
        return ready

    def _stop_stages(self, working: Mapping[str, _Working]) -> None:
        """Stop the running stages; those that do not stop in time end with the process."""
        self._stop.set()
        until = time.monotonic() + STOP_SECONDS
        for name, item in working.items():
            item.thread.join(max(0.0, until - time.monotonic()))
            self._log_event("stopped", stage=name)

    def _describe_progress(self, stages: Sequence[Stage], known: Known, working: Mapping[str, _Working]) -> str:
        """Return in words how much work of the interrupted stages is kept."""
        parts = [f"{len(known):,} of {len(stages):,} stages are done"]
        for name in working:
            standing = self._standings.get(name)
            if standing is not None and standing.unit == "rows":
                parts.append(f"{name} has committed {standing.rows:,} of {standing.total:,} rows")
            else:
                parts.append(f"{name} goes on from what it saved last, or begins again")
        return "; ".join(parts)

    def _work(self, status: Status, known: Known, ended: "queue.SimpleQueue[_Ended]") -> None:
        """Run one stage, in its own thread."""
        stage, name, begun = status.stage, status.stage.name, time.monotonic()
        key: Json = {}
        done, sealed, error = None, None, None
        telemetry = Telemetry(run=self.name, stage=name)
        try:
            self._refuse_broken(status)
            key = make_cache_key(stage, known)
            directory = self.manifest.directory_of(name, key)
            task = Task(
                name=name,
                directory=directory,
                manifest=self.manifest,
                telemetry=telemetry,
                stage=stage,
                hosts=self._hosts,
                lease=self._lease,
                standings=self._standings,
            )
            self.manifest.event("started", stage=name, why=status.words)
            with stopped_by(self._stop), doing(f"stage {name}"):
                done = stage.do(task, known)
                sealed = self.manifest.seal(name, key, done.outputs)
        except Stopped:
            return
        except BaseException as raised:  # SystemExit of a library too
            error = raised
        finally:
            telemetry.forget()
        ended.put(_Ended(stage, key, done, sealed, time.monotonic() - begun, error))

    def _record_stage(self, end: _Ended) -> Outputs:
        """Record a stage and return its outputs, or raise its error."""
        if isinstance(end.error, Exception):
            raise end.error
        if end.done is None:
            raise RuntimeError(f"its work ended by {type(end.error).__name__}: {end.error}") from end.error
        stage, name, done, seconds = end.stage, end.stage.name, end.done, end.seconds
        how: Json = {"sealed": end.sealed, "kind": stage.kind, "at": stage.at}
        record = self.manifest.record(name, end.key, done.outputs, rows=done.rows, seconds=seconds, **how)
        folder, pinned = self.manifest.directory_of(record.name, record.inputs), self.manifest.pinned
        for ref in iter_table_refs(record.outputs):
            if ref.uri.startswith(f"{folder}/"):  # a compaction replaced its older versions, which no record names
                self.manifest.guard()
                remove_older(ref, pinned[str(to_place(ref.uri).resolve())])
        self.manifest.event("finished", stage=name, rows=done.rows, seconds=round(seconds, 3))
        rate = f", {format_speed(done.rows / seconds)} rows/s" if done.rows else ""
        work = f"{done.rows:,} rows" if done.rows else "done"
        say(f"{name}: {work} in {seconds:.1f} s{rate}")
        return record.outputs

    def _make_failure(self, name: str, error: Exception) -> Exception:
        """Return the exception that a run raises for an error of a stage."""
        if isinstance(error, UserError):
            self._log_event("failed", stage=name, error=str(error))
            return error
        self._log_event("failed", stage=name, error=f"{type(error).__name__}: {error}")
        cause = str(error) if isinstance(error, CurationError) else f"{type(error).__name__}: {error}"
        resume = "run the same command to resume"
        if self._redo:  # the damaged table may be another stage's, whose folder the error names
            home = str(self.directory).lstrip("/")  # Lance omits the first slash
            named = [known for known in self.manifest.stages if f"{home}/{known}-" in str(error)]
            damaged = max(named, key=len, default=name)
            resume += f"; if it fails again, `{self._redo} {damaged}` does that stage anew"
        if self._lease is not None and self._lease.loss is not None:
            resume = "the other driver goes on"
        elif (full := news.describe_full_store(error)) is not None:
            cause, resume = full, "run the same command to resume"
        elif (message := describe_lance_error(find_root_error(error))) is not None:  # the event keeps the original
            cause, resume = message, f"`curate verify {self.directory}` says what is damaged; else {resume}"
        failure = RunFailedError(f"stage {name} failed: {cause} (run directory {self.directory}; {resume})")
        failure.__cause__ = error
        return failure

    def _log_event(self, kind: str, **fields: object) -> None:
        """Log an event, unless another driver holds the directory and its log."""
        with suppress(CommitError):
            self.manifest.guard()
            self.manifest.event(kind, **fields)
