"""The judge stages, which ask a model about labels that are wrong by the domain's rule, or about all labels.

:class:`Judge` follows the paper: its verdicts overrule the rule if the rule calls a label wrong. :class:`JudgeByChoice`
grades all labels of a domain whose check is a judge.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.errors import RunFailedError
from curation.json_types import Json
from curation.refs import TableRef
from curation.rundir.graph import Done, In
from curation.rundir.run import Task
from curation.stages.asking import AskModel
from curation.stages.asks import Ask
from curation.stages.signal import SignalJob, measure_table
from curation.tables import io, scans, schemas

NO_ANSWER = "its prompt cannot be made or is too long for the model"
"""Reason why a row has no verdict, if no other error is known."""


class Judge(AskModel):
    """A stage that asks a judge about labels that are wrong by the rule, or unparsed, and corrects the grades.

    The paper's judge is asked if the parser cannot verify an answer.
    """

    class Made(NamedTuple):
        grades: TableRef
        num_asked: int
        pass_: Json
        """The record of the pass."""

    grades: In[TableRef]
    examples: In[TableRef]
    labels: In[TableRef]
    gold: In[TableRef]
    domain: DomainConfig
    seed: int

    def run(self, task: Task) -> Done:
        """Ask the judge, and write the corrected grades."""
        wrong_N = io.read(self.grades, columns=["row_id"], filter="correct = false")["row_id"].to_numpy()
        verdicts, record = self._measure_verdicts(task, "judge", {}, wrong_N)
        grades = overrule(self.grades, verdicts, str(task.directory / "grades.lance"))
        num_asked = io.count(verdicts)
        return Done(outputs=self.Made(grades=grades, num_asked=num_asked, pass_=record), rows=num_asked)

    def _measure_verdicts(
        self, task: Task, signal: str, options: Mapping[str, object], row_ids_N: Int64s
    ) -> tuple[TableRef, Json]:
        """Return the table of the judge's verdicts on rows (schema ``schemas.SIGNAL``), and the record of its pass."""
        job = SignalJob(
            ask=Ask(signal=signal, options=options, seed=self.seed, uri=str(task.directory / "verdicts.lance")),
            examples=self.examples,
            labels=self.labels,
            domain=self.domain,
            gold=self.gold,
            **self.teacher_fields(task),
        )
        return measure_table(self, task, job, row_ids_N)


class JudgeByChoice(Judge):
    """A stage that grades all labels by a judge that chooses between two words (domain ``text``, ``check: judge``).

    A row without a verdict is wrong, with the problem ``check_failed``. The judge is not asked again about rows whose
    verdict was committed before an interruption.

    Raises:
        RunFailedError: the judge gives no verdict on any row.
    """

    def run(self, task: Task) -> Done:
        """Ask the judge about every label."""
        options = self.domain.judge
        assert options is not None, "the domain's check is a judge"
        labelled = io.read(self.labels, columns=["row_id"], filter="label IS NOT NULL AND error IS NULL")
        graded = io.read(self.grades, columns=["row_id"])
        asked_N = np.intersect1d(labelled["row_id"].to_numpy(), graded["row_id"].to_numpy())
        verdicts, record = self._measure_verdicts(task, "chosen_verdict", options, asked_N)
        num_asked, num_failed = io.count(verdicts), io.count(verdicts, filter="value IS NULL")
        refuse_silence(num_asked, num_failed)
        if num_failed:
            task.say(f"the judge gave no verdict on {num_failed:,} of {num_asked:,} rows: they are graded wrong")
        grades = grade_by_choice(self.grades, verdicts, str(task.directory / "grades.lance"))
        return Done(outputs=self.Made(grades=grades, num_asked=num_asked, pass_=record), rows=num_asked)


def refuse_silence(num_asked: int, num_failed: int) -> None:
    """Refuse a judge without a verdict on any row.

    Raises:
        RunFailedError: the judge was asked about rows, and gave no verdict.
    """
    if num_asked and num_failed == num_asked:
        raise RunFailedError(
            f"the judge gave no verdict on any of {num_asked:,} rows; look at its prompt (domain.check.judge), which "
            "may be too long for judge.model"
        )


def describe_no_verdict(error: str | None) -> str:
    """Return the problem of a row on which a judge gave no verdict."""
    return f"check_failed: the judge gave no verdict: {error or NO_ANSWER}"


def grade_by_choice(grades: TableRef, verdicts: TableRef, uri: str) -> TableRef:
    """Write grades replaced by a judge's verdicts (schema ``schemas.SIGNAL``: above 0.5 is right, null is no verdict).

    Rows without a label, about which the judge was not asked, are wrong.
    """
    found = io.read(verdicts, columns=["row_id", "value", "error"])
    ids_M = found["row_id"].to_numpy()
    right_ids = ids_M[pc.fill_null(pc.greater(found["value"], 0.5), False).to_numpy(zero_copy_only=False)]
    failed = found.filter(found["value"].is_null()).select(["row_id", "error"]).to_pylist()
    problems = {row["row_id"]: describe_no_verdict(row["error"]) for row in failed}

    def judged(batch: pa.RecordBatch) -> Json:
        ids_B, by_rule_B = batch.column("row_id"), batch.column("correct").to_numpy(zero_copy_only=False)
        correct_B = np.isin(ids_B.to_numpy(), right_ids)
        problem_B = pa.array([problems.get(row_id) for row_id in ids_B.to_pylist()], pa.string())
        return {"correct": correct_B, "judged": correct_B & ~by_rule_B, "problem": problem_B}

    return _change_grades(grades, judged, uri)


def overrule(grades: TableRef, verdicts: TableRef, uri: str) -> TableRef:
    """Write grades, corrected where a judge calls a label right (``verdicts``: schema ``schemas.SIGNAL``)."""
    accepted = io.read(verdicts, columns=["row_id"], filter="value > 0.5")["row_id"].to_numpy()

    def judged(batch: pa.RecordBatch) -> Json:
        correct_B = batch.column("correct").to_numpy(zero_copy_only=False)
        judged_B = np.isin(batch.column("row_id").to_numpy(), accepted) & ~correct_B
        return {"correct": correct_B | judged_B, "judged": judged_B}

    return _change_grades(grades, judged, uri)


def _change_grades(grades: TableRef, judged: Callable[[pa.RecordBatch], Json], uri: str) -> TableRef:
    """Write the grades, with the columns that ``judged`` returns for a batch in place of the batch's own."""
    schema = schemas.make_grades_schema(io.open_table(grades).schema)

    def parts() -> Iterator[pa.Table]:
        for batch in scans.iter_table_batches(grades, {name: name for name in schema.names}, None):
            columns = {name: batch.column(name) for name in schema.names} | judged(batch)
            yield pa.table([pa.array(columns[name]) for name in schema.names], schema=schema)

    return io.write_parts(parts(), schema, uri)
