"""Stages that ask a model for a number about each weak label, exactly once: signals, and the verdicts of a judge.

Values of a signal that the labelling actors already measured (``LabelJob.asks``) are in the same table, and are kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Unpack

import numpy as np
import pyarrow as pa

from curation.arrays import Int64s
from curation.config import DomainConfig, RewardConfig
from curation.domains import get_domain
from curation.errors import RunFailedError
from curation.json_types import Json
from curation.passes.job import Job, Models, PassOptions, PassResult, Row
from curation.passes.run import run_pass
from curation.refs import TableRef
from curation.rundir.graph import Done, In, setting
from curation.rundir.run import Task
from curation.signals import Ask, Weak, ask_of, compute_rewards, get_signal, measure
from curation.stages.asking import AskModel, RowsWorker
from curation.stages.rows import read_ids
from curation.storage.paths import to_place
from curation.tables import io, scans, schemas
from curation.teachers.reward import RewardModel

LABELLED = "label IS NOT NULL AND error IS NULL"
"""Filter of the rows of a labels table that have a label."""


class MeasureSignal(AskModel):
    """A stage that measures a signal of each row with a weak label, unless the labelling actors already did.

    If no row gives a readable value, a selection by the signal is refused (:mod:`curation.stages.select`).
    """

    class Made(NamedTuple):
        signal: TableRef
        num_unread: int
        pass_: Json

    signal: str
    """The name or code by which ``curation.signals.get_signal`` finds the signal."""
    seed: int
    options: Json
    shots: In[TableRef | None]
    examples: In[TableRef]
    labels: In[TableRef]
    domain: DomainConfig
    reward: RewardConfig | None
    beside_labels: bool = setting()
    """Whether the labelling actors may have measured the signal and written it next to their labels."""

    def run(self, task: Task) -> Done:
        """Measure the signal."""
        ask = ask_of(
            self.signal,
            seed=self.seed,
            options=self.options,
            shots=self.shots,
            # A model of its own writes beside other records of its stage.
            directory=to_place(self.labels.uri).parent if self.beside_labels else task.directory,
            attempts=task.manifest.attempts.get(self.name, 0),
        )
        job = SignalJob(
            ask=ask,
            examples=self.examples,
            labels=self.labels,
            domain=self.domain,
            reward=self.reward,
            **self.teacher_fields(task),
        )
        table, record = measure_table(self, task, job, read_ids(self.labels, LABELLED))
        num_rows, num_read = io.count(table), io.count(table, filter="value IS NOT NULL")
        return Done(outputs=self.Made(signal=table, num_unread=num_rows - num_read, pass_=record), rows=num_rows)


@dataclass(frozen=True, kw_only=True)
class SignalJob(Job):
    """A job that computes a signal of rows that have a weak label.

    ``decoding`` is that of the labelling pass or, for a judge, its own.
    """

    ask: Ask
    labels: TableRef
    """The labels of the examples; rows with a labelling error are skipped."""
    reward: RewardConfig | None = None
    """The reward model, if it has a head of its own and is thus no teacher."""
    gold: TableRef | None = None

    def worker(self, models: Models) -> "ValueWorker":
        """Return the worker that measures the job's chunks in a process."""
        return ValueWorker(self, models)


class ValueWorker(RowsWorker):
    """A worker that asks a teacher, or a reward model with a head of its own."""

    def __init__(self, job: SignalJob, models: Models) -> None:
        super().__init__(job.telemetry, job.ask.uri, schemas.SIGNAL)
        self._job, self._domain = job, get_domain(job.domain)
        self._labels = io.Lookup(job.labels)
        self._gold = None if job.gold is None else io.Lookup(job.gold)
        self._reward: RewardModel | None = None
        if job.reward is None or job.reward.kind == "verifier":
            self._signal = get_signal(job.ask.signal, **job.ask.options)
            self.meter = self._teacher = job.load(models)
        else:
            assert job.model is not None, "a reward model has weights"
            device, ask = "cuda" if job.teacher.actors.num_gpus else "cpu", job.teacher
            self._reward = models.reward(job.model, device=device, dtype=ask.dtype, batch_tokens=ask.batch_tokens)

    def work(self, rows: list[Row]) -> list[Json]:
        """Return the values of rows; a judge also sees their gold labels."""
        ids_N = np.array([row["row_id"] for row in rows], dtype=np.int64)
        labels = self._labels.take(ids_N, ["label", "completion"]).to_pylist()
        if self._gold is not None:
            golds = self._gold.take(ids_N, ["gold"])["gold"].to_pylist()
            rows = [row | {"gold": gold} for row, gold in zip(rows, golds, strict=True)]
        weak = [(row["row_id"], row, Weak(**label)) for row, label in zip(rows, labels, strict=True)]
        if self._reward is not None:
            values = compute_rewards(self._reward, self._domain, weak)
        else:
            about = self._domain, self._teacher, weak, self._job.decoding
            values = measure(self._signal, *about, seed=self._job.ask.seed, on_batch=self.alive)
        return [{"row_id": row_id, "value": value} for row_id, value in values.items()]


