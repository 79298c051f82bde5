"""Boosted trees against scikit-learn's own decision function; storage; what scoring reads; bad settings."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.utils.class_weight import compute_sample_weight

from curation.config import TrustConfig
from curation.errors import DegenerateSourceError
from curation.trust import load_fitted
from curation.trust.boosted_trees import BoostedTrees

NUM_ROWS, SIZE = 900, 24
Rows = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def rows() -> Rows:
    """States on unlike scales; whether the label is right follows a product of two directions: no line tells them."""
    random = np.random.default_rng(2)
    z_ND = random.standard_normal((NUM_ROWS, SIZE)) * np.linspace(3, 0.5, SIZE)
    correct_N = z_ND[:, 0] * z_ND[:, 1] + random.standard_normal(NUM_ROWS) > 1
    return (z_ND + random.uniform(-5, 5, SIZE)).astype(np.float16), correct_N


def fit(rows: Rows, class_weight: float = 0.0, **options: float) -> BoostedTrees:
    config = TrustConfig(states=("prompt_last", "output_last"), class_weight=class_weight)
    return BoostedTrees.fitted(*rows, config, {"seed": 1}, **{"num_trees": 40, **options})


def labels_of(hidden_ND: np.ndarray) -> pa.RecordBatch:
    columns = {}
    for name, part_ND in (("prompt_last", hidden_ND[:, :10]), ("output_last", hidden_ND[:, 10:])):
        values = pa.array(np.ascontiguousarray(part_ND).ravel())
        columns[f"state_{name}"] = pa.FixedSizeListArray.from_arrays(values, part_ND.shape[1])
    return pa.record_batch(columns)


@pytest.mark.long
@pytest.mark.parametrize(
    ("class_weight", "settings"),
    [
        (0.0, {}),
        (1.0, {}),
        (1.0, {"learning_rate": 0.3, "max_leaves": 4, "min_rows": 5, "l2": 2.0}),
        (0.0, {"max_leaves": 2, "num_trees": 1}),
        (0.0, {"min_rows": NUM_ROWS}),  # trees of one leaf
    ],
)
def test_logits_equal_scikit_learn(rows: Rows, class_weight: float, settings: dict[str, float]) -> None:
    hidden_ND, correct_N = rows
    trees = fit(rows, class_weight, **settings)
    wide_ND = hidden_ND.astype(np.float64)
    names = {"num_trees": "max_iter", "max_leaves": "max_leaf_nodes", "min_rows": "min_samples_leaf"}
    names |= {"l2": "l2_regularization"}
    theirs = {"max_iter": 40} | {names.get(name, name): value for name, value in settings.items()}
    peer = HistGradientBoostingClassifier(early_stopping=False, random_state=1, **theirs)
    weight_N = compute_sample_weight("balanced", correct_N) if class_weight else None
    peer.fit(wide_ND, correct_N, sample_weight=weight_N)
    raw_N = trees.raw_score(labels_of(hidden_ND))
    assert raw_N.dtype == np.float32
    np.testing.assert_allclose(raw_N, peer.decision_function(wide_ND), rtol=1e-6, atol=1e-6)
    if not settings:
        assert roc_auc_score(correct_N, raw_N) > 0.9


def test_rows_that_the_fit_has_not_seen_go_the_same_way(rows: Rows) -> None:
    trees = fit(rows)
    others_ND = (3 * np.random.default_rng(5).standard_normal((500, SIZE))).astype(np.float16)
    together_N = trees.raw_score(labels_of(others_ND))
    apart_N = np.concatenate([trees.raw_score(labels_of(part_ND)) for part_ND in np.split(others_ND, 10)])
    np.testing.assert_array_equal(together_N, apart_N)


def test_a_saved_function_scores_to_the_bit(rows: Rows, tmp_path: Path) -> None:
    trees = fit(rows, 0.5)
    loaded = load_fitted(trees.save(tmp_path / "trees"))
    batch = labels_of(rows[0])
    assert isinstance(loaded, BoostedTrees) and loaded.fit == trees.fit and loaded.size == SIZE
    np.testing.assert_array_equal(loaded.raw_score(batch), trees.raw_score(batch))
    assert {file.suffix for file in (tmp_path / "trees").iterdir()} == {".json", ".safetensors"}
    assert loaded.fit["num_fit"] == NUM_ROWS


def test_the_same_rows_give_the_same_trees(rows: Rows) -> None:
    hidden_ND = torch.from_numpy(rows[0])
    np.testing.assert_array_equal(fit(rows).logits(hidden_ND), fit(rows).logits(hidden_ND))


def test_labels_of_one_kind_are_refused(rows: Rows) -> None:
    with pytest.raises(DegenerateSourceError, match="boosted trees: 900 of 900 weak labels are right"):
        fit((rows[0], np.ones(NUM_ROWS, dtype=bool)))
