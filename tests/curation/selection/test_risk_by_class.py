"""Certified cuts of classes: each against the rule on its own rows, and the promise of all together by simulation."""

import numpy as np
import pytest
from scipy import stats

from curation.errors import UserError
from curation.selection.class_shares import ClassScores
from curation.selection.risk import calibrate
from curation.selection.risk.by_class import calibrate_classes

CLASSES = ("a", "b", "c", "d")
SHARES = (0.4, 0.3, 0.2, 0.1)
DELTA = 0.1


def drawn(rng, num_rows, noise_C, slope=0.0):
    """Rows of classes with these shares of wrong labels; with a slope, right ones score more."""
    class_N = rng.choice(4, num_rows, p=SHARES)
    correct_N = rng.random(num_rows) >= np.asarray(noise_C)[class_N]
    score_N = rng.normal(size=num_rows) + slope * correct_N
    return ClassScores(score_N=score_N, class_N=class_N), correct_N


def test_each_class_has_the_cut_of_its_own_rows_at_its_part_of_delta():
    rng = np.random.default_rng(0)
    rows, correct_M = drawn(rng, 1500, [0.2] * 4, slope=2)
    pool, _ = drawn(rng, 4000, [0.2] * 4, slope=2)
    rows.class_N[:50], pool.score_N[:30] = 4, -np.inf  # rows without a label, and rows that may not be selected
    found = calibrate_classes(rows, correct_M, pool, CLASSES, alpha=0.1, delta=DELTA)
    for place, name in enumerate(CLASSES):
        own_M, own_N = rows.class_N == place, pool.class_N == place
        cut = calibrate(rows.score_N[own_M], correct_M[own_M], pool.score_N[own_N], alpha=0.1, delta=DELTA / 4)
        assert found.cuts[place] == cut and found.thresholds.get(name) == cut.threshold
    assert {"a", "b"} <= found.thresholds.keys()
    told = found.to_json(np.array([5, 4, 3, 2]))
    assert [line["num_pool"] for line in told["classes"]] == [5, 4, 3, 2]
    made = [cut for cut in found.cuts if cut is not None and cut.threshold is not None]
    assert told["num_kept"] == sum(cut.num_kept for cut in made)
    assert told["noise"] == pytest.approx(sum(cut.noise * cut.num_kept for cut in made) / told["num_kept"])


def test_classes_without_a_cut_are_named_and_absent_ones_are_not_tested():
    rng = np.random.default_rng(1)
    rows, correct_M = drawn(rng, 1200, [0, 0, 0.9, 0])
    pool, _ = drawn(rng, 3000, [0, 0, 0.9, 0])
    pool.class_N[pool.class_N == 3] = 0  # no pool row has the label d
    rows.class_N[rows.class_N == 1] = 0  # no calibration row has b
    found = calibrate_classes(rows, correct_M, pool, CLASSES, alpha=0.1, delta=DELTA)
    assert found.thresholds.keys() == {"a"} and found.cuts[3] is None
    assert found.cuts[1].num_calibration == 0 and found.cuts[2].num_calibration > 100
    words = found.guarantee
    assert "in each of 1 classes" in words and "3 classes are tested at 0.1/3 each, Bonferroni" in words
    assert "none for 2 classes, of which nothing is selected: b (0 calibration rows), c (" in words
    assert "exchangeable" in words
    with pytest.raises(UserError, match="no row of the pool has a label and a score"):
        calibrate_classes(rows, correct_M, ClassScores(score_N=np.zeros(3), class_N=np.full(3, 4)), CLASSES,
                          alpha=0.1, delta=DELTA)  # fmt: skip
    none = calibrate_classes(rows, ~correct_M, pool, CLASSES[:2], alpha=0.01, delta=DELTA)
    assert none.guarantee.startswith("none: no cut is certified in any of 2 classes, nothing is selected: ")


def violations(num_runs, delta):
    """Runs in which a class is cut although each of its rows is wrong a little too often, whatever its score."""
    rng, num = np.random.default_rng(2), 0
    for _ in range(num_runs):
        rows, correct_M = drawn(rng, 400, [0.5 + 1e-6] * 4)
        pool, _ = drawn(rng, 800, [0.5] * 4)
        num += bool(calibrate_classes(rows, correct_M, pool, CLASSES, alpha=0.5, delta=delta).thresholds)
    return num


@pytest.mark.long
def test_the_promise_holds_in_all_classes_at_once():
    num_runs = 300
    most = stats.binom.ppf(0.999, num_runs, DELTA)
    assert violations(num_runs, DELTA) <= most
    assert violations(num_runs, 4 * DELTA) > most  # without the correction: each class at delta


def test_a_cut_of_all_rows_hides_a_bad_class():
    rng, hidden, found = np.random.default_rng(3), 0, []
    for _ in range(40):
        rows, correct_M = drawn(rng, 2000, [0, 0, 0, 0.4])  # 4 % of all are wrong, and 40 % of d
        pool, _ = drawn(rng, 2000, [0, 0, 0, 0.4])
        hidden += calibrate(rows.score_N, correct_M, pool.score_N, alpha=0.1, delta=DELTA).threshold is not None
        cuts = calibrate_classes(rows, correct_M, pool, CLASSES, alpha=0.1, delta=DELTA)
        found.append(cuts.thresholds.keys())
    assert hidden > 30 and all(names == {"a", "b", "c"} for names in found)
