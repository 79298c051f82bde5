"""Budget rules, which compute the number of rows that every arm of a generation selects from plain numbers.

Each rule is a class that is constructed with its settings, and one line of ``curation.registry.BUDGETS``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from curation.arrays import Bools, Float32s, Int64s
from curation.config import BudgetConfig
from curation.config.base import count_share
from curation.errors import BudgetError
from curation.json_types import Json
from curation.selection.class_shares import ClassScores, ClassShares
from curation.selection.order import Streamed

ACCEPTED = 0.5
"""Lowest trust with which a row counts as accepted in the purity on the fit set or a probe (our choice)."""


class GradedScores(NamedTuple):
    """The graded rows of a labelled split with the reference arm's scores, NaN for a row that is never selected."""

    raw_M: Float32s
    trust_M: Float32s
    correct_M: Bools
    label_M: npt.NDArray[np.object_] | None = None
    """Weak labels, None for an unreadable one; the whole field is None for a package that does not hold them."""

    def subset(self, keep_M: Bools) -> "GradedScores":
        """Return the rows where ``keep_M`` is set."""
        label_M = None if self.label_M is None else self.label_M[keep_M]
        return GradedScores(self.raw_M[keep_M], self.trust_M[keep_M], self.correct_M[keep_M], label_M)

    def places(self, classes: Sequence[str]) -> Int64s:
        """Return the index of each row's label among C classes, int64 [M]; C for a row whose label is none of them."""
        assert self.label_M is not None, "a rule that reads classes is given labels"
        place = {name: number for number, name in enumerate(classes)}
        return np.array([place.get(label, len(classes)) for label in self.label_M.tolist()], dtype=np.int64)


class ReferenceScores(Protocol):
    """The reference arm's scores of the pool, read anew at each call."""

    def trust_of_all(self) -> Float32s:
        """Return the trust in [0, 1] of each row, NaN for one that is never selected, float32 [N]: 4 bytes a row."""

    def ordered(self, floor: float | None = None) -> Streamed:
        """Return order statistics of all raw scores, or of those at or above ``floor``, without holding the scores."""

    def num_trusted(self, threshold: float) -> int:
        """Return the number of rows with at least this trust; counted batch by batch."""

    def sample_of(self, classes: Sequence[str], seed: int) -> ClassScores:
        """Return raw scores and classes of all rows or, if there are many, of a sample drawn by row id."""

    def num_above_by_class(self, classes: Sequence[str], threshold_C: npt.NDArray[np.float64]) -> Int64s:
        """Return the number of rows of each class that score at least the class's threshold, int64 [C]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Inputs of the budget rules; ``curation.registry.Budget.reads`` declares which fields a rule is given."""

    num_rows: int
    """Number of rows labelled without error."""
    num_right: int | None = None
    """``right``: number of right weak labels among the rows that may be selected."""
    scores: ReferenceScores | None = None
    """``scores``: the reference arm's scores of each row."""
    measured: GradedScores | None = None
    """``measured``: the source split, or the probe that is named."""
    calibration: GradedScores | None = None
    """``calibration``: the calibration split."""
    floor: float | None = None
    """Lowest raw score of the rows from which the calibration rows were drawn; None if drawn from all rows."""
    classes: Sequence[str] | None = None
    """The closed set of labels, or None if labels are open."""
    seed: int

    @property
    def trust_N(self) -> Float32s:
        """Trust of all rows, read anew by :meth:`ReferenceScores.trust_of_all` of ``scores``."""
        assert self.scores is not None, "declared in BUDGETS"
        return self.scores.trust_of_all()


class Count(NamedTuple):
    """A budget's number of rows, with the calibration that certifies it, if any."""

    n: int
    threshold: float | None = None
    """Lowest raw score of the reference arm with which a row passes."""
    risk: Json | None = None
    """The settings and the result of a calibration (``curation.selection.risk.RiskCut``)."""
    is_cut: bool = False
    """Whether the n rows are all rows that pass a threshold of the reference arm; rows that a cap on labels removes are
    then not replaced by rows below the threshold."""
    shares: ClassShares | None = None
    """Shares of the classes among the n rows, if each class has its own threshold."""


class BudgetRule(Protocol):
    """A budget rule, constructed with its settings."""

    def count(self, pool: Pool) -> Count:
        """Return the number of rows."""


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """A fixed number of rows."""

    n: int

    def count(self, pool: Pool) -> Count:
        """Return ``n``."""
        return Count(self.n)


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of the labelled pool, rounded down."""

    share: float

    def count(self, pool: Pool) -> Count:
        """Return the share as a number of rows, or raise ``BudgetError`` if that is less than one row."""
        found = f"{self.share} of {pool.num_rows} labelled rows is less than one"
        return Count(_require_some(count_share(self.share, pool.num_rows), "share", found))


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """The paper's budget: the number of right weak labels, at most ``cap`` (App. "Budget definition")."""

    cap: int

    def count(self, pool: Pool) -> Count:
        """Return the number, or raise ``BudgetError`` if no weak label is right."""
        assert pool.num_right is not None, "declared in BUDGETS"
        return Count(min(_require_some(pool.num_right, "oracle", "no weak label of the pool is right"), self.cap))


@dataclass(frozen=True, kw_only=True)
class FitPurity:
    """The product floor(purity on the fit set x right weak labels of the pool) (paper, App. "Quantitative Reasoning").

    The purity is that of the rows that the reference arm accepts in the fit set, or in the probe that replaces it.
    """

    def count(self, pool: Pool) -> Count:
        """Return the product, or raise ``BudgetError`` if it is below 1."""
        assert pool.measured is not None and pool.num_right is not None, "declared in BUDGETS"
        accepted_M = pool.measured.trust_M >= ACCEPTED
        num_right, num = int(pool.measured.correct_M[accepted_M].sum()), int(accepted_M.sum())
        found = f"purity {num_right}/{num} on the fit set times {pool.num_right} right weak labels is below 1"
        return Count(_require_some(num_right * pool.num_right // max(num, 1), "fit_purity", found))


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The rows whose trust reaches a threshold."""

    threshold: float

    def count(self, pool: Pool) -> Count:
        """Return the number of these rows, or raise ``BudgetError`` if there are none."""
        assert pool.scores is not None, "declared in BUDGETS"
        found = f"no row has a trust of at least {self.threshold}"
        return Count(_require_some(pool.scores.num_trusted(self.threshold), "threshold", found), is_cut=True)


def check_pool(budget: BudgetConfig, num_rows: int) -> None:
    """Raise ``BudgetError`` for a budget of more than a pool's ``num_rows``, before anything is labelled."""
    if budget.n is not None and budget.n > num_rows:
        raise BudgetError(
            f"selection.budget: n = {budget.n:,} is more than the {num_rows:,} rows of the pool (of a generation's "
            "share of it); lower n or give a larger pool"
        )


def _require_some(n: int, rule: str, found: str) -> int:
    if n < 1:
        raise BudgetError(
            f"selection.budget.{rule}: {found}, which makes the budget 0; set selection.budget.n, "
            "or take a better teacher"
        )
    return n
