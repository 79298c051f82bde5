"""Reports of a running pass's progress, as the driver sees it.

Progress is reported at each commit, and by a thread every few seconds, since the driver itself may wait long for a
chunk or for the store.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from curation.escaping import get_logger
from curation.heavy import ray
from curation.json_types import Json
from curation.passes.messages import Look
from curation.periodic import every
from curation.tables.stream import CommitRound, WrittenFragment
from curation.telemetry import metrics
from curation.telemetry.metrics import Telemetry
from curation.telemetry.standing import Actors, Spent, Standing, Update, Work

TELL_SECONDS = 2.0
NOBODY = Look(actors=Actors(running=0, pending=0, restarting=0, deaths=0))
"""Progress of a pass without any actors."""

logger = get_logger(__name__)


class ChunkSpent(NamedTuple):
    """Cost of one chunk."""

    actor: str
    """Ray's id of the actor that worked on it."""
    seconds: float
    """The chunk's share of that actor's time, without the start of a model."""
    rows: int
    prompt_tokens: int
    output_tokens: int
    slots: int | None = None
    """Number of rows that the actor's model answers concurrently."""


class Tally:
    """A counter of a pass's rows written and committed to one table, which reports to ``update`` and the metrics."""

    def __init__(self, uri: str, *, done: int, total: int, telemetry: Telemetry, update: Update | None) -> None:
        """Begin with ``done`` of ``total`` rows committed."""
        self.teachers: list[Json] = []
        """``Teacher.facts`` of each start of a teacher."""
        self.deaths = 0
        """Number of processes that died in a chunk that was written later."""
        self.clipped_values = 0
        """Number of values of hidden states that were clipped to float16's largest one."""
        self._uri, self._telemetry, self._update = uri, telemetry, update
        self.of_chunks: list[ChunkSpent] = []
        """Cost of each chunk, in order of arrival."""
        self.spent = Spent()
        """Total cost, always replaced as a whole, since other threads read it."""
        self._look: Callable[[], Look] = lambda: NOBODY
        self._deaths_before = 0
        self._done, self._rows, self._total, self._told_deaths = done, done, total, 0
        self._errors: Counter[str] = Counter()
        self._unstarted: set[str] = set()
        """Messages on failed starts of a model that were logged."""
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
        self.teachers += [written.note["teacher"]] if "teacher" in written.note else []
        self.deaths += written.note.get("deaths", 0)
        self.clipped_values += written.note.get("clipped", 0)
        used = written.note.get("spent", {})
        prompt, output = used.get("tokens", (0, 0))
        if used:
            self.of_chunks.append(
                ChunkSpent(used["actor"], used["seconds"], written.num_rows, prompt, output, used.get("slots"))
            )
        with self._lock:
            self.spent = self.spent.plus(Spent(prompt_tokens=prompt, output_tokens=output, chunks=1))
            self._errors.update(written.note.get("errors", {}))
            self._oldest = written.time if self._oldest is None else min(written.time, self._oldest)

    def committed(self, done: CommitRound) -> None:
        """Record that all fragments that have arrived are committed."""
        with self._lock:
            rows = self._done + done.rows.get(self._uri, 0)
            if rows > self._rows:
                self.spent = self.spent.plus(Spent(commits=1))
                self._telemetry.add(metrics.ROWS_COMMITTED, rows - self._rows)
                self._telemetry.observe(metrics.COMMIT_SECONDS, done.seconds)
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
        except (OSError, RuntimeError, ray.exceptions.RayError) as error:  # a full disk is said by what needs it
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
        telemetry = self._telemetry
        telemetry.add(metrics.ACTOR_DEATHS, actors.deaths - self._told_deaths)
        self._told_deaths = max(self._told_deaths, actors.deaths)  # another thread may have read later ones
        telemetry.set(metrics.ROWS_LEFT, self._total - self._rows)
        telemetry.set(metrics.CHUNKS_LEFT, work.chunks_left)
        telemetry.set(metrics.COMMIT_LAG_SECONDS, work.lag_seconds)
        answered = max(self._rows, self._done + look.answered)
        return Standing(rows=self._rows, total=self._total, work=work, answered=answered, note=look.pause)

    def _tell_actors(self, actors: Actors) -> None:
        for state in ("running", "pending", "restarting"):
            self._telemetry.set(metrics.ACTORS, getattr(actors, state), state=state)
