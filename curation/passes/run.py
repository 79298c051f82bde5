"""One pass of a model over a table of examples: chunks in, written fragments out, every row exactly once.

Progress is reported at each commit, and by a thread every few seconds, since the driver itself may wait long for a
chunk or for the store.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Unpack

import pyarrow as pa

from curation.arrays import Bools, Int64s
from curation.cluster import nodes
from curation.config import AskConfig
from curation.errors import CommitError
from curation.escaping import get_logger
from curation.heavy import ray
from curation.json_types import Json
from curation.passes.cutting import OpenRows
from curation.passes.dataset import ModelDataset
from curation.passes.job import ChunkSpent, Job, PassOptions, PassResult
from curation.passes.messages import Look
from curation.passes.poison import PoisonSuspects
from curation.periodic import every
from curation.registry import BACKENDS
from curation.storage.lease import guard_nothing
from curation.tables import commits, io
from curation.tables.compaction import compact
from curation.tables.stream import WrittenFragment, commit_stream
from curation.tasks import make_driver_error
from curation.telemetry import metrics
from curation.telemetry.metrics import Telemetry
from curation.telemetry.standing import Actors, Spent, Standing, Update, Work

TELL_SECONDS = 2.0
NOBODY = Look(actors=Actors(running=0, pending=0, restarting=0, deaths=0))

logger = get_logger(__name__)


def run_pass(
    job: Job, *, name: str, uri: str, schema: pa.Schema, takes: Callable[[Int64s], Bools], **how: Unpack[PassOptions]
) -> PassResult:
    """Run ``job`` by a dataset's actors for each example that ``takes`` (a mask of ids) marks and ``uri`` lacks.

    Raises:
        RunFailedError: an actor kept dying without any work done.
        CommitError: the store refused a commit, or the numbers of rows in and out differ.
    """
    io.create(uri, schema)
    guard, fragment_mb = how.get("guard", guard_nothing), how.get("fragment_mb")
    committer = commits.Committer(uri, guard, fragment_mb)
    rows = OpenRows(job.examples, takes, committer.done)
    total, num_left = rows.requested, rows.left
    suspects = PoisonSuspects(uri)
    begun = time.monotonic()
    tally = Tally(uri, done=len(committer.done), total=total, telemetry=job.telemetry, update=how.get("progress"))
    with ExitStack() as stack:
        if num_left:
            dataset: ModelDataset = how.get("dataset") or stack.enter_context(closing(make_dataset(job.teacher)))
            try:
                versions = nodes.make_versions_question()()
                running = stack.enter_context(dataset.passing(job, versions, rows, suspects.read()))

                def look() -> Look:
                    found = running.look()
                    suspects.keep(found.suspects)
                    return found

                stack.enter_context(tally.telling(look))
                commit_stream(
                    running,
                    [committer],
                    seconds=how["commit_seconds"],
                    guard=guard,
                    fragment_mb=fragment_mb,
                    on_commit=tally.committed,
                    on_written=tally.wrote,
                    rest=running.rest,
                )
            except ray.exceptions.RayError as error:
                raise make_driver_error(error, name) from error
        else:
            with tally.telling(lambda: NOBODY):
                pass
    ref, known = io.find_latest(uri), len(committer.done)
    if not known == (num_rows := io.count(ref)) == total:
        raise CommitError(f"{uri}: {total} rows in, {num_rows} rows out ({known} ids known to this driver)")
    suspects.forget()
    seconds = time.monotonic() - begun
    return PassResult(
        table=ref if fragment_mb is None else compact(ref, fragment_mb, guard=guard),
        rows=num_left,
        seconds=seconds,
        deaths=tally.deaths,
        teachers=tally.teachers,
        spent=tally.spent,
        of_chunks=tally.of_chunks,
        clipped_values=tally.clipped_values,
    )


def make_dataset(asked: AskConfig, *, name: str = "model", hold_cpus: bool = True) -> ModelDataset:
    """Return a dataset for the model ``name``, with actors as configured by ``asked``."""
    of_nodes = [node["Resources"].get("CPU", 0) for node in nodes.list_living()]
    actors = asked.actors
    cpus = actors.cpus(asked.backend, of_nodes)
    if not hold_cpus:  # Ray would start more actors than there is room for
        most = max(1, min(actors.max, int(sum(of_nodes) // cpus)))
        least = {name: min(most, value) for name in ("min", "initial") if (value := getattr(actors, name)) is not None}
        actors = actors.model_copy(update={"max": most, **least})
    return ModelDataset(actors, name=name, num_cpus=cpus, num_calls=BACKENDS[asked.backend].calls, hold_cpus=hold_cpus)


class Tally:
    """A counter of a pass's rows written and committed to one table, which reports to ``update`` and the metrics."""

    def __init__(self, uri: str, *, done: int, total: int, telemetry: Telemetry, update: Update | None) -> None:
        """Begin with ``done`` of ``total`` rows committed."""
        self.teachers: list[Json] = []
        self.deaths = 0  # number of processes that died in a chunk that was written later
        self.clipped_values = 0
        self.of_chunks: list[ChunkSpent] = []
        self.spent = Spent()  # total cost, always replaced as a whole, since other threads read it
        self._uri, self._telemetry, self._update = uri, telemetry, update
        self._look: Callable[[], Look] = lambda: NOBODY
        self._deaths_before = 0
        self._done, self._rows, self._total, self._told_deaths = done, done, total, 0
        self._errors: Counter[str] = Counter()
        self._unstarted: set[str] = set()
        self._oldest: float | None = None
        self._last_commit = time.monotonic()
        self._lock = threading.Lock()

    @contextmanager
    def telling(self, look: Callable[[], Look]) -> Iterator[None]:
        """Report the progress that ``look`` returns within the context."""
        self._look, self._deaths_before = look, look().actors.deaths
        self._tell()
        try:
            with every(TELL_SECONDS, self._tell):
                yield
        finally:
            self._tell()
            self._tell_actors(NOBODY.actors)  # Ray ends them after this
            self._telemetry.forget()

    def wrote(self, written: WrittenFragment) -> None:
        """Record a written fragment, if it belongs to this table."""
        if written.uri != self._uri:
            return
        note = written.note
        self.teachers += [note["teacher"]] if "teacher" in note else []
        self.deaths += note.get("deaths", 0)
        self.clipped_values += note.get("clipped", 0)
        used = note.get("spent", {})
        prompt, output = used.get("tokens", (0, 0))
        if used:
            self.of_chunks.append(ChunkSpent(used["actor"], used["seconds"], written.num_rows, prompt, output))
        with self._lock:
            self.spent = self.spent.plus(Spent(prompt_tokens=prompt, output_tokens=output, chunks=1))
            self._errors.update(note.get("errors", {}))
            self._oldest = written.time if self._oldest is None else min(written.time, self._oldest)

    def committed(self, rows_of: Mapping[str, int]) -> None:
        """Record that all fragments that have arrived are committed."""
        with self._lock:
            rows = self._done + rows_of.get(self._uri, 0)
            if rows > self._rows:
                self.spent = self.spent.plus(Spent(commits=1))
                self._telemetry.add(metrics.ROWS_COMMITTED, rows - self._rows)
                self._last_commit = time.monotonic()
            self._rows, self._oldest = rows, None
        self._tell()

    def _tell(self) -> None:
        try:
            look = self._look()
            with self._lock:
                for words in set(look.unstarted) - self._unstarted:
                    logger.warning("%s", words)
                self._unstarted |= {*look.unstarted}
                standing = self._make_standing(look)
                if self._update is not None:
                    self._update(standing)
        except (OSError, RuntimeError, ray.exceptions.RayError) as error:  # a full disk ends the stage elsewhere
            logger.warning("progress could not be reported: %s", error)

    def _make_standing(self, look: Look) -> Standing:
        actors = replace(look.actors, deaths=look.actors.deaths - self._deaths_before)
        self.spent = replace(self.spent, actor_seconds=round(look.actor_seconds, 3))
        work = Work(
            actors=actors,
            chunks_left=look.chunks_left,
            chunks_in_flight=look.chunks_in_flight,
            errors=dict(self._errors),
            lag_seconds=0.0 if self._oldest is None else round(max(0.0, time.time() - self._oldest), 1),
            commit_age_seconds=round(time.monotonic() - self._last_commit, 1),
            spent=self.spent,
        )
        self._tell_actors(actors)
        self._telemetry.add(metrics.ACTOR_DEATHS, actors.deaths - self._told_deaths)
        self._told_deaths = max(self._told_deaths, actors.deaths)  # another thread may have read later ones
        self._telemetry.set(metrics.ROWS_LEFT, self._total - self._rows)
        self._telemetry.set(metrics.COMMIT_LAG_SECONDS, work.lag_seconds)
        answered = max(self._rows, self._done + look.answered)
        return Standing(rows=self._rows, total=self._total, work=work, answered=answered, note=look.pause)

    def _tell_actors(self, actors: Actors) -> None:
        for state in ("running", "pending", "restarting"):
            self._telemetry.set(metrics.ACTORS, getattr(actors, state), state=state)
