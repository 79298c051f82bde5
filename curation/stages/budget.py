"""Resolves a budget's rule to the number of rows that every arm selects, from scores, grades and a calibration set.

This module reads the pool's gold labels only as counts. A budget that needs them is marked ``oracle``.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from curation.arms import ARMS
from curation.config import BudgetConfig
from curation.domains.grading import read_grades
from curation.hashing import Int64s
from curation.refs import TableRef
from curation.registry import check_options, code
from curation.selection import budget as rules
from curation.tables import io, schemas
from curation.trust import Scores, TrustFunction, get_trust


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A split's labels with scores and signals, and its grades if gold labels are known."""

    labels: TableRef
    grades: TableRef | None
    too_long: TableRef | None = None
    """Rows that are too long for the student (schema ``schemas.TOO_LONG``); None: there are none."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The number of rows, and how it was determined."""

    n: int
    """0 only if no risk-controlled threshold could be certified."""
    rule: str
    reference: str
    """The arm whose scores the rule reads, if it reads any."""
    oracle: bool
    """Whether the pool's gold labels were used."""
    threshold: float | None = None
    """Rows with at least this raw score of the reference arm pass."""
    risk: dict[str, Any] | None = None
    """The configuration and the result of the calibration (``curation.selection.risk.RiskCut``)."""


def resolve(
    config: BudgetConfig,
    labels: pa.RecordBatch,
    *,
    grades: TableRef | None,
    measured: Scored,
    calibration: Scored | None,
    too_long_M: Int64s | None = None,
    num_dropped: int = 0,
    seed: int,
) -> Budget:
    """The budget over the pool's scored ``labels``; ``measured`` is the split of a ``fit_purity`` (``purity_split``).

    Rows of ``too_long_M`` are never selected, so rules that count rows (right weak labels, rows above a threshold) skip
    them. A ``share`` is a share of all labelled rows, with the ``num_dropped`` that a first cut dropped.

    Raises:
        BudgetError: the budget is 0.
        ConfigError: the calibration cannot be used.
    """
    trust, reads = get_trust(ARMS[config.reference].trust, seed), config.declared.reads
    too_long_M = np.zeros(0, dtype=np.int64) if too_long_M is None else too_long_M
    made_by = code(config.declared.counted_by)
    check_options(f"selection.budget.{config.rule}", made_by, **config.options)
    rule: rules.BudgetRule = made_by(**config.options)
    scores = {}
    if "scores" in reads:
        raw_N, trust_N = (choosable(found(labels), labels, too_long_M) for found in (trust.raw_score, trust.score))
        scores = {"raw_N": raw_N, "trust_N": trust_N}
    count = rule.count(
        rules.Pool(
            num_rows=labels.num_rows + num_dropped,
            num_right=_num_right(grades, too_long_M) if "right" in reads else None,
            measured=_graded(trust, measured) if "measured" in reads else None,
            calibration=_graded(trust, calibration) if "calibration" in reads else None,
            seed=seed,
            **scores,
        )
    )
    return Budget(**count._asdict(), rule=config.rule, reference=config.reference, oracle=config.needs_gold)


def choosable(score_N: Scores, labels: pa.RecordBatch, too_long_M: Int64s) -> Scores:
    """The scores, with NaN (never selected) for rows that are unparsed or too long."""
    parsed_N = labels.column("label").is_valid().to_numpy(zero_copy_only=False)
    return without(np.where(parsed_N, score_N, np.float32(np.nan)), labels, too_long_M)


def without(score_N: Scores, labels: pa.RecordBatch, too_long_M: Int64s) -> Scores:
    """The scores, with NaN for rows that are too long."""
    if not len(too_long_M):
        return score_N
    return np.where(np.isin(labels.column("row_id").to_numpy(), too_long_M), np.float32(np.nan), score_N)


def too_long_ids(ref: TableRef | None) -> Int64s:
    """The ids of a table of over-long rows, int64 [M]; empty without a table."""
    if ref is None:
        return np.zeros(0, dtype=np.int64)
    ids_M: Int64s = io.read(ref, columns=["row_id"])["row_id"].to_numpy()
    return ids_M


def batch_of(ref: TableRef) -> pa.RecordBatch:
    """The rows labelled without error as one batch, without completions and states (one batch even if it is empty)."""
    schema, left_out = io.open_table(ref).schema, ("completion", "error", schemas.TOKEN_LOGPROBS)
    columns = [name for name in schema.names if not schemas.is_state(name) and name not in left_out]
    table = io.read(ref, columns=columns, filter=io.answered(ref))
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)


def _num_right(grades: TableRef | None, too_long_M: Int64s) -> int:
    assert grades is not None, "RunConfig refuses an oracle budget without an audit set"
    graded = read_grades(grades)
    return int((graded.correct_N & ~np.isin(graded.row_ids_N, too_long_M)).sum())


def _graded(trust: TrustFunction, scored: Scored | None) -> rules.Graded:
    """The graded rows of a labelled split; NaN where it could not be chosen."""
    assert scored is not None and scored.grades is not None, "splits that a budget reads are labelled and graded"
    labels, graded = batch_of(scored.labels), read_grades(scored.grades)
    row_ids_N = labels.column("row_id").to_numpy()
    order_N = np.argsort(row_ids_N)
    place_M = order_N[np.searchsorted(row_ids_N, graded.row_ids_N, sorter=order_N)]
    out_M = too_long_ids(scored.too_long)
    raw_M, trust_M = (choosable(found(labels), labels, out_M)[place_M] for found in (trust.raw_score, trust.score))
    return rules.Graded(raw_M, trust_M, graded.correct_N)
