"""The progress of a stage: rows done, the state of a pass's actors, speed and time left.

Progress is shown on the terminal and written to ``events.jsonl``, from which ``curate status`` reads it. A worker in
another process writes its progress to a file (:func:`note_progress`), which the driver reads.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Self

from curation.json_types import Json, JsonView
from curation.periodic import every
from curation.storage.paths import Place, Remote, write_atomically

PACE_SECONDS = 120.0  # length of the time window for the speed in rows/s, in seconds
KNOWN_LOOKS, KNOWN_ROWS, KNOWN_SECONDS = 4, 10, 20.0
"""Minimum numbers of updates and rows, and minimum window in seconds, for an estimate of the time left."""
EVENT_SECONDS = 3.0  # initial interval between two progress events, in seconds
MAX_EVENT_SECONDS = 60.0
"""Interval between two progress events after 100 minutes, in seconds; a day adds less than a megabyte of events."""


@dataclass(frozen=True, kw_only=True)
class Actors:
    """The number of a pass's actors by state, and how many of their processes died in this run of the pass."""

    running: int
    pending: int
    restarting: int
    deaths: int


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Amounts that one driver has used for a pass so far."""

    actor_seconds: float = 0.0  # total lifetime of the pass's actors in seconds, including the start of their models
    prompt_tokens: int = 0  # number of tokens read by the teacher, including those for signals and for repeated rows
    output_tokens: int = 0
    chunks: int = 0  # number of chunks, each of which is a fragment of the table
    commits: int = 0

    def plus(self, other: "Spent") -> "Spent":
        """Return the sum of both amounts."""
        return Spent(**{name: value + getattr(other, name) for name, value in asdict(self).items()})


@dataclass(frozen=True, kw_only=True)
class Work:
    """The state of a pass of actors."""

    actors: Actors
    chunks_left: int  # the number of chunks not yet written
    chunks_in_flight: int  # the number of chunks left that the running actors can hold at once
    errors: Mapping[str, int]  # the number of error rows that this run of the pass wrote, by kind
    lag_seconds: float  # the age of the oldest row that is written but not committed; 0 if there is none
    commit_age_seconds: float  # the time since the last commit, or since the pass began
    spent: Spent = Spent()

    @classmethod
    def from_json(cls, value: JsonView) -> Self:
        """Return the state that an event holds in ``work``, as ``dataclasses.asdict`` wrote it."""
        return cls(**{**value, "actors": Actors(**value["actors"]), "spent": Spent(**value["spent"])})

    def brief(self) -> str:
        """Return the number of running actors and the problems of a pass, in few words."""
        running, num_errors = self.actors.running, sum(self.errors.values())
        text = [f"{running:,} actor{'' if running == 1 else 's'}", *self._list_others("waiting")]
        return ", ".join([*text, f"{num_errors:,} error rows"] if num_errors else text)

    def words(self) -> str:
        """Return the full state of a pass in words, for a line of ``curate status``."""
        text = ["actors: " + ", ".join([f"{self.actors.running:,} running", *self._list_others("pending")])]
        text.append(f"{self.chunks_left:,} chunks left ({self.chunks_in_flight:,} in flight)")
        if self.errors:
            most = sorted(self.errors.items(), key=lambda item: -item[1])
            text.append("error rows: " + ", ".join(f"{kind} {count:,}" for kind, count in most))
        text.append(f"last commit {self.commit_age_seconds:.0f} s ago, oldest row waits {self.lag_seconds:.0f} s")
        return "; ".join(text)

    def _list_others(self, pending: str) -> list[str]:
        counts = {pending: self.actors.pending, "restarting": self.actors.restarting, "died": self.actors.deaths}
        return [f"{count:,} {state}" for state, count in counts.items() if count]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The progress of a stage: rows done, rows in all, and the state of its actors, if any."""

    rows: int
    total: int
    work: Work | None = None
    unit: str = "rows"  # the unit that ``rows`` and ``total`` count
    answered: int | None = None  # number of rows done, including rows that are not committed yet; None means ``rows``
    note: str = ""  # quality of the work so far, such as the validation AUC of a fit, or what the stage waits for

    @property
    def reached(self) -> int:
        """Number of rows done, by which progress and speed are computed."""
        return self.rows if self.answered is None else self.answered

    def words(self, rows_per_second: float | None, seconds_left: float | None = None) -> str:
        """Return rows done and, if known, speed and time left (:meth:`left`), for a terminal."""
        share = f" ({100 * self.reached / self.total:.0f} %)" if self.total else ""
        text = f"{self.reached:,} of {self.total:,} {self.unit}{share}"
        if rows_per_second is not None:
            text += f", {format_speed(rows_per_second)} {self.unit}/s"
        if seconds_left is not None:
            minutes = round(seconds_left / 60)
            time_left = f"{minutes} min" if minutes < 120 else f"{minutes // 60:,} h {minutes % 60} min"
            text += f", about {f'{seconds_left:.0f} s' if seconds_left < 120 else time_left} left"
        return f"{text}; {self.note}" if self.note else text

    def left(self, pace: "Pace") -> float | None:
        """Return the seconds left; None if the stage is idle or too little is done to tell."""
        is_at_work = self.work is None or self.work.actors.running > 0
        if not is_at_work or not pace.is_known or (rows_per_second := pace.rows_per_second) is None:
            return None
        return (self.total - self.reached) / rows_per_second


