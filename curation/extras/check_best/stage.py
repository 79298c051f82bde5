"""The stages that run a costly check on only the pool rows that trust ranks highest, and the numbers for its report.

Pool rows have no reference answer, so a program judges a completion by the row's own columns, and a judge by prompt and
answer. Arms that rank by the same trust do not select rows that fail. Rows that pass come before rows that were not
checked, since those rank lower.

Verdicts are kept by row in a table beside the labels: with another arm, number of rows or trust function, only rows
without a verdict are checked. Each version of a program, a prompt or a judge has its own table.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.arms import ARMS, TRUST, Trust
from curation.arrays import Int64s
from curation.config import AskConfig, DomainConfig
from curation.domains.class_counts import collect_seen_labels
from curation.errors import UserError
from curation.features import is_divided
from curation.hashing import derive
from curation.json_types import Json, JsonView
from curation.pipeline.extending import FeatureInputs
from curation.pipeline.grading import GONE, find_known_checker
from curation.pipeline.roles import JUDGE
from curation.refs import TableRef, fingerprint
from curation.report.measures import compute_count_share
from curation.rundir.graph import Done, In, Out, Stage, to_plain_json
from curation.rundir.run import Task
from curation.signals import Ask
from curation.stages.asking import AskModel
from curation.stages.grade import BATCH_ROWS, grade_by_checker, say_failed
from curation.stages.pool_scores import PoolScores
from curation.stages.rows import compute_in_chunks
from curation.stages.signal import SignalJob, describe_no_verdict, measure_table, refuse_silence
from curation.storage.paths import to_place
from curation.tables import commits, io, schemas

VERDICT = ["row_id", "correct", "problem"]
MOST_TASKS = 500
"""Maximum number of tasks that run a program, since each costs about 20 ms; a task has one batch of rows, or several
if there are more rows. After a kill, tasks that were not committed are repeated."""


class CheckedRows(NamedTuple):
    """The result of a check."""

    verdicts: TableRef
    """``row_id``, ``correct`` and ``problem`` of each checked row, best first."""
    left_out: TableRef
    """Rows that fail, with the reason (``schemas.LEFT_OUT``)."""
    counts: Json
    """The ``arm`` that ranked the rows, and numbers of rows: ``asked`` (checked), ``passed``, and ``problems`` (rows
    that could not be checked, which fail)."""


def choose_task_rows(num: int, batch_rows: int) -> int:
    """Return the number of rows per task for ``num`` rows: one batch, or several to limit the number of tasks."""
    return batch_rows * max(1, math.ceil(num / (MOST_TASKS * batch_rows)))


class _BestRows(Stage):
    Made = CheckedRows

    pool: In[TableRef]
    labels: In[TableRef]
    """The pool's labels with their scores."""
    too_long: In[TableRef | None]
    """Rows that no student can be trained on, which are not checked."""
    repeats: In[TableRef | None]
    """Rows whose question repeats (schema ``schemas.REPEATS``); of each question, only the best row is checked."""
    labelled: In[TableRef | None] = None  # type: ignore[assignment]
    """The source split if rows with labels that it lacks rank last, else None."""
    domain: DomainConfig
    arm: str
    ranking: Trust
    """Registry entry of the arm's trust score, without its description."""
    rows: int
    seed: int
    """Seed of the run, so that ties are broken as in the selection."""

    def rank_rows(self) -> Int64s:
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
                f"check_best: no row of the pool has a score of the arm {self.arm}, so that none can be checked; look "
                "at the stages score-pool and label-pool"
            )
        return scores.top(num, derive(self.seed, "ties")).row_ids_n

    def open_kept(
        self, task: Task, checked_by: list[Any], row_ids_n: Int64s, schema: pa.Schema
    ) -> tuple[str, Int64s, int]:
        """Return the URI of a check's table of verdicts, its rows with ``row_ids_n`` first, and how many are new.

        The table is new each time that the stage is repeated by request.
        """
        name = fingerprint([to_plain_json(checked_by, {}), task.manifest.attempts.get(task.name, 0)])[:16]
        uri = str(to_place(self.labels.uri).parent / f"verdicts-{name}.lance")
        io.create(uri, schema)
        kept_N = np.array(commits.read_committed_ids(uri), dtype=np.int64)
        row_ids_N = np.concatenate([row_ids_n, np.setdiff1d(kept_N, row_ids_n)])
        return uri, row_ids_N, len(row_ids_N) - len(kept_N)

    def write(self, task: Task, verdicts: pa.Table, num_new: int) -> CheckedRows:
        """Write the verdicts and the rows to leave out, report the counts, and return all three."""
        failed = verdicts.filter(pc.invert(verdicts["correct"])).sort_by("row_id")
        num, num_passed = len(verdicts), len(verdicts) - len(failed)
        say_failed(task, verdicts)
        known = f" ({num - num_new:,} of them before)" if num_new < num else ""
        task.say(
            f"check_best: {num:,} rows checked{known}, those that {self.arm} puts first: {num_passed:,} pass, "
            f"{len(failed):,} are dropped"
        )
        why = pc.fill_null(failed["problem"], "the check calls its answer wrong")
        left_out = pa.table([failed["row_id"], why], schema=schemas.LEFT_OUT)
        num_problems = num - verdicts["problem"].null_count
        return CheckedRows(
            verdicts=io.write(verdicts, str(task.directory / "verdicts.lance")),
            left_out=io.write(left_out, str(task.directory / "left_out.lance")),
            counts={"arm": self.arm, "asked": num, "passed": num_passed, "problems": num_problems},
        )


