"""The projection of hidden states against scikit-learn's PCA."""

import numpy as np
import pyarrow as pa
import pytest
from sklearn.decomposition import PCA

from curation.errors import ConfigError, ModelError
from curation.trust.pca import Projection, fit_projection
from curation.trust.states import read_states

COLUMNS = ["state_prompt_last", "state_output_last"]


def batch_of(rng: np.random.Generator, num_rows: int, *, mask: np.ndarray | None = None) -> pa.RecordBatch:
    """Correlated states of 6 and 6 numbers; rows in ``mask`` have none."""
    hidden_ND = rng.normal(size=(num_rows, 12)) @ np.random.default_rng(9).normal(size=(12, 12)) + 3
    values = [pa.array(half.astype(np.float16).reshape(-1)) for half in np.split(hidden_ND, 2, axis=1)]
    null = None if mask is None else pa.array(mask)
    return pa.record_batch([pa.FixedSizeListArray.from_arrays(v, 6, mask=null) for v in values], names=COLUMNS)


def dense(batch: pa.RecordBatch) -> np.ndarray:
    return np.concatenate([np.array(batch.column(name).to_pylist(), dtype=np.float64) for name in COLUMNS], axis=1)


def fit(batches: list[pa.RecordBatch], size: int) -> Projection:
    found = (read_states(batch, COLUMNS) for batch in batches)
    return fit_projection(found, size=size, states=("prompt_last", "output_last"), origin={})


def test_it_is_scikit_learns_up_to_signs_and_skips_rows_without_a_state(tmp_path):
    rng = np.random.default_rng(0)
    first, second = batch_of(rng, 300), batch_of(rng, 100, mask=np.arange(100) % 7 == 0)
    healthy = second.filter(pa.array(np.arange(100) % 7 != 0))
    fitted = fit([first, second], 4)
    exact = PCA(4).fit(np.concatenate([dense(first), dense(healthy)]))
    assert fitted.fit["num_rows"] == 300 + healthy.num_rows
    assert fitted.fit["variance_kept"] == pytest.approx(exact.explained_variance_ratio_.sum(), rel=1e-6)

    loaded = Projection.load(fitted.save(tmp_path / "pca"))
    projected = loaded.project(second)
    assert projected.type == pa.list_(pa.float16(), 4)
    assert projected.is_null().to_pylist() == (np.arange(100) % 7 == 0).tolist()
    found = np.array(projected.drop_null().to_pylist(), dtype=np.float64)
    wanted = exact.transform(dense(healthy))
    np.testing.assert_allclose(np.abs(found), np.abs(wanted), rtol=2e-3, atol=2e-3)
    largest = fitted.components_DK.abs().argmax(dim=0)
    assert (fitted.components_DK[largest, range(4)] > 0).all()


def test_a_projection_beyond_the_stored_type_is_null():
    fitted = fit([batch_of(np.random.default_rng(0), 50)], 2)
    hidden_ND = np.zeros((2, 12), dtype=np.float16)
    hidden_ND[1] = 65_504 * np.sign(fitted.components_DK[:, 0].numpy())
    values = [pa.array(half.reshape(-1)) for half in np.split(hidden_ND, 2, axis=1)]
    batch = pa.record_batch([pa.FixedSizeListArray.from_arrays(v, 6) for v in values], names=COLUMNS)
    assert fitted.project(batch).is_null().to_pylist() == [False, True]


@pytest.mark.parametrize(("num_rows", "size"), [(50, 13), (5, 5), (0, 1)])
def test_too_many_components_are_refused(num_rows, size):
    with pytest.raises(ConfigError, match=rf"pca: {size} components of {num_rows} rows"):
        fit([batch_of(np.random.default_rng(0), num_rows)] if num_rows else [], size)


@pytest.mark.long
def test_a_projection_that_changed_is_refused(tmp_path):
    ref = fit([batch_of(np.random.default_rng(0), 50)], 2).save(tmp_path / "pca")
    (tmp_path / "pca" / "description.json").write_text("{}")
    with pytest.raises(ModelError, match="pinned was"):
        Projection.load(ref)
