"""The signal stage, which measures a number per row in a further pass over rows with a weak label, each exactly once.

Values that the labelling actors already measured (``LabelJob.asks``) are in the same table and are kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Unpack

import numpy as np
import pyarrow as pa

from curation.arrays import Int64s
from curation.config import DomainConfig, RewardConfig
from curation.domains import get_domain
from curation.errors import RunFailedError
from curation.json_types import Json
from curation.passes.job import ChunkWorker, PassOptions, PassResult, Row, TeacherJob, count_errors
from curation.passes.models import Models
from curation.passes.run import run_pass
from curation.refs import TableRef
from curation.rundir.graph import Done, In, setting
from curation.rundir.run import Task
from curation.signals import Weak, get_signal
from curation.signals.measure import Row as SignalRow
from curation.signals.measure import compute_rewards, measure
from curation.stages.asking import AskModel
from curation.stages.asks import Ask, Values, ask_of
from curation.storage.paths import to_place
from curation.tables import io, schemas


class MeasureSignal(AskModel):
    """A stage that measures a signal of each row with a weak label, unless the labelling actors already did.

    If no row gives a readable value, arms that rank by the signal drop out (:mod:`curation.stages.select`).

    Raises:
        RunFailedError: no row gives a readable value, and an arm that ranks by the signal is required.
    """

    class Made(NamedTuple):
        """The outputs."""

        signal: TableRef
        """The values (``schemas.SIGNAL``)."""
        num_unread: int
        pass_: Json
        """The record of the pass."""

    signal: str
    """The name or code by which ``curation.signals.get_signal`` finds the signal."""
    seed: int
    options: Json
    """The arguments of the signal's class."""
    shots: In[TableRef | None]
    """The demonstrations of a signal that shows some."""
    examples: In[TableRef]
    labels: In[TableRef]
    domain: DomainConfig
    reward: RewardConfig | None
    beside_labels: bool = setting()
    """Whether the labelling actors may have measured the signal and written it next to their labels."""
    required: Mapping[str, str] = setting(default_factory=dict)
    """Arms that rank by the signal and may not drop out, each with the configuration key that requires it."""

    def run(self, task: Task) -> Done:
        """Measure the signal."""
        # A model of its own writes beside other records of its stage.
        directory = to_place(self.labels.uri).parent if self.beside_labels else task.directory
        job = SignalJob(
            ask=ask_of(
                self.signal,
                seed=self.seed,
                options=self.options,
                shots=self.shots,
                directory=directory,
                attempts=task.manifest.attempts.get(self.name, 0),
            ),
            examples=self.examples,
            labels=self.labels,
            domain=self.domain,
            reward=self.reward,
            **self.teacher_fields(task),
        )
        parsed = io.read(self.labels, columns=["row_id"], filter="label IS NOT NULL AND error IS NULL")
        table, record = measure_table(self, task, job, parsed["row_id"].to_numpy())
        num_rows, num_read = io.count(table), io.count(table, filter="value IS NOT NULL")
        for arm, key in self.required.items() if num_rows and not num_read else ():
            raise make_missed_error(arm, key, describe_unread(num_rows))
        return Done(outputs=self.Made(signal=table, num_unread=num_rows - num_read, pass_=record), rows=num_rows)


def describe_unread(num_rows: int) -> str:
    """Return the reason why no arm can rank by a signal."""
    return f"none of {num_rows:,} rows gave a value that can be read"


def make_missed_error(arm: str, key: str, why: str) -> RunFailedError:
    """Return the error for an arm that cannot be measured although the configuration's ``key`` requires it."""
    return RunFailedError(
        f"the arm {arm} cannot be measured: {why}; {key} names it: look at the model and its answers, or take it out "
        f"of {key}" + (", and the run goes on without the arm" if key.endswith("required") else "")
    )


@dataclass(frozen=True, kw_only=True)
class SignalJob(TeacherJob):
    """A job that computes a signal of rows that have a weak label.

    ``decoding`` is that of the labelling pass or, for a judge, its own.
    """

    ask: Ask
    labels: TableRef
    """The labels of the examples; rows with a labelling error are skipped."""
    reward: RewardConfig | None = None
    """The reward model, if it has a head of its own and is thus no teacher."""
    gold: TableRef | None = None
    """Gold labels of the examples, for a judge."""

    def worker(self, models: Models) -> "ChunkWorker[MeasuredValues]":
        """Return the worker that measures the job's chunks in a process."""
        if self.reward is None or self.reward.kind == "verifier":
            return _SignalWorker(self, models)
        return _RewardWorker(self, models)


