"""Risk-controlled cuts where there is almost nothing to go by: equal scores, five rows, no readable label."""

import math

import numpy as np
import pytest

from curation.errors import UserError
from curation.selection.risk import calibrate, compute_risk_curve
from curation.selection.risk.rules import Rule

ALPHA, DELTA = 0.2, 0.1
EVERY = [(rule, kind) for rule in Rule.__args__ for kind in ("threshold", "top_k")]


@pytest.mark.parametrize(("rule", "kind"), EVERY)
def test_equal_scores_are_cut_all_or_not_at_all(rule, kind):
    """No rule may separate them: the cut is below all of them, or there is none."""
    for num_rows, num_right, score in [
        (2000, 2000, 0.5),
        (2000, 1000, 0.5),
        (2000, 2000, 0.0),
        (1, 1, -3.0),
        (1, 0, 7.0),
    ]:
        right_M = np.arange(num_rows) < num_right
        cut = calibrate(
            np.full(num_rows, score), right_M, np.full(500, score), alpha=ALPHA, delta=DELTA, rule=rule, kind=kind
        )
        assert cut.threshold == (score if num_right == 2000 else None), cut
        assert cut.num_calibration == num_rows
        points = compute_risk_curve(
            np.full(num_rows, score), right_M, np.full(500, score), alpha=ALPHA, delta=DELTA, rule=rule, kind=kind
        )
        assert not np.isnan(points.bound_G).any() and points.share_G.tolist() == [1.0]


@pytest.mark.parametrize("num_right", range(6))
@pytest.mark.parametrize("alpha", [0.1, 0.4, 0.5, 0.9])
def test_five_calibration_rows_certify_what_the_binomial_test_allows(num_right: int, alpha: float):
    """All at one score: certain with probability 1 - delta if so few wrong ones of five are rare at noise alpha."""
    right_M = np.arange(5) < num_right
    cut = calibrate(np.zeros(5), right_M, np.zeros(50), alpha=alpha, delta=DELTA)
    rare = sum(math.comb(5, wrong) * alpha**wrong * (1 - alpha) ** (5 - wrong) for wrong in range(5 - num_right + 1))
    assert (cut.threshold is not None) == (rare <= DELTA)
    if cut.threshold is None and num_right == 5:
        assert cut.needed == math.ceil(math.log(DELTA) / math.log(1 - alpha))


@pytest.mark.parametrize(("rule", "kind"), EVERY)
def test_labels_that_cannot_be_read_certify_nothing(rule, kind):
    unread_M, wrong_M = np.full(300, -np.inf), np.zeros(300, dtype=np.bool_)
    cut = calibrate(unread_M, wrong_M, np.linspace(0, 1, 40), alpha=ALPHA, delta=DELTA, rule=rule, kind=kind)
    assert cut.threshold is None and cut.num_kept == 0 and cut.guarantee.startswith("none")
    with pytest.raises(UserError, match="no row of the pool has a score"):
        calibrate(np.zeros(300), ~wrong_M, np.full(40, -np.inf), alpha=ALPHA, delta=DELTA, rule=rule, kind=kind)
