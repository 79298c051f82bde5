"""Trust functions behind principal components of the states, against scikit-learn's PCA."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.decomposition import PCA

from curation.config import TrustConfig
from curation.errors import ConfigError, SourceError
from curation.refs import TableRef
from curation.tables import io, schemas
from curation.trust import load_fitted
from curation.trust.boosted_trees import BoostedTrees
from curation.trust.parts import FIT, VALIDATION
from curation.trust.states import StateTrust
from train.launch import TrainProcess, trained_in
from train.trust import fit_rows, fit_trust, read_rows
from train.trust_loop import LabelledRows

pytestmark = pytest.mark.long

NUM_ROWS, SIZES, K = 900, (10, 14), 6
WIDTH = sum(SIZES)
STATES = ("prompt_last", "output_last")
KINDS = ("neural", "deep_ensemble", "linear_probe", "boosted_trees")
SMALL = TrustConfig(
    kind="neural",
    states=STATES,
    width=32,
    depth=1,
    learning_rate=3e-3,
    batch_size=64,
    max_steps=48,
    max_failures=0,
    options={"deep_ensemble": {"members": 2}, "boosted_trees": {"num_trees": 20}},
)


def with_(**changes: Any) -> TrustConfig:
    return SMALL.model_copy(update=changes)


@pytest.fixture(scope="module")
def rows() -> LabelledRows:
    """Correlated states, and a log-probability that varies far more than they do; both tell what is right.

    The rows of other parts vary most in a direction of their own.
    """
    rng = np.random.default_rng(4)
    part_N = rng.choice([FIT, VALIDATION], NUM_ROWS, p=[0.6, 0.4]).astype(np.int8)
    states_ND = (
        rng.standard_normal((NUM_ROWS, WIDTH)) * np.geomspace(4, 0.2, WIDTH) @ rng.standard_normal((WIDTH, WIDTH))
    )
    states_ND += np.where(part_N == FIT, 0, 30)[:, None] * rng.standard_normal((NUM_ROWS, 1)) * np.eye(WIDTH)[3]
    logprob_N = 50 * rng.standard_normal(NUM_ROWS)
    hidden_ND = np.column_stack([states_ND.astype(np.float16), logprob_N]).astype(np.float32)
    latent_N = states_ND @ rng.standard_normal(WIDTH)
    correct_N = latent_N / latent_N.std() + logprob_N / 50 + 0.3 * rng.standard_normal(NUM_ROWS) > 0.2
    return LabelledRows(hidden_ND, correct_N, part_N, (*SIZES, 1), np.arange(NUM_ROWS), np.empty((NUM_ROWS, 0)))


def batch_of(hidden_ND: np.ndarray) -> pa.RecordBatch:
    columns: dict[str, Any] = {}
    for name, part_ND in zip(
        STATES, np.split(hidden_ND[:, :WIDTH].astype(np.float16), [SIZES[0]], axis=1), strict=True
    ):
        columns[f"state_{name}"] = pa.FixedSizeListArray.from_arrays(pa.array(part_ND.ravel()), part_ND.shape[1])
    return pa.record_batch({**columns, "mean_logprob": pa.array(hidden_ND[:, WIDTH])})


def fit(kind: str, rows: LabelledRows, config: TrustConfig) -> StateTrust:
    return fit_rows(kind, rows, config, seed=3, origin={})


def signed(components_DK: np.ndarray) -> np.ndarray:
    """Each column with its number of the largest magnitude positive."""
    return components_DK * np.sign(components_DK[np.abs(components_DK).argmax(0), np.arange(components_DK.shape[1])])


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_is_that_on_states_which_scikit_learn_projected_beforehand(
    kind: str, rows: LabelledRows, tmp_path: Path
) -> None:
    config = with_(pca=K, columns=("mean_logprob",))
    trust = fit(kind, rows, config)
    states_FD = rows.hidden_ND[rows.places(FIT), :WIDTH].astype(np.float64)
    peer = PCA(K, svd_solver="full").fit(states_FD)
    assert trust.fit["variance_kept"] == pytest.approx(peer.explained_variance_ratio_.sum(), rel=1e-6)
    assert trust.pca is not None and trust.pca.num_rows == len(states_FD)
    np.testing.assert_allclose(trust.pca.components_DK, signed(peer.components_.T), atol=1e-6)

    projected_NK = (rows.hidden_ND[:, :WIDTH] - peer.mean_) @ signed(peer.components_.T)
    beforehand_ND = np.column_stack([projected_NK, rows.hidden_ND[:, WIDTH]]).astype(np.float32)
    # A state of K numbers, and no components of its own: as many as there are would turn nothing but the signs.
    plain = fit(kind, rows._replace(hidden_ND=beforehand_ND, sizes=(K, 1)), with_(states=("x",), columns=("y",)))
    expected_N = plain.raw(torch.from_numpy(beforehand_ND))
    found_N = trust.raw_score(batch_of(rows.hidden_ND))
    np.testing.assert_allclose(found_N, expected_N, rtol=2e-3, atol=2e-3)
    assert trust.calibration.slope == pytest.approx(plain.calibration.slope, rel=1e-2)

    loaded = load_fitted(trust.save(tmp_path / kind))
    np.testing.assert_array_equal(loaded.raw_score(batch_of(rows.hidden_ND)), found_N)
    assert loaded.to_trust(found_N).tolist() == trust.to_trust(found_N).tolist()
    assert loaded.fit["variance_kept"] == trust.fit["variance_kept"]
    again = load_fitted(loaded.save(tmp_path / "again"))
    np.testing.assert_array_equal(again.raw_score(batch_of(rows.hidden_ND)), found_N)


def test_all_components_are_a_rotation_and_less_is_less(rows: LabelledRows) -> None:
    whole = fit("linear_probe", rows, with_(pca=WIDTH, columns=("mean_logprob",)))
    assert whole.pca is not None and whole.fit["variance_kept"] == pytest.approx(1)
    components_DK = whole.pca.components_DK
    torch.testing.assert_close(components_DK.T @ components_DK, torch.eye(WIDTH, dtype=torch.float64))
    kept = [fit("linear_probe", rows, with_(pca=k, columns=("mean_logprob",))).fit["variance_kept"] for k in (1, 3, 9)]
    assert kept == sorted(kept) and kept[-1] < 1
    assert "variance_kept" not in fit("linear_probe", rows, with_(columns=("mean_logprob",))).fit


def test_trees_take_64_components_or_as_many_as_there_are_where_none_are_asked_for(rows: LabelledRows) -> None:
    trees = fit("boosted_trees", rows, with_(columns=("mean_logprob",)))
    assert trees.pca is not None and trees.pca.shape == (WIDTH, WIDTH) and trees.size == WIDTH + 1
    assert BoostedTrees.default_pca == 64


def test_states_of_another_width_are_refused(rows: LabelledRows) -> None:
    trust = fit("linear_probe", rows, with_(pca=K, columns=("mean_logprob",)))
    batch = (
        batch_of(rows.hidden_ND)
        .drop_columns(["state_prompt_last"])
        .append_column(
            "state_prompt_last", pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(NUM_ROWS * 3, np.float16)), 3)
        )
    )
    with pytest.raises(SourceError, match="18 numbers a row, but the trust function was fitted on 25"):
        trust.raw_score(batch)


@pytest.fixture(scope="module")
def written(rows: LabelledRows, tmp_path_factory: pytest.TempPathFactory) -> tuple[TableRef, TableRef]:
    """A labels table of the states and its grades."""
    path = tmp_path_factory.mktemp("source")
    batch = batch_of(rows.hidden_ND)
    ids = {"row_id": pa.array(range(NUM_ROWS)), "label": pa.array(["e2e4"] * NUM_ROWS)}
    columns = {**ids, **dict(zip(batch.schema.names, batch.columns, strict=True))}
    labels = io.write(pa.table({**columns, "error": pa.nulls(NUM_ROWS, pa.string())}), str(path / "labels.lance"))
    found = [{"row_id": i, "correct": bool(right), "judged": False} for i, right in enumerate(rows.correct_N)]
    return labels, io.write(pa.Table.from_pylist(found, schema=schemas.GRADES), str(path / "grades.lance"))


def test_the_stages_fit_what_is_fitted_in_memory(
    local_ray: object, written: tuple[TableRef, TableRef], tmp_path: Path
) -> None:
    config = with_(pca=K, columns=("mean_logprob",), dropout=0.0, stochastic_depth=0.0)
    read = read_rows(*written, config, seed=3)
    batch = batch_of(read.hidden_ND)
    process = TrainProcess(config)
    with trained_in(process):
        refs = {
            kind: fit_trust(kind, *written, config, seed=3, output=tmp_path / kind)
            for kind in ("neural", "deep_ensemble", "linear_probe")
        }
    process.close()
    for kind, ref in refs.items():
        here = fit(kind, read, config)
        np.testing.assert_allclose(load_fitted(ref).raw_score(batch), here.raw_score(batch), rtol=1e-3, atol=1e-3)
        assert load_fitted(ref).fit["variance_kept"] == pytest.approx(here.fit["variance_kept"])


def test_more_components_than_numbers_or_rows_are_refused_before_a_worker_starts(
    written: tuple[TableRef, TableRef], tmp_path: Path
) -> None:
    words = rf"trust\.pca: {WIDTH + 1} components of \d+ rows with {WIDTH} numbers each; give fewer components or more"
    with pytest.raises(ConfigError, match=words):
        fit_trust(
            "neural", *written, with_(pca=WIDTH + 1, columns=("mean_logprob",)), seed=3, output=tmp_path / "trust"
        )
    read = read_rows(*written, with_(pca=WIDTH), seed=3)
    few_N = np.where(np.arange(NUM_ROWS) < 9, FIT, -1).astype(np.int8)
    with pytest.raises(ConfigError, match=r"trust\.pca: 9 components of 9 rows"):
        fit("linear_probe", read._replace(part_N=few_N), with_(pca=9))


def test_attention_refuses_them(rows: LabelledRows) -> None:
    with pytest.raises(ConfigError, match=r"trust\.pca: 6, but attention reads state by state"):
        fit("attention", rows, with_(pca=K, columns=("mean_logprob",)))
