"""The verify stage: a costly check is run on the rows of the pool that trust puts first, and on no others.

The rows of the pool have no reference answer, so that a program judges a completion by the row's own columns, and a
judge by prompt and answer. What fails is dropped from the selections that rank by the same trust; what passes has a
place there before all that was not checked, as that ranks lower.

Verdicts are kept beside the labels that they are about, by row: another arm, another number of rows or another trust
function asks about rows that have none. A changed program, prompt or judge has a table of its own.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.arms import ARMS, Trust
from curation.arrays import Int64s
from curation.config import AskConfig, DomainConfig
from curation.domains import get_domain
from curation.domains.grading import hash_questions
from curation.domains.unseen_labels import collect_seen_labels
from curation.errors import UserError
from curation.hashing import derive
from curation.json_types import Json
from curation.refs import TableRef, fingerprint
from curation.rundir.graph import Done, In, Stage, to_plain_json
from curation.rundir.run import Task
from curation.stages.asking import AskModel
from curation.stages.asks import Ask
from curation.stages.chunked import compute_in_chunks
from curation.stages.grade import BATCH_ROWS, grade_by_checker, say_failed
from curation.stages.judge import describe_no_verdict, refuse_silence
from curation.stages.pool_scores import PoolScores
from curation.stages.signal import SignalJob, measure_table
from curation.storage.paths import to_place
from curation.tables import commits, io, schemas

MOST_TASKS = 500
"""Tasks of a program at most: of a batch each, or of several batches where there are more rows. A task costs some 20 ms
and is what a kill repeats, so that no more than one in 500 rows is checked twice."""


@dataclass(frozen=True, kw_only=True)
class VerifyCounts:
    """The numbers of rows that the check asked about, and that passed."""

    arm: str
    """The arm whose order they follow, and whose failed rows are dropped."""
    asked: int
    passed: int
    problems: int
    """Rows that could not be checked, which count as failed."""


def choose_task_rows(num: int, batch_rows: int) -> int:
    """Return how many of ``num`` rows a task runs a program on: a batch, or several if there were too many tasks."""
    return batch_rows * max(1, math.ceil(num / (MOST_TASKS * batch_rows)))


class _BestRows(Stage):
    pool: In[TableRef]
    labels: In[TableRef]
    """The pool's labels with their scores."""
    too_long: In[TableRef | None]
    """Rows that no student can be trained on, which are not checked."""
    repeats: In[TableRef | None]
    """Rows of which the best of each question is checked (schema ``schemas.REPEATS``)."""
    labelled: In[TableRef | None] = None  # type: ignore[assignment]
    """The source split, where labels that it has not seen rank last."""
    domain: DomainConfig
    arm: str
    ranking: Trust
    """The registry's entry of its score, but for the words."""
    rows: int
    seed: int
    """The seed of the run, by which ties are broken as the selection breaks them."""

    def best(self) -> Int64s:
        """Return the ids of the rows to check, best first."""
        trust, seed = ARMS[self.arm].trust, derive(self.seed, "draw")
        known = None if self.labelled is None else collect_seen_labels(self.labelled, self.domain)
        seen = None if known is None else known.labels
        scores = PoolScores(
            labels=self.labels, trust=trust, seed=seed, too_long=self.too_long, repeats=self.repeats, seen=seen
        )
        num = min(self.rows, scores.num_scored)
        if not num:
            raise UserError(
                f"selection.verify: no row of the pool has a score of the arm {self.arm}, so that none can be "
                "checked; look at the stages score-pool and label-pool"
            )
        return scores.top(num, derive(self.seed, "ties")).row_ids_n

    def kept(self, task: Task, checked_by: list[Any]) -> str:
        """Return the table of verdicts by a check; a new one each time that the stage is done anew by request."""
        name = fingerprint([to_plain_json(checked_by, {}), task.manifest.attempts.get(task.name, 0)])[:16]
        return str(to_place(self.labels.uri).parent / f"verdicts-{name}.lance")

    def counted(self, task: Task, verdicts: TableRef, num_new: int) -> VerifyCounts:
        """Return the counts, and say them."""
        num, num_passed = io.count(verdicts), io.count(verdicts, filter="correct")
        say_failed(task, io.read(verdicts))
        known = f" ({num - num_new:,} of them before)" if num_new < num else ""
        task.say(
            f"selection.verify: {num:,} rows checked{known}, those that {self.arm} puts first: {num_passed:,} pass, "
            f"{num - num_passed:,} are dropped"
        )
        num_problems = io.count(verdicts, filter="problem IS NOT NULL")
        return VerifyCounts(arm=self.arm, asked=num, passed=num_passed, problems=num_problems)