class CheckBest(_BestRows):
    """A stage that runs a program on the best pool rows by an arm's trust; committed rows are not checked again."""

    checker: str
    """Digest of the program and its files, so that a changed program checks the rows again."""

    def run(self, task: Task) -> Done:
        """Run the program on the rows that have no verdict yet."""
        best_n = self.rank_rows()
        uri, checked_N, num_new = self.open_kept(task, [self.domain, self.checker], best_n, schemas.GRADES)
        with task.progress() as update:
            tables = (self.labels, None, self.pool)
            verdicts = compute_in_chunks(
                partial(grade_by_checker, tables=tables, domain=self.domain, checker=self.checker),
                checked_N,
                uri,
                schemas.GRADES,
                chunk_rows=choose_task_rows(num_new, self.domain.options["check"].get("batch_rows", BATCH_ROWS)),
                guard=task.guard,
                progress=update,
            )
        return Done(outputs=self.write(task, io.take(verdicts, best_n, VERDICT), num_new), rows=len(best_n))


class CheckBestByJudge(_BestRows, AskModel):
    """A stage that asks a judge about the best pool rows by an arm's trust (``check: judge`` of the domain ``text``).

    Rows without a verdict fail. After an interruption, rows with a committed verdict are not asked about again.

    Raises:
        RunFailedError: the judge gives no verdict on any row.
    """

    def run(self, task: Task) -> Done:
        """Ask the judge about the rows that have no verdict yet."""
        options = self.domain.judge
        assert options is not None, "the domain's check is a judge"
        best_n = self.rank_rows()
        model = None if self.teacher.model is None else self.teacher.model.to_json()
        ask = self.teacher.ask.without({*AskConfig.SPREAD, "decoding"})
        checked_by = [self.domain, model, ask, str(self.teacher.backend), self.decoding]
        uri, asked_N, num_new = self.open_kept(task, checked_by, best_n, schemas.SIGNAL)
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
        made = self.write(task, _make_verdicts(found), num_new)
        return Done(outputs={**made._asdict(), "pass": record}, rows=len(best_n))


def _make_verdicts(found: pa.Table) -> pa.Table:
    """Return a judge's answers as verdicts: correct if above 1/2; wrong, with the problem, if there is no answer."""
    correct = pc.fill_null(pc.greater(found["value"], 0.5), False)
    pairs = zip(found["value"].to_pylist(), found["error"].to_pylist(), strict=True)
    problems = [None if value is not None else describe_no_verdict(error) for value, error in pairs]
    return pa.table([found["row_id"], correct, pa.array(problems, pa.string())], names=VERDICT)


def describe_check(inputs: FeatureInputs) -> dict[str, Out]:
    """Return the outputs of the check's stage: the rows to leave out, and the counts."""
    generation, selection, domain = inputs.generation, inputs.config.selection, inputs.config.domain_of("pool")
    assert generation is not None, "rows are selected in a generation"
    long, arm = inputs.record["too_long"].get("pool"), selection.budget.reference
    arguments: Json = {
        "name": generation.name("check-best"),
        "at": generation.at("pool"),
        "pool": inputs.tables["pool"],
        "labels": inputs.record["labels"]["pool"],
        "too_long": None if long is None else long.stage.out("too_long").or_none,
        "repeats": generation.repeats.out("repeats").or_none,
        "labelled": inputs.tables["source"],
        "domain": domain,
        "arm": arm,
        "ranking": replace(TRUST[ARMS[arm].trust], words=""),
        "rows": inputs.section.rows,
        "seed": inputs.config.seed,
        "num_rows": min(inputs.section.rows, generation.sizes["pool"]),
    }
    if domain.judge is None:
        stage: Stage = CheckBest(**arguments, checker=find_known_checker(domain) or GONE)
    else:
        judge, model = inputs.config.judge, generation.helpers.get(JUDGE)
        assert judge is not None and model is not None, "a judge that is asked is among the models"
        teacher = model.changed(**AskConfig.BARE)
        stage = CheckBestByJudge(**arguments, teacher=teacher, decoding=judge.decoding, **generation.settings)
    return {"left_out": stage.out("left_out"), "counts": stage.value("counts")}


def describe_selected(inputs: FeatureInputs) -> dict[str, Out]:
    """Return the budget and the number of rows selected by the reference arm, for the check's numbers."""
    budget, arm = inputs.record["budget"], inputs.config.selection.budget.reference
    return {"budget": budget, "num_selected": budget.stage.value("arms", arm, "num_rows")}


def count_passed(outputs: JsonView) -> Json:
    """Return the counts, and how many selected rows are among those that passed.

    Rows that pass rank above rows that were not checked. The number of selected rows that passed is ``None`` (unknown)
    if the selection is divided, too.
    """
    counts, num_selected = outputs["counts"], outputs["num_selected"]
    return {
        **counts,
        "share": compute_count_share(counts["passed"], counts["asked"]),
        "selected": num_selected,
        "selected_checked": None if is_divided(outputs["budget"]) else min(num_selected, counts["passed"]),
    }
