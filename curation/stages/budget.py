"""Resolves a budget's rule to the number of rows that every arm selects, from scores, grades and a calibration set.

This module reads the pool's gold labels only as counts. A budget that needs them is marked ``oracle``.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation import store, tables
from curation.arms import ARMS
from curation.config import BudgetConfig
from curation.domains.grading import read_grades
from curation.hashing import Int64s
from curation.refs import TableRef
from curation.selection import budget as rules
from curation.selection.risk import calibrate
from curation.trust import Scores, TrustFunction, get_trust

ACCEPTED = 0.5
"""A row with at least this trust counts as accepted, for the purity on the fit set or a probe (our choice)."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A split's labels with scores and signals, and its grades if gold labels are known."""

    labels: TableRef
    grades: TableRef | None
    too_long: TableRef | None = None
    """Rows that are too long for the student (schema ``tables.TOO_LONG``); None: there are none."""


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
    seed: int,
) -> Budget:
    """The budget over the pool's scored ``labels``; ``measured`` is the split of a ``fit_purity`` (``purity_split``).

    Rows of ``too_long_M`` are never selected, so rules that count rows (right weak labels, rows above a threshold) skip
    them. A ``share`` is a share of all labelled rows.

    Raises:
        BudgetError: the budget is 0.
        ConfigError: the calibration cannot be used.
    """
    trust = get_trust(ARMS[config.reference].trust, seed)
    too_long_M = np.zeros(0, dtype=np.int64) if too_long_M is None else too_long_M
    if config.n is not None:
        n = config.n
    elif config.share is not None:
        n = rules.share_budget(config.share, labels.num_rows)
    elif config.oracle:
        n = rules.oracle_budget(_num_right(grades, too_long_M), config.cap)
    elif config.fit_purity:
        n = rules.fit_purity_budget(*_accepted(trust, measured), _num_right(grades, too_long_M))
    elif config.threshold is not None:
        trust_N = choosable(trust.score(labels), labels, too_long_M)
        n = rules.threshold_budget(int((trust_N >= config.threshold).sum()), config.threshold)
    else:
        return _risk(config, trust, labels, calibration, too_long_M, seed)
    return Budget(n=n, rule=config.rule, reference=config.reference, oracle=config.needs_gold)


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
    ids_M: Int64s = store.read(ref, columns=["row_id"])["row_id"].to_numpy()
    return ids_M


def batch_of(ref: TableRef) -> pa.RecordBatch:
    """The rows labelled without error as one batch, without completions and states (one batch even if it is empty)."""
    schema = store.open_table(ref).schema
    columns = [name for name in schema.names if not tables.is_state(name) and name not in ("completion", "error")]
    table = store.read(ref, columns=columns, filter="error IS NULL")
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)


def _num_right(grades: TableRef | None, too_long_M: Int64s) -> int:
    assert grades is not None, "RunConfig refuses an oracle budget without an audit set"
    graded = read_grades(grades)
    return int((graded.correct_N & ~np.isin(graded.row_ids_N, too_long_M)).sum())


def _accepted(trust: TrustFunction, measured: Scored) -> tuple[int, int]:
    """The number of right labels among the measured rows that the reference arm accepts, and how many it accepts."""
    trust_N, correct_N = _graded(trust.score, measured)
    accepted_N = trust_N >= ACCEPTED
    return int(correct_N[accepted_N].sum()), int(accepted_N.sum())


def _graded(score: Callable[[pa.RecordBatch], Scores], scored: Scored) -> tuple[Scores, npt.NDArray[np.bool_]]:
    """Scores and correctness of the graded rows of a labelled split; a row that cannot be chosen has the score NaN."""
    assert scored.grades is not None, "labelled splits are graded"
    labels, graded = batch_of(scored.labels), read_grades(scored.grades)
    row_ids_N = labels.column("row_id").to_numpy()
    order_N = np.argsort(row_ids_N)
    place_M = order_N[np.searchsorted(row_ids_N, graded.row_ids_N, sorter=order_N)]
    return choosable(score(labels), labels, too_long_ids(scored.too_long))[place_M], graded.correct_N


def _risk(
    config: BudgetConfig,
    trust: TrustFunction,
    labels: pa.RecordBatch,
    calibration: Scored | None,
    too_long_M: Int64s,
    seed: int,
) -> Budget:
    assert config.risk is not None and calibration is not None, "RunConfig refuses risk without a calibration split"
    raw_M, correct_M = _graded(trust.raw_score, calibration)
    pool_N = choosable(trust.raw_score(labels), labels, too_long_M)
    cut = calibrate(
        np.where(np.isnan(raw_M), -np.inf, raw_M),  # a row without a score is never selected, here as in the pool
        correct_M,
        pool_N,
        **config.risk.model_dump(),
        seed=seed,
    )
    n = 0 if cut.threshold is None else int((pool_N >= cut.threshold).sum())
    return Budget(
        n=n,
        rule=config.rule,
        reference=config.reference,
        oracle=False,
        threshold=cut.threshold,
        risk={**config.risk.model_dump(), **asdict(cut)},
    )
