"""Fits the probe of a row's class, where labels are a closed set (``curation.trust.class_probe``).

The target is the gold class of the labelled rows. Where a row has only a grade, a right label is its class, and a wrong
one excludes a class. Probes of the given labels themselves, of the labelled rows or of all, measure how a teacher
agrees with itself; they were tried and add nothing to a teacher's answers (docs/log.md).
"""

from typing import NamedTuple

import numpy as np
import torch

from curation.arrays import Bools, Float64s, Floats, Int64s
from curation.config.states import is_of_prompt
from curation.refs import TableRef
from curation.tables import io
from curation.trust.class_probe import LABEL, ClassProbe, log_odds, places
from train.ridge import fit_ridge
from train.trust_loop import LabelledRows

SHARPNESS = 10.0 ** np.arange(-1, 2.6, 0.1)
"""Factors of the scores, of which the out-of-fold likelihood chooses."""


class ClosedLabels(NamedTuple):
    """A closed set of labels, and where the gold ones of the labelled rows stand."""

    classes: tuple[str, ...]
    examples: TableRef
    """The source split, with ``gold``."""


class FittedClasses(NamedTuple):
    """A class probe, and each labelled row's log-odds of its label by a probe that has not seen the row."""

    probe: ClassProbe
    out_of_fold_M: Float64s


def with_classes(rows: LabelledRows, labels: TableRef, closed: ClosedLabels) -> LabelledRows:
    """The rows with the place of their label among the classes, as a number ``LABEL``, and their gold classes."""
    label_N, gold_N = (
        places(io.take(table, rows.row_ids_N, [name])[name].combine_chunks(), closed.classes)
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
) -> FittedClasses | None:
    """Fit on the states of the prompt of the rows ``used_M``, whose folds are given.

    ``None`` where labels are no closed set, no state is of the prompt, or fewer than two classes are known.
    """
    spans = _prompts(states, rows.sizes)
    if not rows.classes or rows.gold_N is None or not spans:
        return None
    assert len(rows.gold_N) == len(rows.part_N), "gold classes are those of the rows"
    label_M = rows.numbers_NK[used_M, rows.numbers.index(LABEL)]
    target_MC = targets(label_M, rows.correct_N[used_M], rows.gold_N[used_M], len(rows.classes))
    if (target_MC == 1).any(axis=0).sum() < 2:
        return None
    hidden_MD = np.concatenate([rows.hidden_ND[used_M][:, start:end] for start, end in spans], axis=1)
    found = fit_ridge(hidden_MD, target_MC, fold_M)
    sharpness = _sharpness(found.out_of_fold_NC, target_MC)
    return FittedClasses(
        ClassProbe(rows.classes, spans, _weights(found.weight_DC, found.bias_C, hidden_MD), sharpness),
        log_odds(found.out_of_fold_NC * sharpness, label_M),
    )


def targets(label_M: Float64s, correct_M: Bools, gold_M: Float64s, num_classes: int) -> Float64s:
    """The probability of each class of the rows, as far as it is known, float64 [M, C].

    A row without a known class has those of the others, each as likely as it is among the known rows, without the one
    that its label wrongly gives. NaN stands for a label or a gold label that is none of the classes.
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


def _prompts(states: tuple[str, ...], sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """First and end place of the states of the prompt, side by side with all others."""
    ends = np.cumsum(sizes).tolist()
    return [(end - size, end) for name, size, end in zip(states, sizes, ends, strict=False) if is_of_prompt(name)]


def _sharpness(score_MC: Float64s, target_MC: Float64s) -> float:
    """The factor under which the scores give the targets the greatest likelihood, as logits of a softmax."""

    def likelihood(factor: float) -> float:
        logit_MC = score_MC * factor
        return float((target_MC * (logit_MC - np.logaddexp.reduce(logit_MC, axis=1, keepdims=True))).sum())

    return float(max(SHARPNESS, key=likelihood))


def _weights(weight_DC: Float64s, bias_C: Float64s, hidden_MD: Floats) -> dict[str, torch.Tensor]:
    """The weights of a ``ClassProbe``; the bias is that of rows less their centre."""
    centre_D = hidden_MD.mean(axis=0, dtype=np.float64)
    return {
        "weight_CD": torch.from_numpy(np.ascontiguousarray(weight_DC.T)),
        "bias_C": torch.from_numpy(bias_C + centre_D @ weight_DC),
        "centre_D": torch.from_numpy(centre_D),
    }
