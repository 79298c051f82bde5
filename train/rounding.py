"""Decides whether a fitted trust function may score in bfloat16, by rows that its weights have not seen."""

from typing import TypeVar

import numpy as np
import torch

from curation.arrays import Bools, Float32s, Int64s
from curation.config import TrustConfig
from curation.json_types import Json
from curation.metrics import compute_auc_value
from curation.trust.parts import VALIDATION
from curation.trust.states import SCORE_ROWS, ScoreDtype, StateTrust
from train.trust_loop import LabelledRows

TOP_SHARE = 0.1
"""The share of rows that count as the best, as a selection would take them."""
LEAST_OVERLAP = 0.98
"""Minimum share of the best rows in float32 that are also among the best in bfloat16."""
MOST_AUC = 0.001
"""Maximum change of the AUC."""

Trust = TypeVar("Trust", bound=StateTrust)


def round_trust(trust: Trust, rows: LabelledRows, config: TrustConfig) -> Trust:
    """Return the trust function with the score type of ``config`` if that keeps the order, with a record of this.

    If the held-out rows are all right or all wrong, only the overlap counts.
    """
    if config.score_dtype == "float32":
        return trust
    held_M = rows.places(VALIDATION)
    exact_M, rounded_M = (
        compute_raw_at(trust.scoring_in(dtype), rows, held_M) for dtype in ("float32", config.score_dtype)
    )
    record = decide_dtype(exact_M, rounded_M, rows.correct_N[held_M], config.score_dtype)
    return trust.scoring_in(record["taken"]).noted(rounding=record)


def decide_dtype(exact_M: Float32s, rounded_M: Float32s, correct_M: Bools, asked: ScoreDtype) -> Json:
    """Return the type ``taken`` in view of held-out scores in float32 and in the type ``asked``, and why, as JSON."""
    found = compare_scores(exact_M, rounded_M, correct_M)
    kept = found["overlap"] >= LEAST_OVERLAP and found["auc_change"] <= MOST_AUC
    return {"asked": asked, "taken": asked if kept else "float32", **found}


def compare_scores(exact_M: Float32s, rounded_M: Float32s, correct_M: Bools) -> Json:
    """Return the share of the best rows that stays, the change of the AUC, and the number of rows compared."""
    num_best = max(1, round(TOP_SHARE * len(exact_M)))
    best, found = (np.argsort(-raw_M, kind="stable")[:num_best] for raw_M in (exact_M, rounded_M))
    change = 0.0
    if 0 < correct_M.sum() < len(correct_M):
        change = abs(compute_auc_value(rounded_M, correct_M) - compute_auc_value(exact_M, correct_M))
    return {"overlap": len(np.intersect1d(best, found)) / num_best, "auc_change": change, "num_rows": len(exact_M)}


def compute_raw_at(trust: StateTrust, rows: LabelledRows, places_M: Int64s) -> Float32s:
    """Return the logits of the rows at these places as a scan computes them, float32 [M]."""
    parts = [
        trust.raw_of([torch.from_numpy(rows.hidden_ND[places_M[start : start + SCORE_ROWS]])])
        for start in range(0, len(places_M), SCORE_ROWS)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)
