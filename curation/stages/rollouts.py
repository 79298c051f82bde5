"""The rollouts stage, which draws further samples of the teacher for rows of gold arms whose weak label is wrong.

A right weak completion already serves as its row's rollout. About the other rows the teacher is asked again until gold
grades a sample right (rejection sampling): about all rows of an arm that ranks; of an arm that draws, about as many as
its budget needs, in the order of the draw. Rows that the teacher never solves get no rollout, so rows with one are
easier than the pool's.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from curation.arms import ARMS
from curation.arrays import Int64s
from curation.config import DecodingConfig
from curation.domains import Domain, attempt, get_domain
from curation.domains.grading import check_labels
from curation.hashing import derive
from curation.json_types import Json
from curation.passes.job import ChunkWorker, Job, Models, PassOptions, Row, count_errors
from curation.passes.run import run_pass
from curation.refs import TableRef
from curation.rundir.graph import Done
from curation.rundir.run import Task
from curation.selection import Candidates
from curation.selection.top_n import TopN
from curation.signals import label_request
from curation.stages.asking import AskModel
from curation.stages.chooser import ChoiceInputs, Chooser, SelectJob, select_measurable
from curation.stages.gold import GoldTexts, WeakFormat, decide
from curation.stages.length import Limit
from curation.stages.rows import read_ids
from curation.stages.select import compute_budget
from curation.storage.paths import to_place
from curation.tables import commits, io, schemas
from curation.tables.row_ids import find_missing_ids
from curation.teachers import Teacher
from curation.teachers.wrapped import WrappedTeacher

UNKNOWN, NO, YES = -1, 0, 1
"""States of a row in a draw: whether it has a completion to train on."""


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
        return RolloutWorker(self, self.load(models))


@dataclass(frozen=True, kw_only=True)
class GoldRollouts:
    """The source of gold arms' completions, the counts behind the decision, and the samples drawn."""

    texts: GoldTexts
    weak: WeakFormat
    num_gold: int
    num_solved: int
    num_asked: int = 0
    num_found: int = 0
    num_samples: int = 0

    @property
    def words(self) -> str:
        """Description of the completions that gold arms train on, and of the reason."""
        share = f"{self.weak.num_bare:,} of {self.weak.num_rows:,} weak completions are bare answers"
        if self.texts.source == "answer":
            return f"{share}; gold arms train on bare answers"
        if self.texts.source == "solution":
            return f"{share}; gold arms train on worked solutions, of {self.num_solved:,} of {self.num_gold:,} rows"
        return (
            f"{share}; gold arms train on the teacher's own rollouts that gold grades right: of {self.num_asked:,} "
            f"rows with a wrong weak label {self.num_found:,} are right in one of {self.num_samples:,} further samples"
        )


class RollOut(AskModel):
    """A stage that draws the rollouts that the gold arms need, if any."""

    Made = GoldRollouts

    choice: ChoiceInputs
    rollout_seed: int
    limit: Limit | None

    def run(self, task: Task) -> Done:
        """Decide which completions gold arms train on, and sample rollouts if they need them."""
        choice, texts = select_measurable(self.choice)[0], GoldTexts(source="answer")
        job = SelectJob(**vars(choice), texts=texts, teacher=self.teacher.model, generation=0)
        settings = job.selection.gold_rollouts
        fields = self.teacher_fields(task)
        fields["decoding"] = self.decoding.model_copy(update={"temperature": settings.temperature})
        asked = RolloutJob(
            examples=job.pool,
            uri=str(task.directory / "rollouts.lance"),
            domain=job.domain,
            num_samples=settings.num_samples,
            seed=self.rollout_seed,
            limit=self.limit,
            **fields,
        )
        with self.passing(task) as how:
            made = roll_out(job, asked, **how)
        task.say(made.words)
        return Done(outputs=made, rows=made.num_asked)


class RolloutWorker(ChunkWorker[list[Json]]):
    """A worker that samples completions of one teacher."""

    def __init__(self, job: RolloutJob, teacher: WrappedTeacher) -> None:
        self._job, self._domain = job, get_domain(job.domain)
        self.meter = self._teacher = teacher

    def work(self, rows: list[Row]) -> list[Json]:
        """Sample completions, and return rows of ``schemas.ROLLOUTS``."""
        job, about = self._job, (self._domain, self._teacher, rows, self._job.decoding)
        return draw(*about, num_samples=job.num_samples, seed=job.seed, limit=job.limit, on_batch=self.alive)

    def give_up(self, rows: list[Row], error: str) -> list[Json]:
        """Return rows without a completion."""
        return [{"row_id": row["row_id"], "num_samples": 0, "error": error} for row in rows]

    def write(self, parts: list[list[Json]], note: Json) -> pa.Table:
        """Write one fragment; return its row of ``commits.WRITTEN``."""
        rows = [row for part in parts for row in part]
        note = note | count_errors(self._job.telemetry, (row["error"] for row in rows if row.get("error")))
        written = pa.Table.from_pylist(rows, schema=schemas.ROLLOUTS)
        return commits.write_fragment(written, self._job.uri, schemas.ROLLOUTS, note=note)


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
    asked = {row["row_id"]: (row, attempt(label_request, domain, row["row_id"], row)[0]) for row in rows}
    waiting = {row_id: request for row_id, (_, request) in asked.items() if request is not None}
    for turn in range(num_samples):
        if not waiting:
            break
        drawn = teacher.label(list(waiting.values()), decoding, seed=derive(seed, f"rollouts/{turn}"), states=False)
        for batch in drawn:
            on_batch()
            for answer in batch.select(["row_id", "completion", "error"]).to_pylist():
                row_id, completion = answer["row_id"], answer["completion"]
                found[row_id]["num_samples"] += 1
                row, request = asked[row_id]
                right = False
                if answer["error"] is None:
                    label, _ = attempt(domain.parse, completion, row)
                    right = label is not None and check_labels(domain, [label], [row["gold"]], [row]) == [True]
                if right and request is not None and (limit is None or limit.allows(request.prompt, completion)):
                    found[row_id]["completion"] = completion
                    del waiting[row_id]
    return list(found.values())


