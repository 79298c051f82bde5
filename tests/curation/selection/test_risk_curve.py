import math

import numpy as np
import pytest
from scipy import stats

from curation.selection.risk import calibrate, compute_risk_curve
from curation.selection.risk.rules import Rule

NUM_CALIBRATION, ALPHA, DELTA = 1_000, 0.3, 0.1


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Calibration scores and correctness, pool scores; in twenty one of each may not be selected."""
    rng = np.random.default_rng(4)

    def draw(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        correct_N = rng.random(num_rows) < 0.5
        return np.where(np.arange(num_rows) % 20 == 7, -np.inf, rng.normal(size=num_rows) + 2 * correct_N), correct_N

    return *draw(NUM_CALIBRATION), draw(3_000)[0]


def levels(rule: Rule, kind: str, scores_M: np.ndarray) -> float:
    selectable = np.isfinite(scores_M).sum()
    if rule == "hoeffding_bonferroni":
        return DELTA / (selectable if kind == "threshold" else NUM_CALIBRATION)
    # Five of a hundred quantiles lie among the rows that may not be selected.
    return DELTA / {"hoeffding_grid": 95}.get(rule, 1)


@pytest.mark.parametrize("kind", ["threshold", "top_k"])
@pytest.mark.parametrize("rule", Rule.__args__)
def test_risk_curve_equals_its_restatement(rows, rule, kind):
    scores_M, correct_M, pool_N = rows
    found = compute_risk_curve(*rows, alpha=ALPHA, delta=DELTA, rule=rule, kind=kind, seed=2)
    level = levels(rule, kind, scores_M)
    if rule == "hoeffding_split":
        half = np.random.default_rng(2).permutation(NUM_CALIBRATION)[NUM_CALIBRATION // 2 :]
        scores_M, correct_M = scores_M[half], correct_M[half]
    assert found.level == pytest.approx(level) and found.num_rows == len(scores_M)
    assert len(found.threshold_G) == 95 and (np.diff(found.threshold_G) < 0).all()
    for g, threshold in enumerate(found.threshold_G):
        kept, wrong = (scores_M >= threshold).sum(), ((scores_M >= threshold) & ~correct_M).sum()
        assert (found.kept_G[g], found.wrong_G[g]) == (kept, wrong)
        assert found.share_G[g] == pytest.approx((pool_N >= threshold).mean())
        assert found.share_G[g] == pytest.approx((g + 1) / 100)
        if rule == "fixed_sequence":
            bound = stats.beta.ppf(1 - level, wrong + 1, kept - wrong)
        else:
            bound = wrong / kept + math.sqrt(math.log(1 / level) / (2 * kept))
        assert found.bound_G[g] == pytest.approx(bound)
    assert found.tried_G.all() == (rule != "fixed_sequence") and found.start == (
        0.05 if rule == "fixed_sequence" else 0
    )


def test_risk_curve_shows_where_the_sequence_and_the_grid_stop(rows):
    settings = {"alpha": ALPHA, "delta": DELTA}
    found = compute_risk_curve(*rows, **settings)
    assert found.tried_G.tolist() == [share >= 0.05 - 1e-9 for share in found.share_G]
    first_failed = np.flatnonzero(found.tried_G & (found.bound_G > ALPHA))[0]
    cut = calibrate(*rows, **settings)
    assert cut.threshold == found.threshold_G[first_failed - 1] and cut.bound == found.bound_G[first_failed - 1]
    grid, cut = (look(*rows, **settings, rule="hoeffding_grid") for look in (compute_risk_curve, calibrate))
    last = np.flatnonzero(grid.bound_G <= ALPHA)[-1]
    assert cut.threshold == grid.threshold_G[last] and cut.bound == pytest.approx(grid.bound_G[last])


def test_risk_curve_starts_later_with_fewer_rows_and_ends_with_all_that_may_be_selected(rows):
    scores_M, correct_M, pool_N = rows
    few = compute_risk_curve(scores_M[:200], correct_M[:200], pool_N, alpha=0.1, delta=DELTA)
    # 38 rows with one error among them certify a noise of 0.1: P(Bin(38, 0.1) <= 1) <= 0.1.
    assert stats.binom.cdf(1, 38, 0.1) <= 0.1 < stats.binom.cdf(1, 37, 0.1)
    assert few.start == pytest.approx(0.19) and few.tried_G.sum() == 95 - 18
    fewer = compute_risk_curve(scores_M[:20], correct_M[:20], pool_N, alpha=0.1, delta=DELTA)
    assert fewer.start == 1 and fewer.tried_G.nonzero()[0].tolist() == [94]


def test_risk_curve_of_one_score_has_one_cut(rows):
    found = compute_risk_curve(np.zeros(40), np.arange(40) > 3, np.zeros(100), alpha=ALPHA, delta=DELTA)
    assert found.threshold_G.tolist() == [0] and found.share_G.tolist() == [1] and found.kept_G.tolist() == [40]
    assert found.bound_G[0] == pytest.approx(stats.beta.ppf(0.9, 5, 36)) and found.tried_G.tolist() == [True]


def test_risk_curve_of_a_split_that_proposes_nothing_is_of_the_choosing_half(rows):
    settings = {"alpha": 0.01, "delta": DELTA, "rule": "hoeffding_split", "seed": 2}
    scores_M, found = rows[0], compute_risk_curve(*rows, **settings)
    half = np.random.default_rng(2).permutation(NUM_CALIBRATION)[: NUM_CALIBRATION // 2]
    kept_G = [(scores_M[half] >= threshold).sum() for threshold in found.threshold_G]
    assert found.kept_G.tolist() == kept_G and calibrate(*rows, **settings).threshold is None
