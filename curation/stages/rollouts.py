"""The rollouts stage, which draws further samples of the teacher for rows of gold arms whose weak label is wrong.

A right weak completion already serves as its row's rollout. For the other rows the teacher is asked again until gold
grades a sample right (rejection sampling): for all rows of an arm that ranks; for an arm that draws, for as many as its
budget needs, in the order of the draw. Rows that the teacher never solves get no rollout, so rows with one are easier
than the pool's.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from curation.arms import ARMS
from curation.arrays import Int64s
from curation.config import DecodingConfig
from curation.domains import Domain, attempt, get_domain
from curation.domains.grading import check_labels
from curation.hashing import derive
from curation.json_types import Json
from curation.passes.job import Job, Models, PassOptions, Row
from curation.passes.run import run_pass
from curation.refs import TableRef
from curation.rundir.graph import Done
from curation.rundir.run import Task
from curation.selection import Candidates
from curation.selection.top_n import TopN
from curation.signals import label_request
from curation.stages.asking import AskModel, RowsWorker
from curation.stages.chooser import ChoiceInputs, Chooser, SelectJob, require_measurable
from curation.stages.gold import GoldRollouts, GoldTexts, Limit, decide_gold_source
from curation.stages.rows import read_ids
from curation.stages.select import compute_budget
from curation.storage.paths import to_place
from curation.tables import io, schemas
from curation.tables.row_ids import find_missing_ids
from curation.teachers import Teacher

UNKNOWN, NO, YES = -1, 0, 1
"""States of a row in a draw: whether there is a completion to train on."""


@dataclass(frozen=True, kw_only=True)
class RolloutJob(Job):
    """A job that samples completions of rows with gold labels."""

    uri: str
    num_samples: int
    seed: int
    limit: Limit | None = None
    """The maximum length of a row that the student can be trained on; a longer sample is rejected."""

    def worker(self, models: Models) -> "RolloutWorker":
        """Return the worker that asks about the job's chunks in a process."""
        return RolloutWorker(self, models)


class RollOut(AskModel):
    """A stage that draws the rollouts that the gold arms need, if any."""

    Made = GoldRollouts

    choice: ChoiceInputs
    rollout_seed: int
    limit: Limit | None

    def run(self, task: Task) -> Done:
        """Decide which completions gold arms train on, and sample rollouts if they need them."""
        require_measurable(self.choice)
        job = SelectJob(**vars(self.choice), texts=GoldTexts(source="answer"), teacher=self.teacher.model, generation=0)
        settings = job.selection.gold_rollouts
        fields = self.teacher_fields(task)
        fields["decoding"] = self.decoding.model_copy(update={"temperature": settings.temperature})
        rollout_job = RolloutJob(
            examples=job.pool,
            uri=str(task.directory / "rollouts.lance"),
            domain=job.domain,
            num_samples=settings.num_samples,
            seed=self.rollout_seed,
            limit=self.limit,
            **fields,
        )
        with self.passing(task) as how:
            made = roll_out(job, rollout_job, **how)
        task.say(made.words)
        return Done(outputs=made, rows=made.num_asked)


class RolloutWorker(RowsWorker):
    """A worker that samples completions of one teacher; its rows are those of ``schemas.ROLLOUTS``."""

    def __init__(self, job: RolloutJob, models: Models) -> None:
        super().__init__(job.telemetry, job.uri, schemas.ROLLOUTS)
        self._job, self._domain = job, get_domain(job.domain)
        self.meter = self._teacher = job.load(models)

    def work(self, rows: list[Row]) -> list[Json]:
        """Sample completions."""
        job, about = self._job, (self._domain, self._teacher, rows, self._job.decoding)
        return draw(*about, num_samples=job.num_samples, seed=job.seed, limit=job.limit, on_batch=self.alive)

    def give_up(self, rows: list[Row], error: str) -> list[Json]:
        """Return rows without a completion."""
        return [row | {"num_samples": 0} for row in super().give_up(rows, error)]


def draw(
    domain: Domain,
    teacher: Teacher,
    rows: list[Row],
    decoding: DecodingConfig,
    *,
    num_samples: int,
    seed: int,
    limit: Limit | None = None,
    on_batch: Callable[[], None] = lambda: None,
) -> list[Json]:
    """Sample each row's completion until one states its ``gold`` label within the limit, at most ``num_samples`` times.

    The result has one row of ``schemas.ROLLOUTS`` per row. The i-th samples of all rows are drawn together, with a seed
    of their own.
    """
    found = {row["row_id"]: {"row_id": row["row_id"], "num_samples": 0} for row in rows}
    requested = {row["row_id"]: (row, attempt(label_request, domain, row["row_id"], row)[0]) for row in rows}
    waiting = {row_id: request for row_id, (_, request) in requested.items() if request is not None}
    for turn in range(num_samples):
        if not waiting:
            break
        drawn = teacher.label(list(waiting.values()), decoding, seed=derive(seed, f"rollouts/{turn}"), states=False)
        for batch in drawn:
            on_batch()
            for answer in batch.select(["row_id", "completion", "error"]).to_pylist():
                row_id, completion = answer["row_id"], answer["completion"]
                found[row_id]["num_samples"] += 1
                row, request = requested[row_id]
                label = None if answer["error"] is not None else attempt(domain.parse, completion, row)[0]
                right = label is not None and check_labels(domain, [label], [row["gold"]], [row]) == [True]
                if right and request is not None and (limit is None or limit.allows(request.prompt, completion)):
                    found[row_id]["completion"] = completion
                    del waiting[row_id]
    return list(found.values())


