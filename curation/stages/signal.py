"""The signal stage: one more number a row, from a further pass over rows that have a weak label, each exactly once.

What the labelling actors measured as they labelled (``LabelJob.asks``) stands in the same table, and is done.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from curation import store, tables
from curation.config import AskConfig, DecodingConfig, DomainConfig, RewardConfig
from curation.domains import get_domain
from curation.hashing import Int64s
from curation.lease import Guard, unguarded
from curation.refs import ModelRef, TableRef
from curation.signals import Weak, get_signal
from curation.signals.measure import measure
from curation.signals.reward import RewardModel
from curation.stages.asks import Ask, Values
from curation.stages.chunk_actor import ChunkActor, Pass, Row
from curation.stages.passes import run_pass
from curation.standing import Update
from curation.teachers import load_teacher
from curation.telemetry import Telemetry


@dataclass(frozen=True, kw_only=True)
class SignalJob:
    """All that an actor needs to know; pickled to every actor."""

    ask: Ask
    examples: TableRef
    labels: TableRef
    """Of these examples, those labelled without error at most."""
    domain: DomainConfig
    teacher: AskConfig
    model: ModelRef | None
    decoding: DecodingConfig
    """That of the labelling pass (of the judge: its own)."""
    reward: RewardConfig | None = None
    """A reward model with a head of its own, which is no teacher."""
    gold: TableRef | None = None
    """Gold labels of the examples, for a judge."""
    told: Telemetry = field(default_factory=Telemetry)
    """Emits the metrics of the pass."""


class Measured(NamedTuple):
    """What became of some rows."""

    values: Values
    errors: Mapping[int, str]


class SignalActor(ChunkActor[Measured]):
    """Holds one model."""

    def __init__(self, job: SignalJob, of: Pass) -> None:
        super().__init__(job, of)
        self._job = job
        self._domain = get_domain(job.domain)
        self._labels = store.Lookup(job.labels)
        self._gold = None if job.gold is None else store.Lookup(job.gold)
        self._reward: RewardModel | None = None
        if job.reward is not None and job.reward.kind != "verifier":
            assert job.model is not None, "a reward model has weights"
            device = "cuda" if job.teacher.actors.num_gpus else "cpu"
            self._reward = RewardModel(
                job.model,
                trust_remote_code=job.reward.runs_code,
                device=device,
                batch_tokens=job.teacher.batch_tokens,
            )
        else:
            self._signal = get_signal(job.ask.signal, **job.ask.options)
            self._teacher = load_teacher(job.teacher, job.model)
        self.loaded()

    def work(self, rows: list[Row]) -> Measured:
        """The signal's values of rows."""
        job = self._job
        ids_N = np.array([row["row_id"] for row in rows], dtype=np.int64)
        weak = self._labels.take(ids_N, ["label", "completion"]).to_pylist()
        if self._gold is not None:
            golds = self._gold.take(ids_N, ["gold"])["gold"].to_pylist()
            rows = [row | {"gold": gold} for row, gold in zip(rows, golds, strict=True)]
        asked = [(row["row_id"], row, Weak(**given)) for row, given in zip(rows, weak, strict=True)]
        if self._reward is not None:
            return Measured(self._reward.measure(self._domain, asked), {})
        values = measure(
            self._signal, self._domain, self._teacher, asked, job.decoding, seed=job.ask.seed, on_batch=self.alive
        )
        return Measured(values, {})

    def give_up(self, rows: list[Row], error: str) -> Measured:
        """Rows without a value."""
        return Measured({}, {row["row_id"]: error for row in rows})

    def write(self, parts: list[Measured], note: dict[str, Any]) -> pa.Table:
        """One fragment."""
        values = {row_id: value for part in parts for row_id, value in part.values.items()}
        errors = {row_id: error for part in parts for row_id, error in part.errors.items()}
        return self._job.ask.write(values, errors, note=note | self.failed(errors.values()))


def signal(
    job: SignalJob,
    row_ids_N: Int64s,
    *,
    commit_seconds: float,
    guard: Guard = unguarded,
    progress: Update | None = None,
) -> TableRef:
    """Measure the rows that are not measured yet and commit them as they come; the table (schema ``tables.SIGNAL``).

    Raises:
        RunFailedError: an actor kept dying without getting anything done.
        CommitError: the store refused, or rows in and rows out differ.
    """
    wanted_M = np.sort(row_ids_N)
    return run_pass(
        SignalActor,
        job,
        name=f"the signal {job.ask.signal}",
        uri=job.ask.uri,
        schema=tables.SIGNAL,
        takes=lambda ids_N: np.searchsorted(wanted_M, ids_N, side="right") > np.searchsorted(wanted_M, ids_N),
        commit_seconds=commit_seconds,
        guard=guard,
        progress=progress,
    ).table
