"""The scores of one trust function for the graded rows of a split, as a table of their own beside the labels."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from curation.domains.grading import read_grades
from curation.refs import TableRef, TrustRef
from curation.rundir.graph import Done, In, Stage
from curation.rundir.run import Task
from curation.stopping import checked
from curation.tables import io
from curation.tables.schemas import SCORED
from curation.trust import get_trust, load_fitted


class ScoreGraded(Stage):
    """Scores every row that has a grade, ascending by row id.

    Raises:
        SourceError: the labels lack a column that the function reads.
    """

    class Made(NamedTuple):
        """The outputs."""

        scored: TableRef
        """Schema ``schemas.SCORED``."""

    labels: In[TableRef]
    """The labels of the split, with the columns that the function reads."""
    grades: In[TableRef]
    function: str
    """A trust function of ``curation.arms.TRUST`` that is not fitted; it scores where ``trust`` is None."""
    trust: In[TrustRef | None]
    """A fitted one."""
    seed: int
    """The seed of a draw."""

    def run(self, task: Task) -> Done:
        """Score the rows, and write their table."""
        graded = read_grades(self.grades)
        fitted = None if self.trust is None else load_fitted(self.trust)
        unfitted = get_trust(self.function, self.seed)
        features = (unfitted if fitted is None else fitted).features
        read = dict.fromkeys(["row_id", "label", *features])
        scanner = io.open_table(self.labels).scanner(columns=list(read), filter="error IS NULL")
        parts = [SCORED.empty_table()]
        for batch in checked(scanner.to_batches()):
            row_ids_B = batch.column("row_id").to_numpy()
            place_B = np.searchsorted(graded.row_ids_N, row_ids_B)
            known_B = np.searchsorted(graded.row_ids_N, row_ids_B, side="right") > place_B
            raw_B = (unfitted if fitted is None else fitted).raw_score(batch)
            trust_B = unfitted.score(batch) if fitted is None else fitted.to_trust(raw_B)
            columns = [
                pa.array(row_ids_B[known_B]),
                pa.array(graded.correct_N[place_B[known_B]]),
                batch.column("label").is_valid().filter(pa.array(known_B)),
                *(pa.array(score_B[known_B], pa.float32(), from_pandas=True) for score_B in (raw_B, trust_B)),
            ]
            parts.append(pa.table(columns, schema=SCORED))
        rows = pa.concat_tables(parts).sort_by("row_id")
        ref = io.write(rows, str(task.directory / "scored.lance"))
        return Done(outputs=self.Made(scored=ref), rows=rows.num_rows)