class MeasuredValues(NamedTuple):
    """Results of measuring some rows."""

    values: Values
    errors: Mapping[int, str]


class _ValueWorker(ChunkWorker[MeasuredValues]):
    """A base class of the workers for signals and for rewards."""

    def __init__(self, job: SignalJob) -> None:
        self._job = job
        self._domain = get_domain(job.domain)
        self._labels = io.Lookup(job.labels)
        self._gold = None if job.gold is None else io.Lookup(job.gold)

    def _take_weak(self, rows: list[Row]) -> list[SignalRow]:
        """Return the rows with their weak labels and, for a judge, their gold labels."""
        ids_N = np.array([row["row_id"] for row in rows], dtype=np.int64)
        weak = self._labels.take(ids_N, ["label", "completion"]).to_pylist()
        if self._gold is not None:
            golds = self._gold.take(ids_N, ["gold"])["gold"].to_pylist()
            rows = [row | {"gold": gold} for row, gold in zip(rows, golds, strict=True)]
        return [(row["row_id"], row, Weak(**given)) for row, given in zip(rows, weak, strict=True)]

    def give_up(self, rows: list[Row], error: str) -> MeasuredValues:
        """Return an error for each row, and no values."""
        return MeasuredValues({}, {row["row_id"]: error for row in rows})

    def write(self, parts: list[MeasuredValues], note: Json) -> pa.Table:
        """Write one fragment; return its row of ``commits.WRITTEN``."""
        values = {row_id: value for part in parts for row_id, value in part.values.items()}
        errors = {row_id: error for part in parts for row_id, error in part.errors.items()}
        return self._job.ask.write(values, errors, note=note | count_errors(self._job.telemetry, errors.values()))


class _SignalWorker(_ValueWorker):
    """A worker that asks a teacher."""

    def __init__(self, job: SignalJob, models: Models) -> None:
        super().__init__(job)
        self._signal = get_signal(job.ask.signal, **job.ask.options)
        self.meter = self._teacher = job.load(models)

    def work(self, rows: list[Row]) -> MeasuredValues:
        """Return the signal's values of rows."""
        job = self._job
        values = measure(
            self._signal,
            self._domain,
            self._teacher,
            self._take_weak(rows),
            job.decoding,
            seed=job.ask.seed,
            on_batch=self.alive,
        )
        return MeasuredValues(values, {})


class _RewardWorker(_ValueWorker):
    """A worker that asks a reward model with a head of its own."""

    def __init__(self, job: SignalJob, models: Models) -> None:
        super().__init__(job)
        assert job.model is not None and job.reward is not None, "a reward model has weights"
        self._reward = models.reward(
            job.model,
            device="cuda" if job.teacher.actors.num_gpus else "cpu",
            dtype=job.teacher.dtype,
            batch_tokens=job.teacher.batch_tokens,
        )

    def work(self, rows: list[Row]) -> MeasuredValues:
        """Return the rewards of rows."""
        return MeasuredValues(compute_rewards(self._reward, self._domain, self._take_weak(rows)), {})


def measure_signal(
    job: SignalJob,
    row_ids_N: Int64s,
    **how: Unpack[PassOptions],
) -> PassResult:
    """Measure the rows that are not measured yet, and commit values as they come (schema ``schemas.SIGNAL``).

    Raises:
        RunFailedError: an actor kept dying without completing any work.
        CommitError: the store refused, or rows in and rows out differ.
    """
    wanted_M = np.sort(row_ids_N)
    return run_pass(
        job,
        name=f"the signal {job.ask.signal}",
        uri=job.ask.uri,
        schema=schemas.SIGNAL,
        takes=lambda ids_N: np.searchsorted(wanted_M, ids_N, side="right") > np.searchsorted(wanted_M, ids_N),
        **how,
    )


def measure_table(stage: AskModel, task: Task, job: SignalJob, row_ids_N: Int64s) -> tuple[TableRef, Json]:
    """Measure a stage's signal; return the table of values and the record of the pass."""
    with stage.teacher.passing(task, stage.commit_seconds, stage.fragment_mb) as (engine, how):
        result = measure_signal(replace(job, engine=engine), row_ids_N, **how)
    return result.table, stage.teacher.record(result)