class Verify(_BestRows):
    """Runs a program on the best rows of the pool by an arm's trust, so many as are paid for.

    Rows that are committed when the stage is cut off are not checked again: a task of the program at a time is.
    """

    class Made(NamedTuple):
        verdicts: TableRef
        """The checked rows (``schemas.GRADES``), best first."""
        counts: VerifyCounts

    checker: str
    """A digest of the program and of its files, so that a changed one checks again."""

    def run(self, task: Task) -> Done:
        """Check the rows that have no verdict yet."""
        best_n = self.best()
        uri = self.kept(task, [self.domain, self.checker])
        checked_N = _with_kept(best_n, uri, schemas.GRADES)
        num_new = len(checked_N) - len(commits.read_committed_ids(uri))
        with task.progress() as update:
            verdicts = compute_in_chunks(
                partial(
                    grade_by_checker, tables=(self.labels, None, self.pool), domain=self.domain, checker=self.checker
                ),
                checked_N,
                uri,
                schemas.GRADES,
                chunk_rows=choose_task_rows(num_new, self.domain.options["check"].get("batch_rows", BATCH_ROWS)),
                guard=task.guard,
                progress=update,
            )
        made = io.write(io.take(verdicts, best_n).cast(schemas.GRADES), str(task.directory / "verdicts.lance"))
        counts = self.counted(task, made, num_new)
        return Done(outputs=self.Made(verdicts=made, counts=counts), rows=len(best_n))


class VerifyByJudge(_BestRows, AskModel):
    """Asks a judge about the best rows of the pool by an arm's trust (``check: judge`` of the domain ``text``).

    Rows without a verdict fail. Rows whose verdict is committed when the stage is cut off are not asked about again.

    Raises:
        RunFailedError: the judge gives no verdict on any row.
    """

    class Made(NamedTuple):
        verdicts: TableRef
        """The rows that were asked about (``schemas.GRADES``), best first."""
        counts: VerifyCounts
        pass_: Json
        """The record of the pass."""

    def run(self, task: Task) -> Done:
        """Ask about the rows that have no verdict yet."""
        options = self.domain.judge
        assert options is not None, "the domain's check is a judge"
        best_n = self.best()
        model = None if self.teacher.model is None else self.teacher.model.to_json()
        ask = self.teacher.ask.without({*AskConfig.SPREAD, "decoding"})
        uri = self.kept(task, [self.domain, model, ask, str(self.teacher.backend), self.decoding])
        asked_N = _with_kept(best_n, uri, schemas.SIGNAL)
        num_new = len(asked_N) - len(commits.read_committed_ids(uri))
        job = SignalJob(
            ask=Ask(signal="chosen_verdict", options=options, seed=derive(self.seed, "verify"), uri=uri),
            examples=self.pool,
            labels=self.labels,
            domain=self.domain,
            **self.teacher_fields(task),
        )
        verdicts, record = measure_table(self, task, job, asked_N)
        found = io.take(verdicts, best_n, ["row_id", "value", "error"])
        refuse_silence(len(best_n), found["value"].null_count)
        made = io.write(self._make_grades(found, best_n), str(task.directory / "verdicts.lance"))
        counts = self.counted(task, made, num_new)
        return Done(outputs=self.Made(verdicts=made, counts=counts, pass_=record), rows=len(best_n))

    def _make_grades(self, found: pa.Table, best_n: Int64s) -> pa.Table:
        """Return the verdicts as grades: right above 1/2, wrong where there is none, with the problem."""
        domain = get_domain(self.domain)
        right = pc.fill_null(pc.greater(found["value"], 0.5), False)
        pairs = zip(found["value"].to_pylist(), found["error"].to_pylist(), strict=True)
        problems = [None if value is not None else describe_no_verdict(error) for value, error in pairs]
        examples = io.take(self.pool, best_n, domain.columns.names).to_pylist()
        columns = [found["row_id"], right, pa.array(np.zeros(len(best_n), np.bool_)), pa.array(problems, pa.string())]
        columns.append(pa.array(hash_questions(domain, examples), pa.int64()))
        return pa.table(columns, names=schemas.GRADES.names).cast(schemas.GRADES)


def _with_kept(row_ids_n: Int64s, uri: str, schema: pa.Schema) -> Int64s:
    """Return the rows, and after them those that have a verdict already."""
    io.create(uri, schema)
    kept_N = np.array(commits.read_committed_ids(uri), dtype=np.int64)
    return np.concatenate([row_ids_n, np.setdiff1d(kept_N, row_ids_n)])
