import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_package import tiny_package

from curation.config import DomainConfig
from curation.config.filter import KeepConfig
from curation.errors import BudgetError, PackageError, SourceError
from curation.filter.stages.cut import CertifyingRows, ThresholdCut, check_keep, decide, read_calibration
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
    with pytest.raises(BudgetError, match="96 rows are more than the 95 of 100 labelled rows"):
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


def labelled(tmp_path):
    """A pool in two tables of three labels, of which "c" is right half of the time, and 3,000 calibration rows."""
    rng = np.random.default_rng(2)
    names_N, names_M = (rng.choice(["a", "b", "c"], num) for num in (3000, 3000))
    raw_N, raw_M = (rng.normal(size=3000).astype(np.float32) for _ in range(2))
    table = pa.table(
        {
            "row_id": np.arange(3000),
            "label": pa.array(names_N, mask=rng.random(3000) < 0.1),
            "error": pa.nulls(3000, pa.string()),
            "trust_raw": raw_N,
            "trust_trust": raw_N,
        }
    )
    tables = [io.write(part, str(tmp_path / name)) for name, part in (("a", table[:1000]), ("b", table[1000:]))]
    correct_M = rng.random(3000) < np.where(names_M == "c", 0.5, 0.97)
    return tables, table, GradedScores(raw_M, raw_M, correct_M, names_M.astype(object))


def test_each_class_passes_its_own_certified_cut(tmp_path):
    tables, table, graded = labelled(tmp_path)
    keep = KeepConfig(certified={"alpha": 0.1, "delta": 0.3, "per": "label"})
    found = decide(tables, "trust", keep, CertifyingRows(graded, None, ("a", "b", "c")), seed=0)
    names_N, raw_N = (table[name].to_numpy(zero_copy_only=False) for name in ("label", "trust_raw"))
    cuts = {}
    for name in "abc":
        own_M = graded.label_M == name
        cut = calibrate(graded.raw_M[own_M], graded.correct_M[own_M], raw_N[names_N == name], alpha=0.1, delta=0.1)
        cuts[name] = np.inf if cut.threshold is None else cut.threshold
    assert found.threshold["by_label"] == {name: cut for name, cut in cuts.items() if cut < np.inf}
    assert cuts["c"] == np.inf
    wanted = [row for row, name in enumerate(names_N) if name is not None and raw_N[row] >= cuts[name]]
    assert sorted(passing(tables, found.threshold)) == wanted and len(wanted) > 1000
    sizes = {item["label"]: item["num_pool"] for item in found.risk["classes"]}
    assert sizes == {name: sum(names_N[row] == name for row in wanted) for name in "abc"}
    assert found.risk["per"] == "label" and "of which nothing is selected: c" in found.risk["guarantee"]
    assert found.lowest_trust == raw_N[wanted].min()
    with pytest.raises(BudgetError, match=r"3,000 calibration rows certify no cut at alpha 0\.001"):
        keep = KeepConfig(certified={"alpha": 0.001, "per": "label"})
        decide(tables, "trust", keep, CertifyingRows(graded, None, ("a", "b", "c")), seed=0)


def test_labels_of_calibration_rows_go_with_a_package_and_are_asked_for(tmp_path):
    keep = KeepConfig(certified={"alpha": 0.1, "per": "label"})
    with pytest.raises(PackageError, match=r"per: label: domain math of .* has no closed set of labels; leave per out"):
        check_keep(keep, tiny_package(tmp_path / "sums"), 100)
    sets = DomainConfig(name="classification", classes=["a", "b"], multi=True)
    with pytest.raises(PackageError, match=r"per: label: with domain\.multi, as in .*sets, .*; leave per out"):
        check_keep(keep, tiny_package(tmp_path / "sets", domain=sets, questions=()), 100)
    kinds = DomainConfig(name="classification", classes=["a", "b"])
    with pytest.raises(
        PackageError, match=r"calibration rows of .*unlabelled have no labels; export the package again"
    ):
        check_keep(keep, tiny_package(tmp_path / "unlabelled", domain=kinds, questions=()), 100)
    label_M = np.array(["a", None, *["b"] * 48], dtype=object)
    package = tiny_package(tmp_path / "kinds", labels=label_M, domain=kinds, questions=())
    assert package.calibration().label_M.tolist() == label_M.tolist()
    check_keep(keep, package, 100)
    fresh = pa.table({"raw": [0.5], "trust": [0.5], "correct": [True]})
    pq.write_table(fresh, tmp_path / "fresh.parquet")
    given = {"alpha": 0.1, "per": "label", "calibration": str(tmp_path / "fresh.parquet")}
    with pytest.raises(PackageError, match=r"rows of .*fresh.parquet have no labels; give them in a column 'label'"):
        check_keep(KeepConfig(certified=given), package, 100)
    pq.write_table(fresh.append_column("label", pa.array(["a"])), tmp_path / "fresh.parquet")
    check_keep(KeepConfig(certified=given), package, 100)
    assert read_calibration(given["calibration"]).rows.label_M.tolist() == ["a"]
    pq.write_table(fresh.set_column(2, "correct", pa.array([None], pa.bool_())), tmp_path / "fresh.parquet")
    with pytest.raises(SourceError, match=r"fresh.parquet: 1 rows have no 'correct'; leave these rows out"):
        read_calibration(given["calibration"])


def test_more_rows_than_have_a_score_are_refused(pool):
    tables = pool[0]
    with pytest.raises(BudgetError, match=r"keep\.n: 4,900 rows are more than the 3,\d+ of 4,\d+ labelled rows"):
        decide(tables, "trust", KeepConfig(n=4900), None, seed=0)
    with pytest.raises(BudgetError, match=r"keep\.share: nothing is written: 0\.0001 of 4,\d+ labelled rows is less"):
        decide(tables, "trust", KeepConfig(share=0.0001), None, seed=0)
