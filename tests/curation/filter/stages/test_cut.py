import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curation.config.filter import KeepConfig
from curation.errors import BudgetError, SourceError
from curation.filter.stages.cut import CertifyingRows, ThresholdCut, decide, read_calibration
from curation.selection import Candidates
from curation.selection.budget import GradedScores
from curation.selection.risk import calibrate
from curation.selection.top_n import TopN
from curation.stages.pool_scores import PoolScores
from curation.tables import io

NUM = 5000


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """Two labels tables with many ties, unparsed and error rows; ids and scores of all rows, NaN where unusable."""
    rng = np.random.default_rng(0)
    ids_N = rng.permutation(10 * NUM)[:NUM].astype(np.int64)
    raw_N = rng.integers(-40, 40, NUM).astype(np.float32) / 8
    trust_N = (1 / (1 + np.exp(-raw_N))).astype(np.float32)
    label_N, error_N = rng.random(NUM) < 0.7, rng.random(NUM) < 0.1
    table = pa.table(
        {
            "row_id": ids_N,
            "label": pa.array(["x"] * NUM, mask=~label_N | error_N),
            "error": pa.array(["bad: row"] * NUM, mask=~error_N),
            "trust_raw": pa.array(raw_N, mask=error_N),
            "trust_trust": pa.array(trust_N, mask=error_N),
        }
    )
    directory = tmp_path_factory.mktemp("cut")
    tables = [io.write(table.slice(0, 1700), str(directory / "a")), io.write(table.slice(1700), str(directory / "b"))]
    usable_N = label_N & ~error_N
    return tables, ids_N, np.where(usable_N, raw_N, np.nan), np.where(usable_N, trust_N, np.nan), int((~error_N).sum())


def passing(tables, threshold):
    found = []
    threshold = ThresholdCut.from_json(threshold)
    for ref in tables:
        everything = io.open_table(ref).to_table().combine_chunks().to_batches()[0]
        ids = everything.filter(pa.array(threshold.passes(everything)))["row_id"].to_pylist()
        streamed = [row for batch in threshold.iter_passing(ref, []) for row in batch["row_id"].to_pylist()]
        assert ids == streamed  # what the scan leaves out does not pass
        found += ids
    return found


@pytest.mark.parametrize("keep", [{"n": 1}, {"n": 777}, {"share": 0.29}])
def test_a_number_of_rows_is_the_top_of_all_tables(pool, keep):
    tables, ids_N, raw_N, trust_N, labelled = pool
    found = decide(tables, "trust", KeepConfig(**keep), None, seed=3)
    n = keep.get("n") or int(0.29 * labelled)
    cut = TopN().cut(Candidates(row_ids_N=ids_N, raw_score_N=raw_N), n, 3)
    assert set(passing(tables, found.threshold)) == set(cut.row_ids_n.tolist())
    together = PoolScores(labels=tables[0], further=tuple(tables[1:]), trust="trust")
    assert together.top(n, 3).row_ids_n.tolist() == cut.row_ids_n.tolist()
    assert found.num_labelled == labelled and found.num_scored == int((~np.isnan(raw_N)).sum())
    assert found.lowest_trust == np.nanmin(np.where(np.isin(ids_N, cut.row_ids_n), trust_N, np.nan))


def test_dropped_rows_count_in_a_share_and_may_leave_too_few(tmp_path):
    dropped_N = np.arange(100) < 70
    columns = {
        "row_id": np.arange(100),
        "label": pa.array(["x"] * 100, mask=dropped_N | (np.arange(100) >= 95)),
        "error": pa.nulls(100, pa.string()),
        "trust_raw": pa.array(np.arange(100, dtype=np.float32), mask=dropped_N),
        "trust_trust": pa.array(np.arange(100, dtype=np.float32) / 100, mask=dropped_N),
        "dropped": dropped_N,
    }
    tables = [io.write(pa.table(columns), str(tmp_path / "labels"))]
    found = decide(tables, "trust", KeepConfig(share=0.1), None, seed=0)
    assert sorted(passing(tables, found.threshold)) == list(range(85, 95)) and found.num_short == 0
    assert (found.num_labelled, found.num_dropped, found.num_scored) == (30, 70, 25)
    found = decide(tables, "trust", KeepConfig(n=28), None, seed=0)
    assert sorted(passing(tables, found.threshold)) == list(range(70, 95)) and found.num_short == 3
    with pytest.raises(BudgetError, match="96 rows are more than the 95 of 100 that can have a readable label"):
        decide(tables, "trust", KeepConfig(n=96), None, seed=0)