def format_speed(rows_per_second: float) -> str:
    """Return a speed as text, with two digits below 10 rows/s, so that a slow model does not show 0 rows/s."""
    return f"{rows_per_second:,.0f}" if rows_per_second >= 9.95 else f"{rows_per_second:.2g}"


Update = Callable[[Standing], None]  # function that receives progress updates of a stage


class Pace:
    """A speed meter in rows/s over the last ``PACE_SECONDS``, because rows arrive in bursts."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, seconds: float, rows: int) -> None:
        """Record the number of rows done at a time in seconds."""
        self._seen.append((seconds, rows))
        while len(self._seen) > 2 and self._seen[1][0] <= seconds - PACE_SECONDS:
            self._seen.popleft()

    def _measure(self) -> tuple[float, int]:
        """Return the seconds of the window, and the rows that were done in it; zeros before the first update."""
        (begun, before), (now, rows) = (self._seen[0], self._seen[-1]) if self._seen else ((0.0, 0), (0.0, 0))
        return now - begun, rows - before

    @property
    def rows_per_second(self) -> float | None:
        """The speed in the window; None if no rows were done in it."""
        seconds, rows = self._measure()
        return rows / seconds if seconds > 0 and rows > 0 else None

    @property
    def is_known(self) -> bool:
        """Whether enough looks, rows and seconds are in the window for an estimate of the time left."""
        seconds, rows = self._measure()
        return len(self._seen) >= KNOWN_LOOKS and rows >= KNOWN_ROWS and seconds >= KNOWN_SECONDS


class ProgressJournal:
    """A filter of a stage's progress updates, which decides which become events and with which fields."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._begun: float | None = None
        self._due = 0.0
        self._is_finished = False

    def fields(self, standing: Standing, now: float) -> Json | None:
        """Return the fields of an event, or None soon after the last one. The first and last update always give one."""
        self._pace.add(now, standing.reached)
        self._begun = now if self._begun is None else self._begun
        was_finished, self._is_finished = self._is_finished, standing.rows >= standing.total
        if now < self._due and was_finished == self._is_finished:
            return None
        self._due = now + min(MAX_EVENT_SECONDS, max(EVENT_SECONDS, (now - self._begun) / 100))
        fields: Json = {"rows": standing.rows, "total": standing.total}
        if (pace := self._pace.rows_per_second) is not None:
            fields |= {"rows_per_second": float(f"{pace:.4g}")}
            if (left := standing.left(self._pace)) is not None:
                fields |= {"seconds_left": round(left, 1)}
        if standing.answered is not None:
            fields["answered"] = standing.answered
        fields |= {"unit": standing.unit} if standing.unit != "rows" else {}
        fields |= {"note": standing.note} if standing.note else {}
        return fields | ({} if standing.work is None else {"work": asdict(standing.work)})


def note_progress(path: Place, done: int, total: int, words: str = "") -> None:
    """Write a worker's progress to a file, with ``words`` on the quality of its work so far."""
    write_atomically(path, json.dumps([done, total, words]))


@contextmanager
def follow_progress(path: Place, update: Update, unit: str = "rows") -> Iterator[None]:
    """Read progress from a file, at first removed, and pass it to ``update`` repeatedly while the context lasts."""
    with suppress(OSError):
        path.unlink(missing_ok=True)

    def look() -> None:
        with suppress(OSError):  # no progress yet, or the store is unreachable
            done, total, words = json.loads(path.read_text())
            update(Standing(rows=done, total=total, unit=unit, note=words))

    with every(5.0 if isinstance(path, Remote) else 0.5, look):
        yield
    look()
