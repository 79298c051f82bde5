"""The classes' shares in a pool: against scikit-learn and SciPy on the same rows, and by simulation of known shares."""

import numpy as np
import pytest
from scipy.optimize import minimize, nnls
from sklearn.metrics import confusion_matrix

from benchmarks.class_shares import counted, dealt, errors, teacher_of
from curation.selection.class_shares import (
    FEW_A_CLASS,
    FEW_ROWS,
    PRIOR_ROWS,
    compute_share_distance,
    estimate_label_probabilities,
    estimate_shares,
)


def names(num):
    return [f"c{number}" for number in range(num)]


@pytest.mark.parametrize(
    ("num_classes", "num_labelled", "accuracy", "most", "mean"),
    [(2, 300, 0.7, 0.16, 0.05), (4, 500, 0.55, 0.2, 0.07), (10, 2_000, 0.5, 0.2, 0.08), (77, 5_000, 0.5, 0.2, 0.13)],
)
def test_known_shares_are_found_through_a_known_confusion(num_classes, num_labelled, accuracy, most, mean):
    """Labelled rows have other shares than the pool. The teacher's own counts are farther off on average."""
    rng, ours, of_counts = np.random.default_rng(num_classes), [], []
    for _ in range(30):
        p_CT = teacher_of(num_classes, accuracy, rng)
        shares_C, labelled_C = rng.dirichlet(np.full(num_classes, 2.0), 2)
        confusion = counted(*dealt(labelled_C, p_CT, num_labelled, rng), num_classes)
        given_T = rng.multinomial(100_000, shares_C @ p_CT)
        found = estimate_shares(names(num_classes), given_T, confusion)
        assert found.basis == "confusion" and found.num_labelled == num_labelled and found.why is None
        assert sum(found.shares) == pytest.approx(1) and min(found.shares) > 0
        ours.append(compute_share_distance(found.shares, shares_C))
        of_counts.append(compute_share_distance(given_T[:-1] / given_T[:-1].sum(), shares_C))
    assert max(ours) < most and np.mean(ours) < mean and np.mean(ours) < np.mean(of_counts) / 1.5


@pytest.mark.parametrize("labelled", ["as the pool", "others", "equal"])
def test_with_few_rows_of_a_class_it_is_nearer_than_adjusted_counts(labelled):
    rng = np.random.default_rng(0)
    runs = [errors(77, 500, 0.4, labelled, rng) for _ in range(20)]
    ours, adjusted, counts = ([run[name] for run in runs] for name in ("ours", "adjusted", "counts"))
    assert np.mean(ours) < np.mean(adjusted) - 0.03 and np.mean(ours) < np.mean(counts) - 0.05


def test_with_many_labelled_rows_it_is_adjusted_counting_by_scikit_learn_and_scipy():
    """Black-box shift estimation: the system of the confusion matrix, by non-negative least squares."""
    rng = np.random.default_rng(0)
    p_CT, shares_C = teacher_of(5, 0.6, rng), np.array([0.5, 0.3, 0.1, 0.07, 0.03])
    class_N, label_N = dealt(np.full(5, 0.2), p_CT, 60_000, rng)
    given_T = rng.multinomial(200_000, shares_C @ p_CT)
    matrix = confusion_matrix(class_N, label_N, labels=range(6), normalize="true")[:5]
    solved_C, _ = nnls(matrix.T, given_T / given_T.sum())
    found = estimate_shares(names(5), given_T, counted(class_N, label_N, 5))
    assert found.shares == pytest.approx(solved_C / solved_C.sum(), abs=0.005)
    assert found.shares == pytest.approx(shares_C, abs=0.01)


def test_the_shares_maximize_the_penalized_likelihood():
    """SciPy's optimizer of the objective as it is written down, on 40 labelled rows of three classes."""
    rng = np.random.default_rng(1)
    class_N, label_N = dealt(np.array([0.5, 0.3, 0.2]), teacher_of(3, 0.6, rng), 40, rng)
    confusion, given_T = counted(class_N, label_N, 3), np.array([500, 300, 100, 100])
    p_CT = estimate_label_probabilities(confusion)
    prior_C = (confusion.sum(axis=1) + 0.5) / (40 + 1.5)
    weight = 3 / 43

    def loss(raw_C):
        share_C = np.exp(raw_C) / np.exp(raw_C).sum()
        of_pool = (given_T / given_T.sum()) @ np.log(share_C @ p_CT)
        return -(1 - weight) * of_pool - weight * prior_C @ np.log(share_C)

    raw_C = minimize(loss, np.zeros(3), tol=1e-12).x
    found = estimate_shares(names(3), given_T, confusion)
    assert found.shares == pytest.approx(np.exp(raw_C) / np.exp(raw_C).sum(), abs=1e-4)


def test_labels_given_a_class_are_smoothed_by_rows_of_the_average():
    """Worked by hand: 6 of 8 rows right; of the two errors one is a label of class b, one cannot be read."""
    confusion = np.array([[4, 1, 1], [0, 2, 0]])
    right, wrong_T = 7 / 10, np.array([1 / 3, 1 + 1 / 3, 1 + 1 / 3])
    prior_T = (1 - right) * wrong_T / wrong_T.sum()
    wanted = [
        (np.array([4, 1, 1]) + PRIOR_ROWS * (prior_T + np.array([right, 0, 0]))) / (6 + PRIOR_ROWS),
        (np.array([0, 2, 0]) + PRIOR_ROWS * (prior_T + np.array([0, right, 0]))) / (2 + PRIOR_ROWS),
    ]
    assert estimate_label_probabilities(confusion) == pytest.approx(np.array(wanted))
    assert estimate_label_probabilities(confusion).sum(axis=1) == pytest.approx([1, 1])


def test_with_few_labelled_rows_the_counts_of_the_teacher_stand_and_it_says_so():
    few = FEW_A_CLASS * 10 - 1
    confusion = np.zeros((10, 11), dtype=np.int64)
    confusion[0, 0] = few
    given_T = np.array([30, *range(1, 10), 7])
    found = estimate_shares(names(10), given_T, confusion)
    assert found.basis == "counts" and found.num_labelled == few
    assert found.shares == pytest.approx(given_T[:-1] / given_T[:-1].sum())
    assert found.why == f"of {few} labelled rows class and label are known, and {few + 1} are needed"
    confusion[1, 1] = 1
    assert estimate_shares(names(10), given_T, confusion).basis == "confusion"
    two = np.array([[FEW_ROWS - 1, 0, 0], [0, 0, 0]])
    assert estimate_shares(names(2), np.array([3, 1, 0]), two).basis == "counts"
    empty = estimate_shares(names(2), np.zeros(3, dtype=np.int64), 10 * two)
    assert empty.basis == "counts" and empty.shares == pytest.approx([0.5, 0.5])


def test_the_distance_is_the_part_that_has_to_move():
    assert compute_share_distance([0.5, 0.5, 0.0], [0.2, 0.5, 0.3]) == pytest.approx(0.3)
    assert compute_share_distance([1, 0], [0, 1]) == 1 and compute_share_distance([0.4, 0.6], [0.4, 0.6]) == 0
