"""The judge stage: asks a model about the labels that the domain's rule calls wrong; its verdicts overrule the rule."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from curation.config import DomainConfig
from curation.refs import TableRef
from curation.rundir.graph import Done, In
from curation.rundir.run import Task
from curation.stages.asking import AskModel
from curation.stages.asks import Ask
from curation.stages.signal import SignalJob, measure_table
from curation.tables import io, scans, schemas


class Judge(AskModel):
    """Asks a judge about the labels that are wrong by the rule, unparsed ones too, and corrects the grades.

    The paper's judge is asked where the parser cannot verify an answer.
    """

    class Made(NamedTuple):
        """The outputs."""

        grades: TableRef
        num_asked: int
        pass_: dict[str, Any]
        """The record of the pass."""

    grades: In[TableRef]
    examples: In[TableRef]
    labels: In[TableRef]
    gold: In[TableRef]
    domain: DomainConfig
    seed: int

    def run(self, task: Task) -> Done:
        """Ask the judge."""
        wrong_N = io.read(self.grades, columns=["row_id"], filter="correct = false")["row_id"].to_numpy()
        job = SignalJob(
            ask=Ask(signal="judge", seed=self.seed, uri=str(task.directory / "verdicts.lance")),
            examples=self.examples,
            labels=self.labels,
            domain=self.domain,
            teacher=self.teacher.asked(self.decoding),
            model=self.teacher.model,
            decoding=self.decoding,
            gold=self.gold,
            telemetry=task.telemetry,
        )
        verdicts, record = measure_table(self, task, job, wrong_N)
        grades = overrule(self.grades, verdicts, str(task.directory / "grades.lance"))
        num_asked = io.count(verdicts)
        return Done(outputs=self.Made(grades=grades, num_asked=num_asked, pass_=record), rows=num_asked)


def overrule(grades: TableRef, verdicts: TableRef, uri: str) -> TableRef:
    """The grades, corrected where a judge calls a label right (``verdicts``: schema ``schemas.SIGNAL``, 1 is right)."""
    accepted = io.read(verdicts, columns=["row_id"], filter="value > 0.5")["row_id"].to_numpy()

    def parts() -> Iterator[pa.Table]:
        for batch in scans.batches(grades, {name: name for name in schemas.GRADES.names}, None):
            correct_B = batch.column("correct").to_numpy(zero_copy_only=False)
            judged_B = np.isin(batch.column("row_id").to_numpy(), accepted) & ~correct_B
            columns = [batch.column("row_id"), correct_B | judged_B, judged_B]
            columns += [batch.column(name) for name in ("problem", "question")]
            yield pa.table([pa.array(column) for column in columns], schema=schemas.GRADES)

    return io.write_parts(parts(), schemas.GRADES, uri)
