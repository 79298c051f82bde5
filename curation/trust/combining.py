"""Combinations of columns (numbers of the answers and members' logits) that are fitted fold by fold (stacking).

A labelled row's logit comes from weights fitted without it, a new row's from weights fitted on all labelled rows.
Cross-validation on the labelled rows chooses the whole stack or a simpler function.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold

from curation.arms import is_free
from curation.arrays import Bools, Float64s, Int64s
from curation.config import TrustConfig
from curation.errors import DegenerateSourceError
from curation.hashing import derive, hash_unit
from curation.json_types import Json, JsonView
from curation.metrics import compute_auc_difference, compute_auc_value
from curation.metrics.estimates import NORMAL_QUANTILE
from curation.trust.boosted_trees import BoostedTrees
from curation.trust.stacked import Combination, Logistic, PiecewiseLinearCalibrator, Trees


class Candidate(NamedTuple):
    """A function that may be chosen, with its out-of-fold scores."""

    name: str  # ``stacked``, ``fitted_confidence``, or a free signal
    combination: Combination
    raw_M: Float64s  # out-of-fold logits of the M labelled rows


def choose_candidate(
    simpler: Sequence[Candidate], stacked: Candidate, correct_M: Bools, proof: float
) -> tuple[Candidate, Json]:
    """Return the chosen function, and the reason as JSON.

    The whole stack is chosen, unless simpler functions exceed its cross-validated AUC by more than ``proof`` standard
    errors of the paired difference (DeLong); then the one that exceeds it most.
    """
    taken, most = stacked, 0.0
    found: list[Json] = []
    for candidate in simpler:
        ahead = compute_auc_difference(candidate.raw_M, stacked.raw_M, correct_M)
        error = (ahead.high - ahead.low) / (2 * NORMAL_QUANTILE)
        auc = compute_auc_value(candidate.raw_M, correct_M)
        found.append({"name": candidate.name, "auc": auc, "loses_by": -ahead.value, "standard_error": error})
        if ahead.value > proof * error and ahead.value > most:
            taken, most = candidate, ahead.value
    auc = compute_auc_value(stacked.raw_M, correct_M)
    rows = f"{len(correct_M):,} labelled rows"
    if taken is not stacked:
        reason = (
            f"trust is {taken.name} alone: in cross-validation on {rows} its AUC is {most:.3f} above that of "
            f"{stacked.name}, more than {proof:g} standard errors"
        )
    else:
        best = max((item for item in found if is_free(item["name"])), key=lambda item: item["auc"], default=None)
        against = "" if best is None else f"; the best free signal, {best['name']}, has {best['auc']:.3f}"
        reason = f"trust is {stacked.name}: its AUC in cross-validation on {rows} is {auc:.3f}{against}"
    own = {"name": stacked.name, "auc": auc, "loses_by": 0.0, "standard_error": 0.0}
    return taken, {"taken": taken.name, "candidates": [*found, own], "reason": reason}


STRENGTHS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
"""Inverse penalties of a logistic regression (scikit-learn's C): prior variances of the weights of columns of deviation
1. Regressions under all of them are averaged, weighted by their evidence."""
NUM_LEADS, LEADS = 2, (4.0, 16.0)
"""The number of free signals, the best by AUC, that lead in turn, and the deviations to which a lead's column is scaled
so that it is penalised less. With few rows the function stays near a lead that the evidence supports; with more
rows it departs from it. No lead, one, three and five, and one deviation for all sets were tried
(docs/log/experiments.md)."""
NEGLIGIBLE = 0.05  # priors with less than this share of the best one's evidence are left out of an average
LEARNED = 0.1
"""A member's logits of at least this deviation are a column of deviation 1; smaller ones, of a member that has learned
little, keep their ratio to it, since they would otherwise be noise of full size."""
LINE_ROWS, BEND_ROWS = 300, 500
"""Minimum numbers of labelled rows for calibrating logits by a line, and by a line with bends. Lines that shrink the
logits of fewer rows to a constant were tried (100 rows of four sets, 12 to 16 draws): where the teacher is
hardly better than a guess they gain less in Brier score (.0005) than they lose elsewhere (.002 to .005)."""
KNEES = (0.5, 0.75)
"""Quantiles of the logits at which a line may bend (docs/log/experiments.md has others, and beta calibration)."""
TREES: JsonView = {"num_trees": 100, "learning_rate": 0.05, "max_leaves": 8, "min_rows": 40}
"""Settings of the trees that combine members. They are small, because the members have already read the states."""


class Folded:
    """The outcomes of M labelled rows and the fold of each, on which combinations are fitted."""

    def __init__(self, correct_M: Bools, fold_M: Int64s) -> None:
        self.correct_M, self.fold_M = correct_M, fold_M
        self.num_rows, self.num_folds = len(correct_M), int(fold_M.max()) + 1

    def fit_column(self, name: str, column: str, column_M: Float64s) -> Candidate:
        """Return a candidate that ranks rows by one column."""
        filled_M1 = _fill_missing(column_M[:, None])
        model = _average_regressions(filled_M1, self.correct_M, np.ones(1))
        deviation = float(_compute_deviations(filled_M1)[0])
        if deviation and model.weight_K[0] < 1e-6 / deviation:  # a tiny weight above 0, so that rows rank by the column
            weight_K = np.array([1e-6 / deviation])
            model = Logistic(weight_K, model.bias + float((model.weight_K - weight_K) @ filled_M1.mean(axis=0)))
        # Not cross-fitted: a slope and an intercept hardly depend on the fold, and several would mix the ranks.
        return Candidate(name, Combination((column,), filled_M1.mean(axis=0), model), model.logits(filled_M1))

    def fit_logistic(
        self,
        name: str,
        names: tuple[str, ...],
        columns_MK: Float64s,
        *,
        leads: Sequence[str],
        rising: Sequence[str],
        num_members: int,
    ) -> Candidate:
        """Return a logistic regression of the columns, close to one of ``leads`` as far as the evidence supports it.

        The weights of the columns ``rising`` are not below 0. The last ``num_members`` columns are logits of members.
        """
        scale_K = np.ones(len(names))
        members = slice(len(names) - num_members, None)
        scale_K[members] = np.minimum(columns_MK[:, members].std(axis=0) / LEARNED, 1.0)
        lead_places, rising_places = ([names.index(column) for column in columns] for columns in (leads, rising))

        def fitted(taken_M: Bools) -> Logistic:
            taken_MK = _fill_missing(columns_MK, taken_M)[taken_M]
            return _average_regressions(taken_MK, self.correct_M[taken_M], scale_K, lead_places, rising_places)

        raw_M = self._compute_out_of_fold(columns_MK, fitted)
        calibrator = fit_rising_line(raw_M, self.correct_M)
        model, mean_K = fitted(np.ones(self.num_rows, dtype=np.bool_)), _fill_missing(columns_MK).mean(axis=0)
        return Candidate(name, Combination(names, mean_K, model, calibrator), calibrator(raw_M))

    def _compute_out_of_fold(self, columns_MK: Float64s, fitted: Callable[[Bools], Logistic]) -> Float64s:
        """Return logits [M] of models fitted on the other folds, without the differences in level between folds."""
        out_M, level_F = np.zeros(self.num_rows), np.zeros(self.num_folds)
        for fold in range(self.num_folds):
            held_M = self.fold_M == fold
            if not 0 < self.correct_M[~held_M].sum() < (~held_M).sum():  # few rows, of one outcome
                continue
            model, filled_MK = fitted(~held_M), _fill_missing(columns_MK, ~held_M)
            level_F[fold] = model.logits(filled_MK[~held_M]).mean()
            out_M[held_M] = model.logits(filled_MK[held_M])
        out_M += (level_F.mean() - level_F)[self.fold_M]
        return out_M

    def fit_trees(self, name: str, names: tuple[str, ...], columns_MK: Float64s, config: TrustConfig) -> Candidate:
        """Return boosted trees of the columns, calibrated by the line that fits their out-of-fold logits."""
        filled_MK, out_M = _fill_missing(columns_MK), np.empty(self.num_rows)
        settings = config.model_copy(update={"class_weight": 0.0})

        def fitted(taken_M: Bools) -> BoostedTrees:
            return BoostedTrees.fitted(filled_MK[taken_M], self.correct_M[taken_M], settings, {}, **TREES)

        for fold in range(self.num_folds):
            held_M = self.fold_M == fold
            out_M[held_M] = fitted(~held_M).logits(torch.from_numpy(filled_MK[held_M]))
        calibrator = fit_rising_line(out_M, self.correct_M)
        model = Trees(fitted(np.ones(self.num_rows, dtype=np.bool_)))
        return Candidate(name, Combination(names, filled_MK.mean(axis=0), model, calibrator), calibrator(out_M))


def assign_folds(
    row_ids_M: Int64s, correct_M: Bools, folds: int, seed: int, *, cluster_M: Int64s | None = None
) -> Int64s:
    """Return each row's fold, int64 [M]: rows of a class take folds in turn, in the order of a seeded hash.

    With ``cluster_M`` whole clusters are assigned, so that folds have about equal numbers of rows and of right rows.
    Raise ``DegenerateSourceError`` if there are fewer clusters than folds.
    """
    fold_M = np.empty(len(correct_M), dtype=np.int64)
    if cluster_M is not None:
        if (num := len(np.unique(cluster_M))) < folds:
            raise DegenerateSourceError(
                f"trust: the labelled rows that can be used are of {num} groups (splits.group), fewer than the {folds} "
                "folds of a fit; label rows of more groups, or set trust.kind: internal_confidence"
            )
        by_id = np.argsort(row_ids_M)
        splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=derive(seed, "stack folds"))
        parts = splitter.split(np.zeros((len(by_id), 1)), correct_M[by_id], cluster_M[by_id])
        for fold, (_, held) in enumerate(parts):
            fold_M[by_id[held]] = fold
        return fold_M
    unit_M = hash_unit(row_ids_M, derive(seed, "stack folds"))
    for start, of_class_M in enumerate((correct_M, ~correct_M)):
        (places,) = np.nonzero(of_class_M)
        fold_M[places[np.argsort(unit_M[places], kind="stable")]] = (np.arange(len(places)) + start) % folds
    return fold_M


def fit_rising_line(raw_M: Float64s, correct_M: Bools) -> PiecewiseLinearCalibrator:
    """Return the rising line, with bends if there are many rows, that calibrates out-of-fold logits.

    A penalty makes logits too small, and the most trusted rows can be likelier right than a straight line says.
    """
    if len(raw_M) < LINE_ROWS:
        return PiecewiseLinearCalibrator()
    calibrator = average_lines(raw_M, correct_M) if len(raw_M) >= BEND_ROWS else None
    return calibrator or fit_line(raw_M, correct_M) or PiecewiseLinearCalibrator()


def average_lines(raw_M: Float64s, correct_M: Bools) -> PiecewiseLinearCalibrator | None:
    """Return the likelihood-weighted mean of rising lines with a bend at one of ``KNEES``, or None if none rises."""
    found = [fit_line(raw_M, correct_M, knee) for knee in np.quantile(raw_M, KNEES).tolist()]
    lines = [line for line in found if line is not None]
    if not lines:
        return None
    sign_M = np.where(correct_M, -1.0, 1.0)
    share_L = softmax([-np.logaddexp(0, sign_M * line(raw_M)).sum() for line in lines]).tolist()
    weighed = list(zip(share_L, lines, strict=True))
    return PiecewiseLinearCalibrator(
        sum(share * line.intercept for share, line in weighed),
        sum(share * line.slope for share, line in weighed),
        tuple(share * bend for share, line in weighed for bend in line.bends),
        tuple(knee for line in lines for knee in line.knees),
    )


def fit_line(raw_M: Float64s, correct_M: Bools, *knees: float) -> PiecewiseLinearCalibrator | None:
    """Return the likeliest line with these ascending knees, or None if it does not rise everywhere."""
    columns_MK = np.stack([raw_M, *(np.maximum(raw_M - knee, 0) for knee in knees)], axis=1)
    model = LogisticRegression(max_iter=1000).fit(columns_MK, correct_M.astype(int))
    slope, *bends = model.coef_[0].tolist()
    if min(accumulate([slope, *bends])) <= 0:
        return None
    return PiecewiseLinearCalibrator(float(model.intercept_[0]), slope, tuple(bends), knees)


def has_spread(column_M: Float64s) -> bool:
    """Return whether the known values of a column differ by more than rounding."""
    known = column_M[~np.isnan(column_M)]
    return bool(len(known) and _compute_deviations(known[:, None])[0] > 0)


def _compute_deviations(columns_MK: Float64s) -> Float64s:
    """Return the standard deviation of each column, float64 [K]; 0 where it is no more than rounding."""
    deviation_K: Float64s = columns_MK.std(axis=0)
    return np.where(deviation_K > 1e-9 * np.maximum(1.0, np.abs(columns_MK).max(axis=0)), deviation_K, 0.0)


def _fill_missing(columns_MK: Float64s, taken_M: Bools | slice = slice(None)) -> Float64s:
    """Return the columns with missing values replaced by the mean of the rows ``taken_M``, or 0 if those have none."""
    known_MK = ~np.isnan(columns_MK[taken_M])
    mean_K = np.nansum(columns_MK[taken_M], axis=0) / np.maximum(known_MK.sum(axis=0), 1)
    return np.where(np.isnan(columns_MK), mean_K, columns_MK)


def _average_regressions(
    columns_MK: Float64s, correct_M: Bools, scale_K: Float64s, leads: Sequence[int] = (), rising: Sequence[int] = ()
) -> Logistic:
    """Return the mean of logistic regressions under all priors, weighted by evidence (Bayesian model averaging).

    ``scale_K``: deviations to which the columns are scaled; each column of ``leads`` has each of ``LEADS`` in turn.
    Weights of the columns ``rising`` are not below 0. Source: Hoeting et al. 1999, "Bayesian Model Averaging: A
    Tutorial".
    """
    mean_K, deviation_K = columns_MK.mean(axis=0), _compute_deviations(columns_MK)
    inverse_K = np.where(deviation_K > 0, 1 / np.where(deviation_K > 0, deviation_K, 1.0), 0.0)
    scaled_MK = (columns_MK - mean_K) * inverse_K
    scales = _list_scales(scale_K, leads)
    priors = [(strength, prior_K) for strength in STRENGTHS for prior_K in scales]
    log_P = log_evidences(scaled_MK, correct_M, priors)
    # The priors with a lead weigh together as much as the one without.
    share_P = np.exp(log_P - log_P.max()) / np.tile([1, *[len(scales) - 1] * (len(scales) - 1)], len(STRENGTHS))
    share_P /= share_P.max()
    weight_K, bias, total = np.zeros(len(scale_K)), 0.0, 0.0
    for share, (strength, prior_K) in zip(share_P, priors, strict=True):
        if share < NEGLIGIBLE:
            continue
        of_K, of_bias = fit_rising_regression(scaled_MK * prior_K, correct_M, strength, rising)
        weight_K += share * of_K * prior_K
        bias, total = bias + share * of_bias, total + share
    weight_K *= inverse_K / total
    return Logistic(weight_K, float(bias / total - weight_K @ mean_K))


def fit_rising_regression(
    columns_MK: Float64s, correct_M: Bools, strength: float, rising: Sequence[int]
) -> tuple[Float64s, float]:
    """Return weights and bias of a logistic regression in which no weight of the columns ``rising`` is below 0.

    ``strength``: the prior variance of the weights, scikit-learn's C. Source: Breiman 1996, "Stacked Regressions".
    """
    model = LogisticRegression(C=strength, max_iter=1000).fit(columns_MK, correct_M.astype(int))
    both = np.append(model.coef_[0], model.intercept_)
    falling = [place for place in rising if both[place] < 0]
    if not falling:
        return both[:-1], float(both[-1])

    def loss(both: Float64s) -> tuple[float, Float64s]:
        logit_M = columns_MK @ both[:-1] + both[-1]
        rest_M = expit(logit_M) - correct_M
        penalty = both[:-1] / strength
        value = np.logaddexp(0, logit_M).sum() - logit_M[correct_M].sum() + both[:-1] @ penalty / 2
        return float(value), np.append(rest_M @ columns_MK + penalty, rest_M.sum())

    both[falling] = 0
    bounds = [(0 if place in rising else None, None) for place in range(len(both))]
    options = {"maxiter": 1_000, "ftol": 1e-10}
    found = minimize(loss, both, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return found[:-1], float(found[-1])


def _list_scales(scale_K: Float64s, leads: Sequence[int]) -> list[Float64s]:
    """Return the deviations of the columns without a lead, then with each column of ``leads`` as the lead."""
    is_lead_LK = np.eye(len(scale_K), dtype=np.bool_)[list(leads)]
    return [scale_K, *(np.where(is_lead_K, size, scale_K) for is_lead_K in is_lead_LK for size in LEADS)]


def log_evidences(columns_MK: Float64s, correct_M: Bools, priors: Sequence[tuple[float, Float64s]]) -> Float64s:
    """Return the log marginal likelihood of the outcomes under each prior, float64 [P], up to one constant.

    It is that of linear regression on columns of mean 0, whose weights are logistic weights times the outcomes'
    variance (MacKay 1992, "Bayesian Interpolation"). A prior is the variance of a logistic weight and each column's
    deviation, [K].
    """
    share = correct_M.mean()
    variance = share * (1 - share)
    gram_KK, product_K = columns_MK.T @ columns_MK, columns_MK.T @ (correct_M - share)
    found_P = np.empty(len(priors))
    for place, (strength, prior_K) in enumerate(priors):
        by_K = prior_K * (strength * variance) ** 0.5
        lower_KK = np.linalg.cholesky(np.eye(len(by_K)) + gram_KK * np.outer(by_K, by_K))
        fitted_K = np.linalg.solve(lower_KK, product_K * by_K)
        found_P[place] = fitted_K @ fitted_K / (2 * variance) - np.log(np.diag(lower_KK)).sum()
    return found_P
