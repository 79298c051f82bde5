"""The shift test of a filter: all rows, and rows that pass the cut against labelled rows that pass it."""

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from filter_package import make_package, states_of

from benchmarks.foreign_rows import count
from curation.filter.package.folder import TrustPackage
from curation.filter.stages.cut import ALL_TIES, ThresholdCut
from curation.filter.stages.pool_shift import ComparePool
from curation.json_types import Json
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


def measure(package: TrustPackage, threshold: ThresholdCut, labels: TableRef) -> Json:
    told = {"package": package.digest, "uri": package.uri, "allow_code": (), "seed": 0}
    stage = ComparePool(
        name="shift-0000", labels=labels, examples=labels, threshold=threshold.to_json(), function=FUNCTION, **told
    )
    return stage.measure()


def test_foreign_rows_among_those_that_pass_raise_an_alarm(package, tmp_path):
    labels = labelled(package, tmp_path / "labels.lance", 1000, foreign=50)
    found = measure(package, cut_at(0.7), labels)
    scores = lance.dataset(labels.uri).to_table()[trust_column(FUNCTION)].to_numpy()
    passing = scores >= np.float32(0.7)
    assert passing[:50].all()
    share = found["passing"]["share"]
    assert found["alarm"] and share["value"] == pytest.approx(50 / passing.sum(), abs=0.05)
    assert share["n"] == passing.sum()
    assert "that pass the cut are unlike the labelled rows" in found["warning"]
    assert found["passing"]["alarm"] is True


def test_an_honest_round_raises_none(package, tmp_path):
    labels = labelled(package, tmp_path / "labels.lance", 1000)
    found = measure(package, cut_at(0.7), labels)
    assert found["passing"] is not None and not found["alarm"]


def test_a_cut_that_few_labelled_rows_pass_is_lowered_on_both_sides(package, tmp_path):
    labels = labelled(package, tmp_path / "labels.lance", 1000)
    scores = lance.dataset(labels.uri).to_table()[trust_column(FUNCTION)].to_numpy()
    found = measure(package, cut_at(float(np.sort(scores)[-3])), labels)
    assert found["passing"]["share"]["n"] > 50 and not found["alarm"]


@pytest.mark.long
@pytest.mark.parametrize(("share", "names", "bounds"), [
    (0.0, ("filter", "verdict"), (0, 1)),
    (0.02, ("verdict", "foreseen"), (12, 15)),  # in half of the runs by all rows
    (0.1, ("filter", "verdict", "foreseen"), (14, 15)),
])  # fmt: skip
def test_simulated_filters_and_verdicts(share, names, bounds):
    """A reduced form of ``benchmarks.foreign_rows``."""
    found = count(share, 15, seed=1)
    assert all(bounds[0] <= found[name] <= bounds[1] for name in names), found
