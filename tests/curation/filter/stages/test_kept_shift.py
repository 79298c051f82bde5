"""The second look of a filter: rows that pass the cut against labelled rows that pass it, and rounds together."""

from dataclasses import replace
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from filter_package import make_package, states_of

from benchmarks.foreign_rows import count
from curation.filter.package.folder import TrustPackage
from curation.filter.stages.cut import ALL_TIES, ThresholdCut
from curation.filter.stages.kept_shift import Rows, compare, compare_kept
from curation.refs import TableRef
from curation.selection.bound import Bound
from curation.tables import io
from curation.tables.schemas import get_raw_column, get_state_column, trust_column
from curation.trust import load_fitted

FUNCTION = "linear_probe"


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> TrustPackage:
    return make_package(tmp_path_factory.mktemp("package"))


def labelled(package: TrustPackage, path: Path, num_rows: int, *, foreign: int = 0, first: int = 0) -> TableRef:
    """A labels table as a filter has it; the first ``foreign`` rows lie off the line of the others, and are trusted."""
    table = states_of(range(first, first + num_rows)).combine_chunks()
    hidden_ND = np.stack(table[get_state_column("output_last")].to_numpy()).astype(np.float32)
    trust = load_fitted(package.trust)
    if foreign:
        weight_D = np.asarray(trust.weight_D, dtype=np.float32)
        aside_D = np.random.default_rng(1).normal(size=len(weight_D)).astype(np.float32)
        aside_D -= weight_D * (aside_D @ weight_D) / (weight_D @ weight_D)  # the score does not see it
        hidden_ND[:foreign] = hidden_ND[np.argmax(hidden_ND @ weight_D)] + 3 * aside_D
        hidden_ND[:foreign] += np.random.default_rng(first).normal(scale=0.05, size=(foreign, len(weight_D)))
    column = pa.FixedSizeListArray.from_arrays(pa.array(hidden_ND.astype(np.float16).ravel()), hidden_ND.shape[1])
    (batch,) = pa.table({"row_id": table["row_id"], get_state_column("output_last"): column}).to_batches()
    scores = {get_raw_column(FUNCTION): trust.raw_score(batch), trust_column(FUNCTION): trust.score(batch)}
    rows = pa.Table.from_batches([batch]).append_column("label", pa.array(["1"] * num_rows))
    for name, score_N in scores.items():
        rows = rows.append_column(name, pa.array(score_N))
    lance.write_dataset(rows, path)
    return io.find_latest(str(path))


def cut_at(trust: float) -> ThresholdCut:
    return ThresholdCut(column=trust_column(FUNCTION), bound=Bound(score=trust, tie=ALL_TIES, seed=0, num_selected=0))


def test_foreign_rows_among_those_that_pass_raise_an_alarm(package, tmp_path):
    labels = labelled(package, tmp_path / "labels.lance", 1000, foreign=50)
    found = compare_kept(package, cut_at(0.7), {"0000": labels}, FUNCTION, seed=0)
    scores = lance.dataset(labels.uri).to_table()[trust_column(FUNCTION)].to_numpy()
    passing = scores >= np.float32(0.7)
    assert passing[:50].all()
    share = found["passing"]["share"]
    assert found["alarm"] and share["value"] == pytest.approx(50 / passing.sum(), abs=0.05)
    assert share["n"] == passing.sum()
    assert "that pass the cut are unlike the labelled rows" in found["warning"]
    assert found["everything"] is None  # a single round has that test already
    assert found["passing"]["alarm"] is True


def test_an_honest_round_raises_none(package, tmp_path):
    labels = labelled(package, tmp_path / "labels.lance", 1000)
    found = compare_kept(package, cut_at(0.7), {"0000": labels}, FUNCTION, seed=0)
    assert found["passing"] is not None and not found["alarm"] and found["warning"] is None
    assert found["trust"]["p_value"] > 0.001


def test_small_rounds_add_up(package, tmp_path):
    """Rounds of 40 rows, 4 of them foreign: too few to tell each by itself."""
    names = [f"{number:04}" for number in range(12)]
    tables = {
        name: labelled(package, tmp_path / f"{name}.lance", 40, foreign=4, first=1000 * place)
        for place, name in enumerate(names)
    }
    found = compare_kept(package, cut_at(0.0), tables, FUNCTION, seed=0)
    assert found["everything"] is not None and found["everything"]["alarm"]
    assert found["everything"]["foreign"]["share"]["value"] == pytest.approx(0.1, abs=0.03)
    assert "rounds 0000 to 0011 together" in found["warning"]


def test_a_cut_that_few_labelled_rows_pass_is_lowered_on_both_sides(package, tmp_path):
    labels = labelled(package, tmp_path / "labels.lance", 1000)
    scores = lance.dataset(labels.uri).to_table()[trust_column(FUNCTION)].to_numpy()
    found = compare_kept(package, cut_at(float(np.sort(scores)[-3])), {"0000": labels}, FUNCTION, seed=0)
    assert found["passing"]["share"]["n"] > 50 and not found["alarm"]
    assert found["trust"] is None  # too few rows pass for a distribution


def test_a_package_without_states_has_its_trust_compared(package, tmp_path):
    description = package.description
    bare = replace(
        package,
        description=description.model_copy(update={"sample": description.sample.model_copy(update={"states": ()})}),
    )
    honest, other = (labelled(package, tmp_path / f"{n}.lance", 1000, foreign=n) for n in (0, 900))
    for labels, alarm in ((honest, False), (other, True)):
        found = compare_kept(bare, cut_at(0.2), {"0000": labels}, FUNCTION, seed=0)
        assert (found["passing"], found["everything"], found["alarm"]) == (None, None, alarm)
    assert "the trust of rows that pass the cut is distributed otherwise" in found["warning"]


@pytest.mark.parametrize(("moved", "alarm"), [(0.0, False), (0.005, False), (0.4, True), (-0.4, True)])
@pytest.mark.parametrize("values", [2, 1000])
def test_trust_that_differs_by_what_folds_differ_by_is_no_alarm(moved, alarm, values):
    """Scores of few values: each is moved a little by the fold of its row, and equals no other."""
    rng = np.random.default_rng(0)
    known_K, pool_M = (np.round(rng.random(800) * (values - 1)) / (values - 1) for _ in range(2))
    known_K += 0.002 * rng.integers(5, size=800)
    pool = Rows(None, np.clip(pool_M + moved, 0, 2).astype(np.float32))
    found = compare(Rows(None, None), pool, known_K.astype(np.float32), np.float32(0), ("0000",), seed=0)
    assert found["alarm"] == alarm, found["trust"]


@pytest.mark.long
@pytest.mark.parametrize(("share", "names", "bounds"), [
    (0.0, ("filter", "daily", "verdict"), (0, 1)),
    (0.02, ("verdict", "foreseen"), (12, 15)),  # in half of the runs by all rows
    (0.1, ("filter", "daily", "verdict", "foreseen"), (14, 15)),
])  # fmt: skip
def test_simulated_filters_and_verdicts(share, names, bounds):
    """A reduced form of ``benchmarks.foreign_rows``."""
    found = count(share, 15, seed=1)
    assert all(bounds[0] <= found[name] <= bounds[1] for name in names), found
