"""Resolves a budget's rule to the number of rows that every arm selects, from scores, grades and a calibration set.

This module reads the pool's gold labels only as counts. A budget that needs them is marked ``oracle``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from curation.arms import ARMS
from curation.config import BudgetConfig
from curation.domains.grading import read_grades
from curation.json_types import Json
from curation.refs import TableRef
from curation.registry import check_options, load_code
from curation.rundir.graph import In, Inputs
from curation.selection import budget as rules
from curation.selection.class_shares import ClassShares
from curation.stages.pool_scores import PoolScores
from curation.stages.rows import find_places, read_sorted_ids
from curation.tables import io
from curation.tables.schemas import CLUSTER
from curation.trust.parts import find_independent

GROUPED = "; one calibration row of a group counts, and groups in proportion to their rows (splits.group)"
"""Text appended to the guarantee of a budget if rows have groups."""


class ScoredSplit(Inputs):
    """A split's labels with scores and signals, and its grades if gold labels are known."""

    labels: In[TableRef]
    grades: In[TableRef | None]
    too_long: In[TableRef | None] = None  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class ComputedBudget:
    """The number of rows, and how it was determined."""

    n: int
    """The number of rows to select; 0 only if no risk-controlled threshold could be certified."""
    rule: str
    reference: str
    """The arm whose scores the rule reads, if it reads any."""
    oracle: bool
    threshold: float | None = None
    """Minimum raw score of the reference arm with which a row passes."""
    risk: Json | None = None
    """The configuration and the result of the calibration (``curation.selection.risk.RiskCut``)."""
    is_cut: bool = False
    """Whether all n rows pass a threshold of the reference arm."""
    asked: int | None = None
    """The n of the rule if divisions leave fewer rows, else None."""
    limited_by: str | None = None
    """The arm with the fewest rows left, if that arm sets n."""
    shares: ClassShares | None = None
    """Shares of the classes among the rows, if each class has a cut of its own."""
    divided: Mapping[str, Any] = field(default_factory=dict)
    """The number or shares by which each division of an arm's rows divides them, by feature."""

    def to_json(self) -> Json:
        """Return the budget as it is recorded: the divisions stand beside the other fields, by feature."""
        found = dict(vars(self))
        del found["shares"]
        return found | dict(found.pop("divided"))


def resolve(
    config: BudgetConfig,
    labels: TableRef,
    *,
    grades: TableRef | None,
    measured: ScoredSplit,
    calibration: ScoredSplit | None,
    too_long: TableRef | None = None,
    repeats: TableRef | None = None,
    seen: tuple[str, ...] | None = None,
    classes: Sequence[str] | None = None,
    seed: int,
) -> ComputedBudget:
    """Compute the number of rows to select from the pool's scored ``labels``.

    ``measured`` is the split of ``BudgetConfig.purity_split``. Rows of ``too_long`` are never selected, so rules that
    count rows (right weak labels, rows above a threshold) skip them; all count the rows of a question in ``repeats``
    once. Rows whose label is not among ``seen`` rank last. A ``share`` is one of all labelled rows, including those
    that a gate dropped.

    Raises:
        BudgetError: the budget is 0.
        ConfigError: the calibration cannot be used.
    """
    trust = ARMS[config.reference].trust
    scores = PoolScores(labels=labels, trust=trust, seed=seed, too_long=too_long, repeats=repeats, seen=seen)
    reads, num_right = config.declared.reads, None
    made_by = load_code(config.declared.counted_by)
    check_options(f"selection.budget.{config.rule}", made_by, **config.options)
    rule: rules.BudgetRule = made_by(**config.options)
    if "right" in reads:
        assert grades is not None, "RunConfig refuses an oracle budget without an audit set"
        num_right = 0
        out_M = np.union1d(read_sorted_ids(too_long), scores.copies_M)
        for batch in io.open_table(grades).to_batches(columns=["row_id"], filter="correct = true"):
            num_right += int((~np.isin(batch.column("row_id").to_numpy(), out_M)).sum())
    count = rule.count(
        rules.Pool(
            num_rows=scores.num_rows + io.count_dropped(labels) - len(scores.copies_M),
            num_right=num_right,
            scores=scores if "scores" in reads else None,
            measured=_collect_graded(scores, measured) if "measured" in reads else None,
            calibration=_collect_graded(scores, calibration, distinct=True) if "calibration" in reads else None,
            classes=classes,
            seed=seed,
        )
    )
    graded = None if calibration is None else calibration.grades
    if count.risk is not None and graded is not None and CLUSTER.name in io.open_table(graded).schema.names:
        count.risk["guarantee"] += GROUPED
    return ComputedBudget(**count._asdict(), rule=config.rule, reference=config.reference, oracle=config.needs_gold)


def _collect_graded(pool: PoolScores, scored: ScoredSplit | None, *, distinct: bool = False) -> rules.GradedScores:
    """Return the graded rows of a labelled split, with NaN as the score of rows that cannot be selected.

    ``distinct`` keeps only rows that count as independent draws (``curation.trust.parts.find_independent``).
    """
    assert scored is not None and scored.grades is not None, "splits that a budget reads are labelled and graded"
    scores = replace(pool, labels=scored.labels, too_long=scored.too_long, repeats=None, seen=None)
    candidates, trust_N, graded = scores.candidates(), scores.trust_of_all(), read_grades(scored.grades)
    place_M = find_places(candidates.row_ids_N, graded.row_ids_N)
    raw_M = candidates.raw_score_N[place_M].astype(np.float32, copy=False)
    found = rules.GradedScores(raw_M, trust_N[place_M], graded.correct_N)
    if not distinct:
        return found
    label_M = io.take(scored.labels, graded.row_ids_N, ["label"])["label"].to_numpy()
    independent = find_independent(graded.question_N, graded.row_ids_N, graded.cluster_N)
    return found._replace(label_M=label_M).subset(independent)
