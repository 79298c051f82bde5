"""Fits probes on the states: of right and wrong, and of a row's class if labels are a closed set.

With the targets +1 and -1 and few rows for many numbers, ridge regression ranks rows as linear discriminant analysis
with a shrunken covariance does. Its closed form gives the scores of left-out folds, so that neither these nor the
choice of the penalty's strength takes further fits.

The target of a class probe (``curation.trust.class_probe``) is the gold class of the labelled rows. Where a row has
only a grade, a right label is its class, and a wrong one excludes a class. Probes of the given labels themselves, which
measure how a teacher agrees with itself, were tried and add nothing (docs/log/experiments.md).
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from curation.arrays import Bools, Float64s, Floats, Int64s
from curation.config.states import is_of_prompt
from curation.refs import TableRef
from curation.tables import io
from curation.trust.class_probe import LABEL, ClassProbe, find_value_places, log_odds
from train.trust_loop import LabelledRows

STRENGTHS = tuple(10.0 ** np.arange(-1, 4.1, 0.5))
"""Strengths of the penalty, for inputs of deviation 1 and a Gram matrix divided by the number of inputs."""
MOST = 4_096  # maximum number of rows of a fit if rows and numbers both exceed it; the other rows then need no fold


class Ridge(NamedTuple):
    """A fitted ridge regression of C targets."""

    weight_DC: Float64s
    bias_C: Float64s
    out_of_fold_NC: Float64s
    """The scores of each row by a regression that was fitted on the other folds, with the bias of all rows."""
    strength: float


def fit_ridge(hidden_ND: Floats, target_NC: Float64s, fold_N: Int64s) -> Ridge:
    """Fit a ridge regression with the strength of ``STRENGTHS`` whose out-of-fold scores have the least squared error.

    The inputs are standardised over all rows. Leaving a fold out of a quadratic problem changes its residuals r to
    (I - H)^-1 r, with the fold's block of the hat matrix H (Golub, Heath and Wahba 1979, for single rows). The mean
    target of the other folds is taken out of the scores: it is low where that of the fold is high, so that a
    probe that knows nothing would rank right rows last (Parker, Guenter and Bedo 2007,
    https://doi.org/10.1186/1471-2105-8-326).
    """
    num_rows, width = hidden_ND.shape
    if min(num_rows, width) > MOST:
        taken_M = np.sort(np.random.default_rng(0).permutation(num_rows)[:MOST])
        part = fit_ridge(hidden_ND[taken_M], target_NC[taken_M], fold_N[taken_M])
        parts = [hidden_ND[start : start + MOST] @ part.weight_DC for start in range(0, num_rows, MOST)]
        score_NC = np.concatenate(parts) + part.bias_C
        score_NC[taken_M] = part.out_of_fold_NC
        return part._replace(out_of_fold_NC=score_NC)
    scaled_ND = torch.from_numpy(np.ascontiguousarray(hidden_ND, dtype=np.float64))
    mean_D, scale_D = scaled_ND.mean(0), scaled_ND.std(0, correction=0)
    scale_D = torch.where(scale_D > 1e-6, scale_D, 1.0) * width**0.5
    scaled_ND = (scaled_ND - mean_D) / scale_D
    wanted_NC = torch.from_numpy(target_NC)
    mean_C = wanted_NC.mean(0)
    # Squared singular values above rounding, and left singular vectors, by the smaller Gram matrix.
    is_wide = num_rows <= width
    value_R, vectors = torch.linalg.eigh(scaled_ND @ scaled_ND.T if is_wide else scaled_ND.T @ scaled_ND)
    kept_R = value_R > max(float(value_R[-1]), 1e-12) * 1e-9
    value_R, vectors = value_R[kept_R], vectors[:, kept_R]
    left_NR = vectors if is_wide else scaled_ND @ vectors / value_R.sqrt()
    along_RC = left_NR.T @ (wanted_NC - mean_C)
    folds = [torch.from_numpy(np.flatnonzero(fold_N == fold)) for fold in np.unique(fold_N)]
    best_error, best_strength, best_NC = float("inf"), STRENGTHS[0], wanted_NC
    for strength in STRENGTHS:
        share_R = value_R / (value_R + strength)
        out_NC = torch.empty_like(wanted_NC)
        for rows_B in folds:
            constant_B1 = torch.full((len(rows_B), 1), num_rows**-0.5, dtype=torch.float64)
            part_BR = torch.cat([left_NR[rows_B] * share_R.sqrt(), constant_B1], dim=1)
            residual_BC = wanted_NC[rows_B] - mean_C - left_NR[rows_B] @ (share_R[:, None] * along_RC)
            out_NC[rows_B] = wanted_NC[rows_B] - _solve_left_out(part_BR, residual_BC)
        error = float((out_NC - wanted_NC).square().mean())
        if error < best_error:
            best_error, best_strength, best_NC = error, strength, out_NC
    dual_NC = left_NR @ (along_RC / (value_R + best_strength)[:, None])
    weight_DC = scaled_ND.T @ dual_NC / scale_D[:, None]
    for rows_B in folds:
        others_C = (wanted_NC.sum(0) - wanted_NC[rows_B].sum(0)) / (num_rows - len(rows_B))
        best_NC[rows_B] += mean_C - others_C
    return Ridge(weight_DC.numpy(), (mean_C - mean_D @ weight_DC).numpy(), best_NC.numpy(), best_strength)


def _solve_left_out(part_BR: Tensor, residual_BC: Tensor) -> Tensor:
    """Return (I - P P')^-1 r, by the smaller of the two systems that give it (Woodbury)."""
    num_rows, width = part_BR.shape
    if num_rows <= width:
        left_BB = torch.eye(num_rows, dtype=torch.float64) - part_BR @ part_BR.T
        left_out_BC: Tensor = torch.linalg.solve(left_BB, residual_BC)
        return left_out_BC
    inner_RR = torch.eye(width, dtype=torch.float64) - part_BR.T @ part_BR
    added_BC: Tensor = part_BR @ torch.linalg.solve(inner_RR, part_BR.T @ residual_BC)
    return residual_BC + added_BC


SHARPNESS = 10.0 ** np.arange(-1, 2.6, 0.1)  # factors of the scores, one of which the out-of-fold likelihood chooses


class ClosedLabels(NamedTuple):
    """A closed set of labels, and the table with the gold labels of the labelled rows."""

    classes: tuple[str, ...]
    examples: TableRef  # source split, with ``gold``


def with_classes(rows: LabelledRows, labels: TableRef, closed: ClosedLabels) -> LabelledRows:
    """Return the rows with their label's place among the classes, as a number ``LABEL``, and their gold classes."""
    label_N, gold_N = (
        find_value_places(io.take(table, rows.row_ids_N, [name])[name].combine_chunks(), closed.classes)
        for table, name in ((labels, LABEL), (closed.examples, "gold"))
    )
    return rows._replace(
        numbers=(*rows.numbers, LABEL),
        numbers_NK=np.concatenate([rows.numbers_NK, label_N[:, None]], axis=1),
        classes=closed.classes,
        gold_N=gold_N,
    )


def fit_class_probe(
    rows: LabelledRows, used_M: Int64s, fold_M: Int64s, states: tuple[str, ...]
) -> tuple[ClassProbe, Float64s] | None:
    """Return a class probe fitted on the prompt states of the rows ``used_M``, whose folds are given.

    With it come the log-odds [M] of each row's label by a probe fitted without its fold. Return ``None`` if labels are
    no closed set, no state is of the prompt, or fewer than two classes are known.
    """
    ends = zip(states, rows.sizes, np.cumsum(rows.sizes).tolist(), strict=False)
    spans = [(end - size, end) for name, size, end in ends if is_of_prompt(name)]
    if not rows.classes or rows.gold_N is None or not spans:
        return None
    assert len(rows.gold_N) == len(rows.part_N), "gold classes are those of the rows"
    label_M = rows.numbers_NK[used_M, rows.numbers.index(LABEL)]
    target_MC = compute_targets(label_M, rows.correct_N[used_M], rows.gold_N[used_M], len(rows.classes))
    if (target_MC == 1).any(axis=0).sum() < 2:
        return None
    hidden_MD = np.concatenate([rows.hidden_ND[used_M][:, start:end] for start, end in spans], axis=1)
    found = fit_ridge(hidden_MD, target_MC, fold_M)

    def likelihood(factor: float) -> float:
        """Return the log-likelihood of the targets if the scores times this factor are the logits of a softmax."""
        logit_MC = found.out_of_fold_NC * factor
        return float((target_MC * (logit_MC - np.logaddexp.reduce(logit_MC, axis=1, keepdims=True))).sum())

    sharpness = float(max(SHARPNESS, key=likelihood))
    centre_D = hidden_MD.mean(axis=0, dtype=np.float64)
    weights = {
        "weight_CD": torch.from_numpy(np.ascontiguousarray(found.weight_DC.T)),
        "bias_C": torch.from_numpy(found.bias_C + centre_D @ found.weight_DC),  # of rows less their centre
        "centre_D": torch.from_numpy(centre_D),
    }
    odds_M = log_odds(found.out_of_fold_NC * sharpness, label_M)
    return ClassProbe(rows.classes, spans, weights, sharpness), odds_M


def compute_targets(label_M: Float64s, correct_M: Bools, gold_M: Float64s, num_classes: int) -> Float64s:
    """Return what is known of each row's class as probabilities, float64 [M, C].

    A row without a known class has the frequencies of the classes among the known rows, without the class that its
    label wrongly gives. A label or a gold label outside the classes is NaN.
    """
    known_M = np.where(np.isnan(gold_M) & correct_M, label_M, gold_M)
    is_known_M = ~np.isnan(known_M)
    found_MC = np.zeros((len(label_M), num_classes))
    found_MC[is_known_M, known_M[is_known_M].astype(np.int64)] = 1
    found_MC[~is_known_M] = found_MC.sum(axis=0) + 1
    excluded_M = ~is_known_M & ~np.isnan(label_M)
    found_MC[excluded_M, label_M[excluded_M].astype(np.int64)] = 0
    share_MC: Float64s = found_MC / found_MC.sum(axis=1, keepdims=True)
    return share_MC
