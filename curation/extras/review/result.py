"""Results of a review: the purity of the selection, a calibration set, and a new certified cut.

:func:`curation.selection.risk.calibrate` certifies the cut on the uniform part of the draw, within the region of the
review. For any threshold, the uniform part contains a simple random sample of the region's rows at or above it,
however good the scores are; drawing without replacement only makes the binomial test more conservative. So the
guarantee needs no assumption on the origin of calibration rows. A row that is unsure, disputed or not judged yet counts
as wrong. So the cut is valid however people chose the rows to judge, and early looks at it cost nothing: judging
another row can only lower the number of wrong rows.
"""

import json
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curation.errors import ReviewError
from curation.extras.review.folder import Review
from curation.extras.review.judged import ReviewedRows, describe_strata, estimate_share_right, judge
from curation.extras.review.source import find_review_rows
from curation.hashing import derive
from curation.json_types import Json
from curation.selection.risk import calibrate
from curation.storage.inside import run_around, to_record
from curation.storage.paths import write_atomically
from curation.tables.schemas import ROW_ID

ALPHA = DELTA = 0.1
"""Default ``alpha`` and ``delta`` if neither the command nor the run gives them (the paper's values)."""

CALIBRATION = pa.schema(
    [
        ROW_ID,
        pa.field("raw", pa.float32()),
        pa.field("trust", pa.float32()),
        pa.field("correct", pa.bool_(), nullable=False),  # false, too, if unsure, disputed or not judged
        pa.field("weight", pa.float64(), nullable=False),  # rows of the region that each stands for
    ]
)
"""Schema of the uniform part, which certifies a cut. The file's metadata has the ``FLOOR``, below which the rows
certify no cut (``floor`` of :func:`curation.selection.risk.calibrate`)."""

FLOOR = b"floor"

JUDGED = pa.schema(
    [
        ROW_ID,
        pa.field("raw", pa.float32()),
        pa.field("trust", pa.float32()),
        pa.field("correct", pa.bool_()),  # null: unsure or disputed
        pa.field("weight", pa.float64(), nullable=False),  # 1 / the probability with which the row was drawn
        pa.field("answer", pa.string(), nullable=False),
        pa.field("stratum", pa.int32(), nullable=False),
        pa.field("uniform", pa.bool_(), nullable=False),
    ]
)
"""Schema of all judged rows, for methods that take weights."""


def conclude(review: Review, *, alpha: float | None, delta: float | None) -> Json:
    """Write ``review.json``, ``judged.parquet`` and, if the arm ranks, ``calibration.parquet``; return the first.

    Raises:
        ReviewError: no row has a verdict yet.
        ConfigError: alpha or delta is not a share.
    """
    judged = judge(review, review.log.standing())
    counts = judged.count()
    if counts.none == len(judged.answer_M):
        raise ReviewError(
            f"{review.folder}: none of its {counts.none:,} rows has a verdict; give some by `curate review serve` or "
            "`curate review import`"
        )
    drawn = review.drawn
    result = {
        "format": 1,
        "review": review.name,
        **{name: drawn["origin"][name] for name in ("run", "generation", "arm", "ranked", "num_selected")},
        **{name: drawn[name] for name in ("seed", "num_drawn", "num_uniform", "num_region", "num_candidates", "floor")},
        "selection": drawn["origin"]["selection"],
        "answers": counts._asdict(),
        "people": judged.people,
        "num_shared": judged.num_shared,
        "disputed": [str(row_id) for row_id in judged.ids_of("disputed")],
        "num_torn": review.log.num_torn,
        "purity": estimate_share_right(review.strata, judged.counts, selected=True),
        "below": estimate_share_right(review.strata, judged.counts, selected=False),
        "strata": describe_strata(review.strata, judged.counts),
        "cut": _cut(judged, alpha, delta),
    }
    _write_tables(judged)
    text = json.dumps(to_record(result, run_around(review.folder)), indent=1, allow_nan=False)
    write_atomically(review.folder / "review.json", text + "\n")
    return result


def _cut(judged: ReviewedRows, alpha: float | None, delta: float | None) -> Json:
    """Return the certified cut before and after the review; ``after`` is None if the arm does not rank."""
    origin, drawn = judged.review.origin, judged.review.drawn
    before = origin.risk
    alpha = alpha if alpha is not None else before["alpha"] if before else ALPHA
    delta = delta if delta is not None else before["delta"] if before else DELTA
    cut: Json = {"alpha": alpha, "delta": delta, "before": None, "after": None}
    if before is not None:
        kept = ("threshold", "alpha", "delta", "rule", "kind", "num_calibration", "num_kept", "noise", "bound")
        cut["before"] = {**{name: before[name] for name in kept}, "n": origin.n}
    if not origin.ranked:
        return cut
    pool_N = find_review_rows(origin, floor=drawn["floor"]).scored.raw_N
    uniform_M = judged.column("uniform")
    answer_M = judged.answer_M[uniform_M]
    found = calibrate(
        judged.column("raw")[uniform_M],
        answer_M == "right",
        pool_N,
        alpha=alpha,
        delta=delta,
        seed=derive(drawn["seed"], "audit risk"),
        floor=drawn["floor"],
    )
    threshold = found.threshold
    cut["after"] = {
        **asdict(found),
        "guarantee": found.guarantee if threshold is None else f"{found.guarantee}, which the draw makes true",
        "n": 0 if threshold is None else int((pool_N >= threshold).sum()),
        "num_counted_wrong": int(np.isin(answer_M, ["unsure", "disputed", "none"]).sum()),
        "at_floor": threshold is not None and threshold <= drawn["floor"],
    }
    return cut


def _write_tables(judged: ReviewedRows) -> None:
    """Write the judged rows (``JUDGED``) and, if the arm ranks, the uniform part (``CALIBRATION``)."""
    rows, drawn = judged.review.rows, judged.review.drawn
    right_M, known_M = judged.answer_M == "right", judged.answer_M != "none"
    given = {name: rows[name] for name in ("row_id", "raw", "trust", "stratum", "uniform")}
    columns = {
        **given,
        "correct": pa.array(right_M, mask=np.isin(judged.answer_M, ["unsure", "disputed"])),
        "weight": 1 / judged.column("inclusion"),
        "answer": judged.answer_M,
    }
    table = pa.table([columns[name] for name in JUDGED.names], schema=JUDGED)
    _write(judged, "judged.parquet", table.filter(pa.array(known_M)))
    if judged.review.origin.ranked:
        weight_M = np.full(len(right_M), drawn["num_region"] / drawn["num_uniform"])
        columns = {**given, "correct": right_M, "weight": weight_M}
        schema = CALIBRATION.with_metadata({FLOOR: repr(drawn["floor"]).encode()})
        table = pa.table([columns[name] for name in CALIBRATION.names], schema=schema)
        _write(judged, "calibration.parquet", table.filter(rows["uniform"]))


def _write(judged: ReviewedRows, name: str, table: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_atomically(judged.review.folder / name, sink.getvalue().to_pybytes())
