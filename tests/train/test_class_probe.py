"""The probe of a row's class: against scikit-learn's ridge regression, by grades alone, and as a member of a stack."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy.special import log_softmax
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from curation.config import TrustConfig
from curation.refs import TableRef
from curation.tables import io
from curation.trust import load_fitted
from curation.trust.class_probe import CLASS_PROBE, LABEL, log_odds
from curation.trust.combining import assign_folds
from curation.trust.parts import FIT
from curation.trust.stacked import StackedTrust
from train.probes import ClosedLabels, compute_targets, fit_class_probe, with_classes
from train.stack import fit_stacked
from train.trust_loop import LabelledRows

pytestmark = pytest.mark.long

CLASSES, STATES = ("cat", "dog", "hen"), ("output_last", "prompt_last", "layer2_prompt_last")
SIZES, CONFIG = (4, 12, 6), TrustConfig(states=("output_last", "prompt_last", "layer2_prompt_last"))


def drawn(num_rows: int, *, seed: int = 0, wrong: float = 0.4) -> LabelledRows:
    """Rows of three classes, which only the states of the prompt tell; the labels of some are another class."""
    rng = np.random.default_rng(seed)
    gold_N, correct_N = rng.integers(0, 3, num_rows), rng.random(num_rows) > wrong
    label_N = np.where(correct_N, gold_N, (gold_N + rng.integers(1, 3, num_rows)) % 3)
    hidden_ND = rng.standard_normal((num_rows, sum(SIZES)))
    hidden_ND[:, 4:7] += 1.5 * np.eye(3)[gold_N]
    hidden_ND[:, 16:19] += np.eye(3)[gold_N]
    return LabelledRows(
        hidden_ND=hidden_ND.astype(np.float16),
        correct_N=correct_N,
        part_N=np.full(num_rows, FIT, dtype=np.int8),
        sizes=SIZES,
        row_ids_N=3 * np.arange(num_rows, dtype=np.int64),
        numbers_NK=np.stack([rng.standard_normal(num_rows), label_N.astype(float)], axis=1),
        numbers=("mean_logprob", LABEL),
        classes=CLASSES,
        gold_N=gold_N.astype(float),
    )


def without_classes(rows: LabelledRows) -> LabelledRows:
    return rows._replace(numbers=rows.numbers[:1], numbers_NK=rows.numbers_NK[:, :1], classes=(), gold_N=None)


def batch_of(rows: LabelledRows, **changed: Any) -> pa.RecordBatch:
    columns: dict[str, Any] = {"row_id": pa.array(rows.row_ids_N), "mean_logprob": pa.array(rows.numbers_NK[:, 0])}
    columns[LABEL] = pa.array([CLASSES[int(place)] for place in rows.numbers_NK[:, 1]])
    for name, part_ND in zip(STATES, np.split(np.asarray(rows.hidden_ND), np.cumsum(SIZES)[:-1], axis=1), strict=True):
        columns[f"state_{name}"] = pa.FixedSizeListArray.from_arrays(pa.array(part_ND.ravel()), part_ND.shape[1])
    return pa.record_batch({**columns, **changed})


def fit(rows: LabelledRows) -> StackedTrust:
    return fit_stacked(rows, CONFIG, seed=3, origin={}, network_rows=10_000)


def auc_of(trust: StackedTrust, rows: LabelledRows) -> float:
    return float(roc_auc_score(rows.correct_N, trust.raw_score(batch_of(rows))))


def test_log_odds_are_those_of_ridge_regressions_that_have_not_seen_the_row() -> None:
    rows = drawn(240)
    used_M = np.arange(240)
    fold_M = assign_folds(rows.row_ids_N, rows.correct_N, 4, 0)
    found = fit_class_probe(rows, used_M, fold_M, STATES)
    assert found is not None and rows.gold_N is not None
    probe, out_of_fold_M = found
    read_ND = np.asarray(rows.hidden_ND[:, 4:], dtype=np.float64)
    scaled_ND = (read_ND - read_ND.mean(0)) / read_ND.std(0) / read_ND.shape[1] ** 0.5
    target_NC, label_N = np.eye(3)[rows.gold_N.astype(int)], rows.numbers_NK[:, 1].astype(int)

    def odds(score_NC: np.ndarray, label_N: np.ndarray) -> np.ndarray:
        share_N = np.exp(log_softmax(score_NC * probe.sharpness, axis=1))[np.arange(len(label_N)), label_N]
        return np.log(share_N / (1 - share_N))

    def off_by(strength: float) -> tuple[float, np.ndarray]:
        score_NC = np.empty((240, 3))
        for fold in range(4):
            held_N = fold_M == fold
            peer = Ridge(alpha=strength, solver="svd").fit(scaled_ND[~held_N], target_NC[~held_N])
            level_C = target_NC[~held_N].mean(0) - target_NC.mean(0)
            score_NC[held_N] = peer.predict(scaled_ND[held_N]) - level_C
        return float(np.abs(odds(score_NC, label_N) - out_of_fold_M).max()), score_NC

    assert min(off_by(10.0**power)[0] for power in np.arange(-1, 4.1, 0.5)) < 1e-6
    fresh, strength = drawn(50, seed=1), min(10.0 ** np.arange(-1, 4.1, 0.5), key=lambda s: off_by(s)[0])
    fresh_ND = (np.asarray(fresh.hidden_ND[:, 4:], dtype=np.float64) - read_ND.mean(0)) / read_ND.std(0)
    peer = Ridge(alpha=strength, solver="svd").fit(scaled_ND, target_NC)
    expected_N = odds(peer.predict(fresh_ND / read_ND.shape[1] ** 0.5), fresh.numbers_NK[:, 1].astype(int))
    joined, columns = torch.from_numpy(fresh.hidden_ND), torch.split(torch.from_numpy(fresh.hidden_ND), SIZES, dim=1)
    for given in ([joined], columns):
        np.testing.assert_allclose(probe.log_odds(given, fresh.numbers_NK[:, 1]), expected_N, atol=1e-4)


def test_a_grade_tells_the_class_of_a_right_label_and_excludes_one_where_it_is_wrong() -> None:
    nan = np.nan
    label_M, correct_M = np.array([0, 0, 1, 2, 0, nan]), np.array([True, True, True, True, False, False])
    found_MC = compute_targets(label_M, correct_M, np.array([0, nan, nan, 2, nan, nan]), 3)
    np.testing.assert_array_equal(found_MC[:4], np.eye(3)[[0, 0, 1, 2]])
    np.testing.assert_allclose(found_MC[4], [0, 0.5, 0.5])  # one known row each, and one more
    np.testing.assert_allclose(found_MC[5], [3 / 7, 2 / 7, 2 / 7])
    two_MC = compute_targets(np.array([0.0, 1.0]), np.array([False, False]), np.array([nan, nan]), 2)
    np.testing.assert_array_equal(two_MC, [[0, 1], [1, 0]])  # of two classes a grade tells the class


def test_log_odds_of_certain_classes_are_finite_and_missing_labels_have_none() -> None:
    logit_NC = np.array([[900.0, 0.0, -900.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    found_N = log_odds(logit_NC, np.array([2.0, 1.0, np.nan]))
    np.testing.assert_allclose(found_N[:2], [-1800, -np.log(2)])
    assert np.isnan(found_N[2])


@pytest.mark.parametrize("knows_gold", [True, False])
def test_a_stack_compares_the_label_with_the_class_that_the_prompt_tells(knows_gold: bool, tmp_path: Path) -> None:
    rows, fresh = drawn(300), drawn(2_000, seed=1)
    plain = fit_stacked(without_classes(rows), CONFIG, seed=3, origin={}, network_rows=10_000)
    trust = fit(rows if knows_gold else rows._replace(gold_N=np.full(300, np.nan)))
    assert plain.class_probe is None and LABEL not in plain.features
    assert trust.features[-1] == LABEL and CLASS_PROBE in trust.combination.names
    assert auc_of(trust, fresh) > max(0.85, auc_of(plain, fresh) + 0.2)
    honest_N = trust.source_score(batch_of(rows))
    assert roc_auc_score(rows.correct_N, honest_N) == pytest.approx(auc_of(trust, fresh), abs=0.05)
    again = load_fitted(trust.save(tmp_path / "trust"))
    batch = batch_of(fresh)
    np.testing.assert_array_equal(again.raw_score(batch), trust.raw_score(batch))
    in_memory_N = trust.raw_with(torch.from_numpy(fresh.hidden_ND), fresh.numbers_NK, fresh.numbers)
    np.testing.assert_allclose(trust.raw_score(batch), in_memory_N, atol=1e-4)
    added = trust.explained(batch)
    assert np.abs(added[CLASS_PROBE]).mean() > 5 * np.abs(added["mean_logprob"]).mean()


def test_a_label_of_another_set_is_scored_by_the_other_inputs() -> None:
    trust, fresh = fit(drawn(300)), drawn(20, seed=1)
    unknown = batch_of(fresh, **{LABEL: pa.array(["cow", None] * 10)})
    assert np.isfinite(trust.raw_score(unknown)).all()
    np.testing.assert_array_equal(trust.explained(unknown)[CLASS_PROBE], 0)


def test_a_stack_without_a_state_of_the_prompt_has_no_class_probe() -> None:
    rows, config = drawn(300), TrustConfig(states=("output_first", "output_mean", "output_last"))
    assert fit_stacked(rows, config, seed=3, origin={}).class_probe is None
    one = rows._replace(gold_N=np.zeros(300), numbers_NK=rows.numbers_NK * (1, 0))
    assert fit(one).class_probe is None  # only one class is known


def test_classes_are_read_by_row_id_from_labels_and_examples(tmp_path: Path) -> None:
    rows = without_classes(drawn(5))
    labels = pa.table({"row_id": [12, 9, 6, 3, 0], "label": ["cat", None, "dog", "cow", "hen"]})
    examples = pa.table({"row_id": [0, 3, 6, 9, 12, 15], "gold": ["hen", "cat", "right", "dog", "cat", "cat"]})
    refs: list[TableRef] = [
        io.write(table, str(tmp_path / f"{place}.lance")) for place, table in enumerate((labels, examples))
    ]
    found = with_classes(rows, refs[0], ClosedLabels(CLASSES, refs[1]))
    assert found.numbers == ("mean_logprob", LABEL) and found.classes == CLASSES
    np.testing.assert_array_equal(found.numbers_NK[:, 1], [2, np.nan, 1, np.nan, 0])
    assert found.gold_N is not None
    np.testing.assert_array_equal(found.gold_N, [2, 0, np.nan, 1, 0])
