"""The scores of one trust function for the graded rows of a split, as a table of their own beside the labels."""

import numpy as np
import pyarrow as pa

from curation.domains.grading import read_grades
from curation.refs import TableRef, TrustRef
from curation.tables import io
from curation.tables.schemas import SCORED
from curation.trust import get_trust, load_fitted


def scored_rows(
    labels: TableRef, grades: TableRef, function: str, trust: TrustRef | None, uri: str, *, seed: int
) -> TableRef:
    """Write the table (schema ``schemas.SCORED``), ascending by row id.

    Args:
        labels: the labels of the split, with the columns that the function reads.
        grades: which of them are right; rows without a grade are left out.
        function: a trust function of ``curation.arms.TRUST`` that is not fitted; it scores where ``trust`` is None.
        trust: a fitted one.
        uri: where to write.
        seed: of a draw.

    Raises:
        SourceError: the labels lack a column that the function reads.
    """
    graded = read_grades(grades)
    fitted = None if trust is None else load_fitted(trust)
    unfitted = get_trust(function, seed)
    features = (unfitted if fitted is None else fitted).features
    read = dict.fromkeys(["row_id", "label", *features])
    scanner = io.open_table(labels).scanner(columns=list(read), filter="error IS NULL")
    parts = [SCORED.empty_table()]
    for batch in scanner.to_batches():
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
    return io.write(pa.concat_tables(parts).sort_by("row_id"), uri)
