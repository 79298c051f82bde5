"""The verify stage: a costly check is run on the rows of the pool that trust puts first, and on no others.

The rows of the pool have no reference answer, so that the program judges a completion by the row's own columns. What it
fails is dropped from the selections that rank by the same trust; what it passes has a place there before all that it
was not asked about, as these rank lower.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from curation.arms import ARMS, Trust
from curation.config import DomainConfig
from curation.errors import UserError
from curation.hashing import derive
from curation.refs import TableRef
from curation.rundir.graph import Done, In, Stage
from curation.rundir.run import Task
from curation.stages.chunked import in_chunks
from curation.stages.grade import BATCH_ROWS, checked_rows, say_failed
from curation.stages.pool_scores import PoolScores
from curation.tables import io, schemas


@dataclass(frozen=True, kw_only=True)
class VerifyCounts:
    """Counts of rows that were checked."""

    arm: str
    """The arm whose order they follow, and whose failed rows are dropped."""
    asked: int
    passed: int
    problems: int
    """Rows that could not be checked, which count as failed."""


class Verify(Stage):
    """Runs a program on the best rows of the pool by an arm's trust, so many as are paid for.

    Rows that are committed when the stage is cut off are not checked again: a batch of the program at a time is.
    """

    class Made(NamedTuple):
        """The outputs."""

        verdicts: TableRef
        """The checked rows (``schemas.GRADES``), best first."""
        counts: VerifyCounts

    pool: In[TableRef]
    labels: In[TableRef]
    """The pool's labels with their scores."""
    too_long: In[TableRef | None]
    """Rows that no student can be trained on, which are not checked."""
    domain: DomainConfig
    checker: str
    """A digest of the program and of its files, so that a changed one checks again."""
    arm: str
    ranking: Trust
    """The registry's entry of its score, but for the words."""
    rows: int
    seed: int
    """The seed of the run, by which ties are broken as the selection breaks them."""

    def run(self, task: Task) -> Done:
        """Check the rows that have no verdict yet."""
        scores = PoolScores(
            labels=self.labels,
            trust=ARMS[self.arm].trust,
            seed=derive(self.seed, "draw"),
            too_long=self.too_long,
        )
        num = min(self.rows, scores.num_scored)
        if not num:
            raise UserError(
                f"selection.verify: no row of the pool has a score of the arm {self.arm}, so that none can be "
                "checked; look at the stages score-pool and label-pool"
            )
        best_n = scores.top(num, derive(self.seed, "ties")).row_ids_n
        with task.progress() as update:
            verdicts = in_chunks(
                partial(checked_rows, tables=(self.labels, None, self.pool), domain=self.domain, checker=self.checker),
                best_n,
                str(task.directory / "checked.lance"),
                schemas.GRADES,
                chunk_rows=self.domain.options["check"].get("batch_rows", BATCH_ROWS),
                guard=task.guard,
                progress=update,
            )
        made = io.write(io.take(verdicts, best_n).cast(schemas.GRADES), str(task.directory / "verdicts.lance"))
        num_passed, num_problems = (io.count(made, filter=rule) for rule in ("correct", "problem IS NOT NULL"))
        say_failed(task, io.read(made))
        task.say(
            f"selection.verify: {num:,} rows checked, those that {self.arm} puts first: {num_passed:,} pass, "
            f"{num - num_passed:,} are dropped"
        )
        counts = VerifyCounts(arm=self.arm, asked=num, passed=num_passed, problems=num_problems)
        return Done(outputs=self.Made(verdicts=made, counts=counts), rows=num)