def roll_out(job: SelectJob, asked: RolloutJob, **how: Unpack[PassOptions]) -> GoldRollouts:
    """Decide what the gold arms of ``job`` train on, and sample rollouts if they train on the teacher's own."""
    assert job.audit is not None, "RunConfig refuses gold arms without an audit set"
    wanted = job.selection.gold_rollouts.source
    source, weak, num_gold, num_solved = decide(
        job.pool, job.labels, job.audit, job.domain, wanted=wanted, seed=job.seed
    )
    made = GoldRollouts(texts=GoldTexts(source=source), weak=weak, num_gold=num_gold, num_solved=num_solved)
    if source != "sample":
        return made
    budget, sampling = compute_budget(job), _Sampling(job, asked, how)
    if budget.n:
        sampling.fill(Chooser(job, budget), budget.n)
    table = io.read(sampling.table, ["completion", "num_samples"])
    return replace(
        made,
        texts=GoldTexts(source=source, samples=sampling.table),
        num_asked=table.num_rows,
        num_found=table.num_rows - table["completion"].null_count,
        num_samples=int(table["num_samples"].to_numpy().sum()),
    )


def count_to_resolve(state_M: npt.NDArray[np.int8], n: int, rate: float) -> int:
    """Return how many rows from the start of a draw have to be resolved until n of them can be taught.

    ``state_M`` says for each row of the draw, in its order, whether it can be taught: ``YES``, ``NO`` or ``UNKNOWN``.
    Of the rows asked so far, a share ``rate`` could be taught. The result is 0 if nothing needs to be asked: n rows
    that can be taught come before the first unknown row, or no row is unknown.
    """
    unknown = np.flatnonzero(state_M == UNKNOWN)
    if not len(unknown) or int((state_M[: unknown[0]] == YES).sum()) >= n:
        return 0
    expected_M = np.cumsum(np.where(state_M == UNKNOWN, rate, state_M == YES))
    return int(min(max(np.searchsorted(expected_M, n - 1e-9) + 1, unknown[0] + 1), len(state_M)))


class _Sampling:
    """The table of samples, filled in rounds, because the rows to ask about depend on the results of others."""

    def __init__(self, job: SelectJob, asked: RolloutJob, how: PassOptions) -> None:
        self._job, self._asked, self._how = job, asked, how
        # Those of a run that was cut off are kept, whatever round they are of.
        self._read(io.create(asked.uri, schemas.ROLLOUTS))

    def fill(self, chooser: Chooser, n: int) -> None:
        """Ask the teacher about the rows of every gold arm, those of arms that rank first."""
        right = self._job.gold.right
        arms = [ARMS[name] for name in self._job.selection.arms if ARMS[name].gold]
        for arm in arms:
            if arm.ranked:
                ids_n = chooser.top(arm).row_ids_n
                self._ask(ids_n[find_missing_ids(ids_n, right)])
        for arm in arms:
            if not arm.ranked:
                self._draw(chooser.candidates(arm), n, right)

    def _draw(self, candidates: Candidates, n: int, right: BitMap64) -> None:
        score_N = candidates.raw_score_N
        right_N = ~find_missing_ids(candidates.row_ids_N, right) & np.isfinite(score_N)
        # No draw reaches beyond its n-th row with a right weak label.
        lowest = np.partition(score_N[right_N], -n)[-n] if right_N.sum() >= n else -np.inf
        ids_M = TopN().cut(candidates, int((score_N >= lowest).sum()), derive(self._job.seed, "ties")).row_ids_n
        right_M = ~find_missing_ids(ids_M, right)
        rate = 1.0  # at first only rows that are needed in any case
        while True:
            state_M = np.where(np.isin(ids_M, self._ids), NO, UNKNOWN).astype(np.int8)
            state_M[right_M | np.isin(ids_M, self._found)] = YES
            num_rows = count_to_resolve(state_M, n, rate)
            if not num_rows:
                return
            self._ask(ids_M[:num_rows][state_M[:num_rows] == UNKNOWN])
            rate = max(len(self._found), 1) / len(self._ids)

    def _ask(self, ids_M: Int64s) -> None:
        """Ask the teacher about rows, except those that it was already asked about."""
        wanted = np.union1d(self._ids, ids_M)
        if len(wanted) == len(self._ids):
            return
        assert self._job.audit is not None, "RunConfig refuses gold arms without an audit set"
        gold = io.take(self._job.audit, wanted, ["gold"])["gold"]
        examples = io.take(self._job.pool, wanted).append_column(schemas.GOLD, gold)
        rows = io.write(examples, str(to_place(self._asked.uri).with_name("asked.lance")))
        result = run_pass(
            replace(self._asked, examples=rows),
            name="the rollouts of gold labels",
            uri=self._asked.uri,
            schema=schemas.ROLLOUTS,
            takes=lambda ids_N: np.ones(len(ids_N), dtype=np.bool_),
            **self._how,
        )
        self._read(result.table)

    def _read(self, table: TableRef) -> None:
        self.table = table
        self._ids: Int64s = np.sort(read_ids(table))
        self._found = read_ids(table, "completion IS NOT NULL")