def test_a_threshold_is_of_trust_and_passes_at_equality(pool):
    tables, ids_N, _, trust_N, _ = pool
    level = float(np.unique(trust_N[~np.isnan(trust_N)])[-3])
    found = decide(tables, "trust", KeepConfig(threshold=level), None, seed=0)
    assert set(passing(tables, found.threshold)) == set(ids_N[trust_N >= np.float32(level)].tolist())
    with pytest.raises(BudgetError, match=r"no row has a trust of at least 0\.9999, the highest of \d,\d+ is 0\.9924"):
        decide(tables, "trust", KeepConfig(threshold=0.9999), None, seed=0)


def test_a_certified_cut_is_calibrated_on_the_pool_s_quantiles(pool):
    tables, ids_N, raw_N, _, _ = pool
    rng = np.random.default_rng(1)
    raw_M = rng.integers(-40, 40, 2000).astype(np.float32) / 8
    correct_M = rng.random(2000) < 1 / (1 + np.exp(-raw_M))
    raw_M[:50] = np.nan
    keep = KeepConfig(certified={"alpha": 0.1})
    found = decide(tables, "trust", keep, CertifyingRows(GradedScores(raw_M, raw_M, correct_M), None), seed=0)
    labelled_N = np.zeros(0)
    for ref in tables:
        rows = io.read(ref, ["row_id"], filter="error IS NULL")["row_id"].to_numpy()
        labelled_N = np.concatenate([labelled_N, raw_N[np.isin(ids_N, rows)]])
    cut = calibrate(np.where(np.isnan(raw_M), -np.inf, raw_M), correct_M, labelled_N, alpha=0.1, delta=0.1)
    assert found.threshold["bound"]["score"] == cut.threshold and found.risk["bound"] == cut.bound
    assert set(passing(tables, found.threshold)) == set(ids_N[raw_N >= cut.threshold].tolist())


def test_calibration_rows_from_a_floor_on_are_held_against_the_pool_rows_from_there_on(pool):
    tables, ids_N, raw_N, _, _ = pool
    rng = np.random.default_rng(1)
    raw_M = rng.integers(8, 40, 2000).astype(np.float32) / 8
    correct_M = rng.random(2000) < np.where(raw_M >= 2, 0.97, 0.5)
    graded = GradedScores(raw_M, raw_M, correct_M)
    found = decide(tables, "trust", KeepConfig(certified={"alpha": 0.1}), CertifyingRows(graded, 1.0), seed=0)
    cut = calibrate(raw_M, correct_M, raw_N, alpha=0.1, delta=0.1, floor=1.0)
    assert found.threshold["bound"]["score"] == cut.threshold and 1 < cut.threshold <= 2
    assert "pool's that score at least 1" in found.risk["guarantee"]
    assert set(passing(tables, found.threshold)) == set(ids_N[raw_N >= cut.threshold].tolist())


def test_calibration_rows_without_a_grade_are_refused(tmp_path):
    fresh = pa.table({"raw": [0.5], "trust": [0.5], "correct": pa.array([None], pa.bool_())})
    pq.write_table(fresh, tmp_path / "fresh.parquet")
    with pytest.raises(SourceError, match=r"fresh.parquet: column 'correct' .* has no value in 1 rows; "):
        read_calibration(str(tmp_path / "fresh.parquet"))


@pytest.mark.parametrize("grades", [[1, 3], [0.4, 0.9], ["true", "false"]])
def test_grades_that_are_not_true_or_false_are_refused(tmp_path, grades):
    fresh = pa.table({"raw": [0.5, 0.6], "trust": [0.5, 0.6], "correct": grades})
    pq.write_table(fresh, tmp_path / "fresh.parquet")
    with pytest.raises(SourceError, match=r"fresh.parquet: column 'correct' is \w+; give it as true or false"):
        read_calibration(str(tmp_path / "fresh.parquet"))


def test_more_rows_than_have_a_score_are_refused(pool):
    tables = pool[0]
    with pytest.raises(BudgetError, match=r"keep\.n: 4,900 rows are more than the 3,\d+ of 4,\d+ that can have"):
        decide(tables, "trust", KeepConfig(n=4900), None, seed=0)
    with pytest.raises(BudgetError, match=r"keep\.share: nothing is written: 0\.0001 of 4,\d+ rows is less"):
        decide(tables, "trust", KeepConfig(share=0.0001), None, seed=0)
