"""Combinations of columns, numbers of the answers and members' logits, fitted fold by fold (stacking).

A labelled row's logit comes from weights that have not seen it; a new row's from weights of all labelled rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from curation.config import TrustConfig
from curation.hashing import derive, hash_unit
from curation.trust.boosted_trees import BoostedTrees
from curation.trust.stacked import Bent, Combination, Logistic, Trees
from train.choice import Candidate
from train.trust_loop import Flags, Ints

Floats = npt.NDArray[np.float64]
STRENGTHS, STRENGTH_OF_FEW = (0.01, 0.03, 0.1, 0.3), 0.005
"""Inverse penalties of the logistic regression (scikit-learn's C), for columns of deviation 1, the strongest first. The
first whose out-of-fold loss is within one standard error of the least is taken (Breiman et al. 1984, section 3.4.3); of
fewer rows than ``LINE_ROWS``, whose loss does not tell, ``STRENGTH_OF_FEW``. With 100 rows and .01 the Brier score was
above a constant's where the teacher is hardly better than a guess (ARC-Challenge; 16 draws, other source rows)."""
ALONE = (0.0003, 0.003, 0.03, 0.3)
"""The same of one column alone, which ranks rows alike under any; the one with the least loss is taken."""
LEAD = 2.0
"""The deviation of the best free signal's column: it is penalised less, so that with few rows the stack is near that
signal, and with more it departs from it. With 5 the AUC of 100 rows was .005 lower on SciQ and .009 on irony."""
LEARNED = 0.1
"""A member's logits of at least this deviation are a column of deviation 1; smaller ones, of a member that has learned
little, stay as much smaller, as they would be noise of full size otherwise."""
LINE_ROWS, BEND_ROWS = 300, 1_000
"""From so many labelled rows on a line makes logits those of a probability, and from so many one with a bend. Lines
that draw logits of fewer rows to a constant were tried (100 rows of four sets, 12 to 16 draws): where the teacher is
hardly better than a guess they gain less in Brier score (.0005) than they lose elsewhere (.002 to .005)."""
TREES: Mapping[str, Any] = {"num_trees": 100, "learning_rate": 0.05, "max_leaves": 8, "min_rows": 40}
"""Settings of the combination's trees: small ones, as the members have read the states."""


class Folded:
    """The outcomes of M labelled rows and the fold of each, on which combinations are fitted."""

    def __init__(self, correct_M: Flags, fold_M: Ints) -> None:
        self.correct_M, self.fold_M = correct_M, fold_M
        self.num_rows, self.num_folds = len(correct_M), int(fold_M.max()) + 1

    def alone(self, name: str, column: str, column_M: Floats) -> Candidate:
        """One number, by whose order rows rank."""
        column_M1 = column_M[:, None]
        strength, _ = self._out_of_fold(column_M1, np.ones(1), ALONE, errors=0)
        filled_M1 = _filled(column_M1)
        model = _logistic(filled_M1, self.correct_M, np.ones(1), strength, rising=True)
        # One slope and one intercept: where they are fitted hardly matters, but folds of their own would mix the ranks.
        return Candidate(name, Combination((column,), filled_M1.mean(axis=0), model), model.logits(filled_M1))

    def logistic(
        self, name: str, names: tuple[str, ...], columns_MK: Floats, *, lead: str, num_members: int
    ) -> Candidate:
        """A logistic regression of the columns; out-of-fold loss chooses its penalty, which hardly touches ``lead``.

        The last ``num_members`` columns are logits of members.
        """
        scale_K = np.array([LEAD if column == lead else 1.0 for column in names])
        members = slice(len(names) - num_members, None)
        scale_K[members] = np.minimum(columns_MK[:, members].std(axis=0) / LEARNED, 1.0)
        strengths = STRENGTHS if self.num_rows >= LINE_ROWS else (STRENGTH_OF_FEW,)
        strength, raw_M = self._out_of_fold(columns_MK, scale_K, strengths)
        filled_MK = _filled(columns_MK)
        model = _logistic(filled_MK, self.correct_M, scale_K, strength)
        bent = calibrated(raw_M, self.correct_M)
        return Candidate(name, Combination(names, filled_MK.mean(axis=0), model, bent), bent(raw_M))

    def trees(self, name: str, names: tuple[str, ...], columns_MK: Floats, config: TrustConfig) -> Candidate:
        """The columns in boosted trees, with the slope and intercept that their out-of-fold logits need."""
        filled_MK, out_M = _filled(columns_MK), np.empty(self.num_rows)
        settings = config.model_copy(update={"class_weight": 0.0})

        def fitted(taken_M: Flags) -> BoostedTrees:
            return BoostedTrees.fitted(filled_MK[taken_M], self.correct_M[taken_M], settings, {}, **TREES)

        for fold in range(self.num_folds):
            held_M = self.fold_M == fold
            out_M[held_M] = fitted(~held_M).logits(torch.from_numpy(filled_MK[held_M]))
        bent, model = calibrated(out_M, self.correct_M), Trees(fitted(np.ones(self.num_rows, dtype=np.bool_)))
        return Candidate(name, Combination(names, filled_MK.mean(axis=0), model, bent), bent(out_M))

    def _out_of_fold(
        self, columns_MK: Floats, scale_K: Floats, strengths: Sequence[float], *, errors: float = 1.0
    ) -> tuple[float, Floats]:
        """The first inverse penalty whose out-of-fold loss is near the least, and the logits [M] under it.

        ``errors``: how many standard errors of the paired difference from the least loss are near.
        """
        out_SM, level_SF = np.empty((len(strengths), self.num_rows)), np.zeros((len(strengths), self.num_folds))
        for fold in range(self.num_folds):
            held_M = self.fold_M == fold
            filled_MK = _filled(columns_MK, ~held_M)
            for place, strength in enumerate(strengths):
                if 0 < self.correct_M[~held_M].sum() < (~held_M).sum():
                    model = _logistic(filled_MK[~held_M], self.correct_M[~held_M], scale_K, strength)
                    level_SF[place, fold] = model.logits(filled_MK[~held_M]).mean()
                    out_SM[place, held_M] = model.logits(filled_MK[held_M])
                else:  # a handful of rows
                    out_SM[place, held_M] = 0.0
        out_SM += (level_SF.mean(axis=1, keepdims=True) - level_SF)[:, self.fold_M]
        loss_SM = np.logaddexp(0, np.where(self.correct_M, -out_SM, out_SM))
        more_SM = loss_SM - loss_SM[loss_SM.mean(axis=1).argmin()]
        near_S = more_SM.mean(axis=1) <= errors * more_SM.std(axis=1) / self.num_rows**0.5
        taken = int(near_S.argmax())
        return strengths[taken], out_SM[taken]


def folds_of(row_ids_M: Ints, correct_M: Flags, folds: int, seed: int) -> Ints:
    """The fold of each row, int64 [M]: rows of a class in the order of a seeded hash of their ids, dealt in turn."""
    fold_M = np.empty(len(correct_M), dtype=np.int64)
    unit_M = hash_unit(row_ids_M, derive(seed, "stack folds"))
    for start, of_class_M in enumerate((correct_M, ~correct_M)):
        (places,) = np.nonzero(of_class_M)
        fold_M[places[np.argsort(unit_M[places], kind="stable")]] = (np.arange(len(places)) + start) % folds
    return fold_M


def calibrated(raw_M: Floats, correct_M: Flags) -> Bent:
    """The rising line, of many rows with a bend at the median, that makes out-of-fold logits those of a probability.

    A penalty makes logits too small, and the most trusted rows can be surer than a straight line says.
    """
    from sklearn.linear_model import LogisticRegression

    if len(raw_M) < LINE_ROWS:
        return Bent()
    knee = float(np.median(raw_M))
    both_M2 = np.stack([raw_M, np.maximum(raw_M - knee, 0)], axis=1)
    for columns in ((0, 1), (0,)) if len(raw_M) >= BEND_ROWS else ((0,),):
        model = LogisticRegression(max_iter=1000).fit(both_M2[:, columns], correct_M.astype(int))
        slope, bend = (*model.coef_[0].tolist(), 0.0)[:2]
        if slope > 0 and slope + bend > 0:
            return Bent(float(model.intercept_[0]), slope, bend, knee)
    return Bent()


def varies(column_M: Floats) -> bool:
    """Whether the known values of a column differ by more than rounding."""
    known = column_M[~np.isnan(column_M)]
    return bool(len(known) and _deviations(known[:, None])[0] > 0)


def _deviations(columns_MK: Floats) -> Floats:
    """The standard deviation of each column, float64 [K]; 0 where it is no more than rounding."""
    deviation_K: Floats = columns_MK.std(axis=0)
    return np.where(deviation_K > 1e-9 * np.maximum(1.0, np.abs(columns_MK).max(axis=0)), deviation_K, 0.0)


def _filled(columns_MK: Floats, taken_M: Flags | slice = slice(None)) -> Floats:
    """The columns with the mean of the rows ``taken_M`` in place of missing values; 0 where those have none."""
    known_MK = ~np.isnan(columns_MK[taken_M])
    mean_K = np.nansum(columns_MK[taken_M], axis=0) / np.maximum(known_MK.sum(axis=0), 1)
    return np.where(np.isnan(columns_MK), mean_K, columns_MK)


def _logistic(
    columns_MK: Floats, correct_M: Flags, scale_K: Floats, strength: float, *, rising: bool = False
) -> Logistic:
    """A logistic regression of columns that are brought to deviations ``scale_K``, told of the columns as they are.

    ``rising``: no weight is below 0, nor is 0, so that rows rank by a single column.
    """
    from sklearn.linear_model import LogisticRegression

    mean_K, deviation_K = columns_MK.mean(axis=0), _deviations(columns_MK)
    factor_K = np.where(deviation_K > 0, scale_K / np.where(deviation_K > 0, deviation_K, 1.0), 0.0)
    model = LogisticRegression(C=strength, max_iter=1000).fit((columns_MK - mean_K) * factor_K, correct_M.astype(int))
    weight_K = model.coef_[0] * factor_K
    if rising:
        weight_K = np.maximum(weight_K, 1e-6 * factor_K)
    return Logistic(weight_K, float(model.intercept_[0] - weight_K @ mean_K))
