"""What a trial is worth: rows held out from everything, metrics against scikit-learn, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pyarrow as pa
import pytest
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from curation.config import TrustConfig
from curation.errors import ConfigError, DegenerateSourceError, SourceError
from curation.hashing import hash_unit
from curation.refs import TableRef
from curation.tables import io, schemas
from curation.trust.parts import FIT, UNUSED, VALIDATION, assign_parts
from tune.objective import Fold, TrialRows, check_folds, read_source, run_trial
from tune.space import Point, Space

pytestmark = pytest.mark.long

NUM_ROWS, SIZE, FOLDS = 900, 6, 4
BASE = TrustConfig(kind="neural", width=16, depth=1, max_steps=40, learning_rate=3e-3, batch_size=64)
HELD = Fold(1, FOLDS, seed=3, fit_seed=8)
NAMES = ("prompt_last", "output_last", "mean_logprob")


def tables(path: Path, correct_N: np.ndarray) -> tuple[TableRef, TableRef]:
    """Two states of which the second tells, and a log-probability that tells too; in a random order.

    Row 0 is an error, row 1 lacks a state, row 2 a grade, row 3 its log-probability; every fifth row is unparsed.
    """
    rng = np.random.default_rng(1)
    order_N = np.random.default_rng(5).permutation(NUM_ROWS)
    noise_ND, told_ND = rng.standard_normal((2, NUM_ROWS, SIZE)).astype(np.float16)
    told_ND[:, 0] += 2 * correct_N
    logprob_N = rng.standard_normal(NUM_ROWS) + correct_N

    def listed(values_ND: np.ndarray) -> pa.Array:
        return pa.array([None if i == 1 else values_ND[i] for i in order_N], pa.list_(pa.float16(), SIZE))

    columns = {
        "row_id": pa.array(order_N),
        "label": pa.array([None if i % 5 == 4 else "e2e4" for i in order_N], pa.string()),
        "mean_logprob": pa.array([None if i == 3 else logprob_N[i] for i in order_N], pa.float32()),
        "state_prompt_last": listed(noise_ND),
        "state_output_last": listed(told_ND),
        "error": pa.array(["poison: x" if i == 0 else None for i in order_N], pa.string()),
    }
    labels = io.write(pa.table(columns), str(path / "labels.lance"))
    graded = [i for i in range(NUM_ROWS) if i not in (0, 2)]
    found = [{"row_id": i, "correct": bool(correct_N[i]) and i % 5 != 4, "judged": False} for i in graded]
    return labels, io.write(pa.Table.from_pylist(found, schema=schemas.GRADES), str(path / "grades.lance"))


@pytest.fixture(scope="module")
def correct() -> np.ndarray:
    return np.random.default_rng(0).random(NUM_ROWS) < 0.4


@pytest.fixture(scope="module")
def written(correct: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> tuple[TableRef, TableRef]:
    return tables(tmp_path_factory.mktemp("source"), correct)


@pytest.fixture(scope="module")
def source(written: tuple[TableRef, TableRef]) -> TrialRows:
    found, num_missing = read_source(*written, NAMES, BASE, 5)
    assert num_missing == 2
    return found


def point(kind: str = "neural", **settings: Any) -> Point:
    read = {"columns": [[]]} if kind in ("stacked", "fitted_confidence") else {"class_weight": [0.5]}
    raw = {"kind": [kind], **read, **{key: [value] for key, value in settings.items()}}
    return Space.of(raw, BASE, stored=("prompt_last", "output_last")).draw(optuna.create_study().ask())


def trial(source: TrialRows, of: Point) -> Any:
    return run_trial(source, of, HELD)


def test_rows_are_read_once_in_the_order_of_their_ids(source: TrialRows, correct: np.ndarray) -> None:
    kept_N = np.array([i for i in range(NUM_ROWS) if i not in (0, 1, 2, 3)])
    np.testing.assert_array_equal(source.row_ids_N, kept_N)
    np.testing.assert_array_equal(source.parsed_N, kept_N % 5 != 4)
    np.testing.assert_array_equal(source.correct_N, correct[kept_N] & (kept_N % 5 != 4))
    assert source.numbers == ("mean_logprob",)
    np.testing.assert_array_equal(source.numbers_NK, source.inputs["mean_logprob"].astype(np.float64))
    np.testing.assert_array_equal(source.unit_N, kept_N)
    assert {name: (array.shape, array.dtype) for name, array in source.inputs.items()} == {
        "prompt_last": ((896, SIZE), np.float16),
        "output_last": ((896, SIZE), np.float16),
        "mean_logprob": ((896, 1), np.float32),
    }


def test_parts_of_a_trial_are_disjoint_and_a_single_state_is_not_copied(source: TrialRows) -> None:
    held_N = source.held_out_N(HELD)
    rows = source.rows(BASE.model_copy(update={"states": ("output_last",)}), HELD)
    used = [rows.places(part) for part in (FIT, VALIDATION)]
    assert sorted(np.concatenate(used)) == np.flatnonzero(~held_N & source.parsed_N).tolist()
    assert 0.2 < held_N.mean() < 0.3
    unit_N = hash_unit(source.row_ids_N, 3)
    assert unit_N[rows.places(VALIDATION)].max() < BASE.validation_fraction <= unit_N[rows.places(FIT)].min()
    assert rows.hidden_ND is source.inputs["output_last"]
    whole = source.rows(BASE.model_copy(update={"fit_on": "all"}), HELD)
    assert sum(len(whole.places(part)) for part in (FIT, VALIDATION)) == int((~held_N).sum())


def test_a_linear_probe_is_worth_what_scikit_learn_says(source: TrialRows) -> None:
    found = trial(source, point("linear_probe", columns=["mean_logprob"], class_weight=0.0))
    held_N = source.held_out_N(HELD)
    rows = source.rows(BASE, HELD)
    inputs_ND = np.concatenate([source.inputs["output_last"], source.inputs["mean_logprob"]], axis=1)
    peer = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    peer.fit(inputs_ND[rows.places(FIT)], source.correct_N[rows.places(FIT)])
    test_N = held_N & source.parsed_N
    expected = roc_auc_score(source.correct_N[test_N], peer.decision_function(inputs_ND[test_N]))
    assert found.value == pytest.approx(expected, abs=1e-6) and expected > 0.85
    assert found.num_held_out == held_N.sum() and found.fit["num_fit"] == len(rows.places(FIT))


@pytest.mark.parametrize(
    "kind",
    ["neural", "deep_ensemble", "attention", "linear_probe", "boosted_trees", "stacked", "fitted_confidence"],
)
def test_rows_held_out_are_seen_by_nothing(source: TrialRows, kind: str) -> None:
    options = {"options.deep_ensemble.members": 2} if kind == "deep_ensemble" else {}
    fresh = trial(source, point(kind, **options))
    held_N = source.held_out_N(HELD)
    turned = source._replace(correct_N=np.where(held_N, ~source.correct_N, source.correct_N))
    again, other = (trial(rows, point(kind, **options)) for rows in (source, turned))
    fits = [{**found.fit, "seconds": 0} for found in (fresh, again, other)]
    assert fits[0] == fits[1] == fits[2] and again.value == fresh.value
    assert other.value == pytest.approx(1 - fresh.value) and fresh.value > (0.7 if kind == "fitted_confidence" else 0.8)


def test_components_that_the_default_would_not_have_are_refused_before_all_trials(source: TrialRows) -> None:
    source.rows(BASE.model_copy(update={"pca": SIZE}), HELD)
    with pytest.raises(ConfigError, match=rf"trust\.pca: {SIZE + 1} components of \d+ rows with {SIZE} numbers"):
        source.rows(BASE.model_copy(update={"pca": SIZE + 1}), HELD)


@pytest.mark.parametrize("kind", ["neural", "linear_probe", "boosted_trees"])
def test_a_trial_behind_principal_components_is_that_on_scikit_learns(source: TrialRows, kind: str) -> None:
    fit_F = source.rows(BASE, HELD).places(FIT)
    peer = PCA(4).fit(source.inputs["output_last"][fit_F].astype(np.float64))
    signs_K = np.sign([row_D[np.abs(row_D).argmax()] for row_D in peer.components_])
    projected_NK = peer.transform(source.inputs["output_last"].astype(np.float64)) * signs_K
    own = source.inputs | {"output_last": projected_NK.astype(np.float32)}
    found = trial(source, point(kind, pca=4))
    expected = trial(source._replace(inputs=own), point(kind))
    assert found.value == pytest.approx(expected.value, abs=2e-3) and found.value > 0.7
    assert found.fit["variance_kept"] == pytest.approx(peer.explained_variance_ratio_.sum())


def test_a_share_of_the_source_is_all_that_a_search_reads(
    source: TrialRows, written: tuple[TableRef, TableRef]
) -> None:
    config = BASE.model_copy(update={"source_share": 0.3})
    part, _ = read_source(*written, NAMES, config, 5)
    taken_N = assign_parts(source.row_ids_N, config, 5) != UNUSED
    assert 0.2 < taken_N.mean() < 0.4
    np.testing.assert_array_equal(part.row_ids_N, source.row_ids_N[taken_N])
    np.testing.assert_array_equal(part.correct_N, source.correct_N[taken_N])
    np.testing.assert_array_equal(part.inputs["output_last"], source.inputs["output_last"][taken_N])
    np.testing.assert_array_equal(part.numbers_NK, source.numbers_NK[taken_N])
    held_N = part.held_out_N(HELD)
    rows = part.rows(config, HELD)  # a trial's own seed draws no share of the share
    used = sum(len(rows.places(number)) for number in (FIT, VALIDATION))
    assert used == int((~held_N & part.parsed_N).sum())


def test_a_group_stays_on_one_side_of_folds_and_of_a_trials_parts(
    written: tuple[TableRef, TableRef], tmp_path: Path
) -> None:
    labels, grades = written
    table = io.read(grades)
    clusters = pa.array([i // 30 for i in table["row_id"].to_pylist()], pa.int64())
    grouped = io.write(table.append_column(schemas.CLUSTER, clusters), str(tmp_path / "grades.lance"))
    found, _ = read_source(labels, grouped, ("output_last",), BASE, 5)
    fold_N = np.argmax([found.held_out_N(HELD._replace(number=number)) for number in range(FOLDS)], axis=0)
    part_N = found.rows(BASE, HELD).part_N
    for group in range(30):
        of_N = found.row_ids_N // 30 == group
        assert len(set(fold_N[of_N])) == 1 and len({*part_N[of_N]} - {UNUSED}) <= 1
    assert set(fold_N) == set(range(FOLDS)) and {FIT, VALIDATION} <= set(part_N)
    with pytest.raises(ConfigError, match=r"tune\.folds: 31 folds of 30 rows or groups; give fewer"):
        check_folds(found, HELD._replace(folds=31))


def test_of_rows_that_ask_the_same_question_the_first_is_taken(
    written: tuple[TableRef, TableRef], tmp_path: Path
) -> None:
    labels, grades = written
    table = io.read(grades)
    question = pa.array([-1 - row_id // 3 for row_id in table["row_id"].to_pylist()], pa.int64())
    asked = table.set_column(table.schema.get_field_index("question"), schemas.GRADES.field("question"), question)
    found, num_missing = read_source(labels, io.write(asked, str(tmp_path / "grades.lance")), ("output_last",), BASE, 5)
    firsts_N = np.arange(0, NUM_ROWS, 3)[1:]  # the first of the first three rows that is graded has no state
    np.testing.assert_array_equal(found.row_ids_N, firsts_N)
    np.testing.assert_array_equal(found.unit_N, -1 - firsts_N // 3)
    assert num_missing == 1


def test_what_no_trial_could_be_measured_on_is_refused(source: TrialRows, written: tuple[TableRef, TableRef]) -> None:
    check_folds(source, HELD)
    with pytest.raises(DegenerateSourceError, match=r"0 of \d+ parsed labels are right in fold 0 of 4"):
        check_folds(source._replace(correct_N=np.zeros_like(source.correct_N)), HELD)
    with pytest.raises(DegenerateSourceError, match=r"trust: 0 of \d+ parsed weak labels are right in the fit part"):
        trial(source._replace(correct_N=np.zeros_like(source.correct_N)), point())
    with pytest.raises(SourceError, match=r"do not hold layer1_output_last; .* 898 source rows are labelled again"):
        read_source(*written, ("layer1_output_last",), BASE, 5)