def measure_signal(job: SignalJob, row_ids_N: Int64s, **how: Unpack[PassOptions]) -> PassResult:
    """Measure the rows that are not measured yet, and commit values as they come (schema ``schemas.SIGNAL``)."""
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
    with stage.passing(task) as how:
        result = measure_signal(job, row_ids_N, **how)
    return result.table, stage.teacher.record(result)


class Judge(AskModel):
    """A stage that asks a judge about labels that are wrong by the rule, or unparsed, and corrects the grades.

    The paper's judge is asked if the parser cannot verify an answer.
    """

    class Made(NamedTuple):
        grades: TableRef
        num_asked: int
        pass_: Json

    grades: In[TableRef]
    examples: In[TableRef]
    labels: In[TableRef]
    gold: In[TableRef]
    domain: DomainConfig
    seed: int
    alone: ClassVar[bool] = False
    """Whether the judge alone grades every label, instead of correcting those that are wrong by the rule."""

    def run(self, task: Task) -> Done:
        """Ask the judge, and write the grades."""
        asked_N = read_ids(self.grades, None if self.alone else "correct = false")
        job = SignalJob(
            ask=Ask(
                signal="chosen_verdict" if self.alone else "judge",
                options=self.domain.judge or {} if self.alone else {},
                seed=self.seed,
                uri=str(task.directory / "verdicts.lance"),
            ),
            examples=self.examples,
            labels=self.labels,
            domain=self.domain,
            gold=self.gold,
            **self.teacher_fields(task),
        )
        if self.alone:
            asked_N = np.intersect1d(read_ids(self.labels, LABELLED), asked_N)
        verdicts, record = measure_table(self, task, job, asked_N)
        num_asked, num_failed = io.count(verdicts), io.count(verdicts, filter="value IS NULL")
        if self.alone:
            refuse_silence(num_asked, num_failed)
            if num_failed:
                task.say(f"the judge gave no verdict on {num_failed:,} of {num_asked:,} rows: they are graded wrong")
        grades = apply_verdicts(self.grades, verdicts, str(task.directory / "grades.lance"), alone=self.alone)
        return Done(outputs=self.Made(grades=grades, num_asked=num_asked, pass_=record), rows=num_asked)


class JudgeByChoice(Judge):
    """A stage that grades all labels by a judge that chooses between two words (domain ``text``, ``check: judge``).

    A row without a verdict is wrong, with the problem ``check_failed``; without any verdict, the run fails.
    """

    alone: ClassVar[bool] = True


def refuse_silence(num_asked: int, num_failed: int) -> None:
    """Raise ``RunFailedError`` if a judge was asked about rows and gave no verdict on any."""
    if num_asked and num_failed == num_asked:
        raise RunFailedError(
            f"the judge gave no verdict on any of {num_asked:,} rows; look at its prompt (domain.check.judge), which "
            "may be too long for judge.model"
        )


def describe_no_verdict(error: str | None) -> str:
    """Return the problem of a row on which a judge gave no verdict."""
    why = error or "its prompt cannot be made or is too long for the model"
    return f"check_failed: the judge gave no verdict: {why}"


def apply_verdicts(grades: TableRef, verdicts: TableRef, uri: str, *, alone: bool = False) -> TableRef:
    """Write grades with a judge's verdicts (schema ``schemas.SIGNAL``: above 0.5 is right, null is no verdict).

    They correct labels that are wrong by the rule or, if the judge is ``alone``, are the grades: a row without a label,
    about which the judge was not asked, is then wrong.
    """
    accepted_M, problems = read_ids(verdicts, "value > 0.5"), dict[int, str]()
    if alone:
        failed = io.read(verdicts, ["row_id", "error"], "value IS NULL").to_pylist()
        problems = {row["row_id"]: describe_no_verdict(row["error"]) for row in failed}
    schema = schemas.make_grades_schema(io.open_table(grades).schema)

    def parts() -> Iterator[pa.Table]:
        for batch in scans.iter_table_batches(grades, {name: name for name in schema.names}, None):
            by_rule_B = batch.column("correct").to_numpy(zero_copy_only=False)
            accepted_B = np.isin(batch.column("row_id").to_numpy(), accepted_M)
            columns: Json = {name: batch.column(name) for name in schema.names}
            columns |= {"correct": accepted_B if alone else by_rule_B | accepted_B, "judged": accepted_B & ~by_rule_B}
            if alone:
                columns["problem"] = pa.array(map(problems.get, batch.column("row_id").to_pylist()), pa.string())
            yield pa.table([pa.array(columns[name]) for name in schema.names], schema=schema)

    return io.write_parts(parts(), schema, uri)
