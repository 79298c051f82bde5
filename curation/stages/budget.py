"""What a budget's rule comes to: the number of rows that every arm selects, from scores, grades and a calibration set.

Gold labels of the pool are read here as counts alone; a budget that needs them is stamped ``oracle``.
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
from curation.refs import TableRef
from curation.selection import budget as rules
from curation.selection.risk import calibrate
from curation.trust import Scores, TrustFunction, get_trust

ACCEPTED = 0.5
"""The trust from which on a row counts as accepted, where the purity on the fit set or a probe is asked for (ours)."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A split's labels with scores and signals, and its grades where gold labels are known."""

    labels: TableRef
    grades: TableRef | None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The number of rows, and how it came about."""

    n: int
    """0 only where no risk-controlled threshold could be certified."""
    rule: str
    reference: str
    """The arm whose scores the rule reads, where it reads any."""
    oracle: bool
    """Counted with gold labels of the pool."""
    threshold: float | None = None
    """The raw score of the reference arm from which on rows pass."""
    risk: dict[str, Any] | None = None
    """The configuration and the result of the calibration (``curation.selection.risk.RiskCut``)."""


def resolve(
    config: BudgetConfig,
    labels: pa.RecordBatch,
    *,
    grades: TableRef | None,
    measured: Scored,
    calibration: Scored | None,
    seed: int,
) -> Budget:
    """The budget over the pool's scored ``labels``; ``measured`` is the split of a ``fit_purity`` (``purity_split``).

    Raises:
        BudgetError: it comes to no row.
        ConfigError: a calibration that cannot be used.
    """
    trust = get_trust(ARMS[config.reference].trust, seed)
    if config.n is not None:
        n = config.n
    elif config.share is not None:
        n = rules.share_budget(config.share, labels.num_rows)
    elif config.oracle:
        n = rules.oracle_budget(_num_right(grades), config.cap)
    elif config.fit_purity:
        n = rules.fit_purity_budget(*_accepted(trust, measured), _num_right(grades))
    elif config.threshold is not None:
        trust_N = parsed_only(trust.score(labels), labels)
        n = rules.threshold_budget(int((trust_N >= config.threshold).sum()), config.threshold)
    else:
        return _risk(config, trust, labels, calibration, seed)
    return Budget(n=n, rule=config.rule, reference=config.reference, oracle=config.needs_gold)


def ranked(trust: TrustFunction, labels: pa.RecordBatch) -> Scores:
    """The raw score of each row, float32 [N]; NaN where the row has none or its label could not be read."""
    return parsed_only(trust.raw_score(labels), labels)


def parsed_only(score_N: Scores, labels: pa.RecordBatch) -> Scores:
    """The scores with NaN where the label could not be read, float32 [N]."""
    parsed_N = labels.column("label").is_valid().to_numpy(zero_copy_only=False)
    return np.where(parsed_N, score_N, np.float32(np.nan))


def batch_of(ref: TableRef) -> pa.RecordBatch:
    """The rows labelled without error, without completions and states, as one batch (an empty table has one, too)."""
    schema = store.open_table(ref).schema
    columns = [name for name in schema.names if not tables.is_state(name) and name not in ("completion", "error")]
    table = store.read(ref, columns=columns, filter="error IS NULL")
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)


def _num_right(grades: TableRef | None) -> int:
    assert grades is not None, "RunConfig refuses an oracle budget without an audit set"
    return int(read_grades(grades).correct_N.sum())


def _accepted(trust: TrustFunction, measured: Scored) -> tuple[int, int]:
    """How many labels are right of the measured rows that the reference arm accepts, and how many it accepts."""
    trust_N, correct_N = _graded(trust.score, measured)
    accepted_N = trust_N >= ACCEPTED
    return int(correct_N[accepted_N].sum()), int(accepted_N.sum())


def _graded(score: Callable[[pa.RecordBatch], Scores], scored: Scored) -> tuple[Scores, npt.NDArray[np.bool_]]:
    """Scores and correctness of the graded rows of a labelled split; NaN where the label could not be read."""
    assert scored.grades is not None, "labelled splits are graded"
    labels, graded = batch_of(scored.labels), read_grades(scored.grades)
    row_ids_N = labels.column("row_id").to_numpy()
    order_N = np.argsort(row_ids_N)
    place_M = order_N[np.searchsorted(row_ids_N, graded.row_ids_N, sorter=order_N)]
    return parsed_only(score(labels), labels)[place_M], graded.correct_N


def _risk(
    config: BudgetConfig, trust: TrustFunction, labels: pa.RecordBatch, calibration: Scored | None, seed: int
) -> Budget:
    assert config.risk is not None and calibration is not None, "RunConfig refuses risk without a calibration split"
    raw_M, correct_M = _graded(trust.raw_score, calibration)
    pool_N = ranked(trust, labels)
    cut = calibrate(
        np.where(np.isnan(raw_M), -np.inf, raw_M),  # an unparsed row is never selected, here as in the pool
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