def roll_out(job: SelectJob, rollout_job: RolloutJob, **how: Unpack[PassOptions]) -> GoldRollouts:
    """Decide what the gold arms of ``job`` train on, and sample rollouts if they train on the teacher's own."""
    assert job.audit is not None, "RunConfig refuses gold arms without an audit set"
    wanted = job.selection.gold_rollouts.source
    made = decide_gold_source(job.pool, job.labels, job.audit, job.domain, wanted=wanted, seed=job.seed)
    if made.texts.source != "sample":
        return made
    budget = compute_budget(job)
    samples = io.create(rollout_job.uri, schemas.ROLLOUTS)  # keeps those of an interrupted run, of whatever round
    if budget.n:
        chooser, right = Chooser(job, budget), job.gold.right
        arms = [ARMS[name] for name in job.selection.arms if ARMS[name].gold]
        for arm in sorted(arms, key=lambda arm: not arm.ranked):
            if arm.ranked:
                ids_n = chooser.top(arm).row_ids_n
                samples = _sample(job, rollout_job, samples, ids_n[find_missing_ids(ids_n, right)], how)
            else:
                samples = _sample_draw(job, rollout_job, samples, chooser.candidates(arm), right, budget.n, how)
    table = io.read(samples, ["completion", "num_samples"])
    return replace(
        made,
        texts=replace(made.texts, samples=samples),
        num_asked=table.num_rows,
        num_found=table.num_rows - table["completion"].null_count,
        num_samples=int(table["num_samples"].to_numpy().sum()),
    )


def count_to_resolve(state_M: npt.NDArray[np.int8], n: int, rate: float) -> int:
    """Return the number of rows from the start of a draw whose states have to be known until n have a completion.

    ``state_M`` says for each row of the draw, in its order, whether it has one: ``YES``, ``NO`` or ``UNKNOWN``. Of the
    rows asked about so far, a share ``rate`` got one. The result is 0 if nothing needs to be asked: n rows with a
    completion come before the first unknown row, or no row is unknown.
    """
    unknown = np.flatnonzero(state_M == UNKNOWN)
    if not len(unknown) or int((state_M[: unknown[0]] == YES).sum()) >= n:
        return 0
    expected_M = np.cumsum(np.where(state_M == UNKNOWN, rate, state_M == YES))
    return int(min(max(np.searchsorted(expected_M, n - 1e-9) + 1, unknown[0] + 1), len(state_M)))


def _sample_draw(
    job: SelectJob,
    rollout_job: RolloutJob,
    samples: TableRef,
    candidates: Candidates,
    right: BitMap64,
    n: int,
    how: PassOptions,
) -> TableRef:
    """Sample in rounds until n rows of a draw have a completion; earlier results decide which rows to ask about."""
    score_N = candidates.raw_score_N
    right_N = ~find_missing_ids(candidates.row_ids_N, right) & np.isfinite(score_N)
    # A draw ends at its n-th row with a right weak label at the latest.
    lowest = np.partition(score_N[right_N], -n)[-n] if right_N.sum() >= n else -np.inf
    ids_M = TopN().cut(candidates, int((score_N >= lowest).sum()), derive(job.seed, "ties")).row_ids_n
    right_M = ~find_missing_ids(ids_M, right)
    rate = 1.0  # at first only rows that are needed in any case
    while True:
        found_N = read_ids(samples, "completion IS NOT NULL")
        state_M = np.where(np.isin(ids_M, read_ids(samples)), NO, UNKNOWN).astype(np.int8)
        state_M[right_M | np.isin(ids_M, found_N)] = YES
        num_rows = count_to_resolve(state_M, n, rate)
        if not num_rows:
            return samples
        samples = _sample(job, rollout_job, samples, ids_M[:num_rows][state_M[:num_rows] == UNKNOWN], how)
        rate = max(io.count(samples, "completion IS NOT NULL"), 1) / io.count(samples)


def _sample(job: SelectJob, rollout_job: RolloutJob, samples: TableRef, ids_M: Int64s, how: PassOptions) -> TableRef:
    """Add samples of more rows; return the table. The teacher is not asked again about rows that it has."""
    known_N = read_ids(samples)
    ids_N = np.union1d(known_N, ids_M)
    if len(ids_N) == len(known_N):
        return samples
    assert job.audit is not None, "RunConfig refuses gold arms without an audit set"
    gold = io.take(job.audit, ids_N, ["gold"])["gold"]
    examples = io.take(job.pool, ids_N).append_column(schemas.GOLD, gold)
    return run_pass(
        replace(rollout_job, examples=io.write(examples, str(to_place(rollout_job.uri).with_name("asked.lance")))),
        name="the rollouts of gold labels",
        uri=rollout_job.uri,
        schema=schemas.ROLLOUTS,
        takes=lambda ids_N: np.ones(len(ids_N), dtype=np.bool_),
        **how,
    ).table
