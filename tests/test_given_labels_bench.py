"""The bench of a reader on drawn rows: its arms against scikit-learn, its deals, and its table."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from curation.trust.parts import FIT, VALIDATION
from train.trust_loop import LabelledRows

pytestmark = pytest.mark.long

bench = pytest.importorskip("benchmarks.given_labels")
NUMBERS = ("mean_logprob", "margin", "given_confidence")


def drawn(num_rows: int) -> "bench.Rows":
    """Rows of two classes, some labels wrong: a state tells the class, margin and confidence whether it is given."""
    rng = np.random.default_rng(0)
    class_N, correct_N = rng.integers(0, 2, num_rows), rng.random(num_rows) < 0.7
    given_N = np.where(correct_N, class_N, 1 - class_N)
    state_ND = rng.normal(size=(num_rows, 12)) + np.eye(12)[0] * (2 * class_N - 1)[:, None]
    side_N = np.where(given_N == 1, 1, -1) * state_ND[:, 0]
    numbers = [-rng.random(num_rows), side_N + rng.normal(size=num_rows), 2 * correct_N + 2 * rng.normal(size=num_rows)]
    numbers[2] = 1 / (1 + np.exp(-numbers[2]))
    trust = LabelledRows(
        hidden_ND=np.c_[state_ND, state_ND * side_N[:, None], state_ND].astype(np.float16),
        correct_N=correct_N,
        part_N=np.full(num_rows, FIT, dtype=np.int8),
        sizes=(12, 12, 12),
        row_ids_N=np.arange(num_rows),
        numbers_NK=np.stack(numbers, axis=1),
        numbers=NUMBERS,
    )
    return bench.Rows(trust, given_N, state_ND)


def test_arms_of_a_deal_rank_the_other_rows() -> None:
    rows = drawn(900)
    found = bench.bench(rows, num_labelled=300, deals=2)
    assert (found["labelled"], found["others"], found["deals"]) == (300, 600, 2)
    deals = [np.random.default_rng(deal).permutation(900)[300:] for deal in range(2)]
    by_confidence = [roc_auc_score(rows.trust.correct_N[deal], rows.trust.numbers_NK[deal, 2]) for deal in deals]
    aucs = {name: line["auc"] for name, line in found["arms"].items()}
    assert aucs["the confidence"] == pytest.approx(np.mean(by_confidence))
    assert aucs["trust without a reader"] == pytest.approx(aucs["the confidence"], abs=0.02)
    assert aucs["trust with a reader"] > aucs["the confidence"] + 0.03
    assert "| **trust with a reader** |" in bench.table(found)


def test_class_probabilities_of_the_peer_see_no_label_of_their_own_row() -> None:
    rows = drawn(900)
    source, pool = rows.part(np.arange(300), labelled=True), rows.part(np.arange(300, 900), labelled=False)
    assert (source.trust.part_N == VALIDATION).sum() == 60 and set(pool.trust.part_N) == {FIT}
    class_N = np.where(pool.trust.correct_N, pool.given_N, 1 - pool.given_N)
    for kind in (bench.by_given, bench.by_gold):
        found_N2 = kind(source, pool, 0)
        np.testing.assert_allclose(found_N2.sum(axis=1), 1)
        assert roc_auc_score(class_N, found_N2[:, 1]) > 0.8
    by_confidence_N = bench.by_confidence(source, pool, 0)[np.arange(600), pool.given_N]
    np.testing.assert_array_equal(by_confidence_N, pool.trust.numbers_NK[:, 2])
