"""The look at what a run selects: pool rows that pass an arm's cut against the labelled rows that pass it."""

import numpy as np
import pyarrow as pa
import pytest

from curation.refs import TableRef
from curation.stages.shift import MeasureSelectedShift
from curation.tables import io
from curation.tables.schemas import get_raw_column, get_state_column, trust_column

SIZE = 16


def labels(path, num_rows: int, *, foreign: int = 0, seed: int = 0, known: int | None = None) -> TableRef:
    """Scored labels; the first ``foreign`` rows are trusted, and lie off in a direction that no score sees.

    ``known``: the rows that have a score, the first ones.
    """
    rng = np.random.default_rng(seed)
    states_ND = rng.normal(size=(num_rows, SIZE)).astype(np.float32)
    states_ND[:foreign, 0] += 2
    states_ND[:foreign, 1] += 6
    has_score_N = np.arange(num_rows) < (num_rows if known is None else known)
    score = pa.array(states_ND[:, 0], mask=~has_score_N)
    columns = {
        "row_id": pa.array(np.arange(num_rows)),
        "label": pa.array([None if row == num_rows - 1 else "1" for row in range(num_rows)]),
        "mean_logprob": pa.array(-states_ND[:, 2]),
        get_raw_column("trust"): score,
        trust_column("trust"): score,
        get_state_column("output_last"): pa.FixedSizeListArray.from_arrays(states_ND.ravel(), SIZE),
    }
    return io.write(pa.table(columns), str(path))


def look(tmp_path, source: TableRef, pool: TableRef, **thresholds: float | None) -> dict:
    stage = MeasureSelectedShift(
        name="look", source=source, pool=pool, thresholds=thresholds, states=["output_last"], seed=0
    )
    done = stage.do(None, {})
    assert done.rows == io.count(pool)
    return done.outputs["foreign"]


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_foreign_rows_that_are_trusted_are_found_among_the_selected(tmp_path, share):
    source, pool = labels(tmp_path / "s", 1000), labels(tmp_path / "p", 1000, foreign=round(1000 * share), seed=1)
    scores = io.read(pool)[get_raw_column("trust")].to_numpy()
    passes = scores >= 1
    found = look(tmp_path, source, pool, trust=1.0, internal_confidence=-9.0)
    foreign = passes[: round(1000 * share)].sum() / passes.sum()
    assert found["trust"]["share"]["low"] < foreign < found["trust"]["share"]["high"]
    assert found["trust"]["share"]["n"] == passes.sum()
    assert found["trust"]["share"]["value"] == pytest.approx(foreign, abs=0.03) and foreign > 2 * share
    assert "rows looked at that pass the cut are unlike the labelled rows that pass it" in found["trust"]["warning"]
    assert found["internal_confidence"]["share"]["n"] == 999  # it takes all that have a label, by its own column
    assert found["internal_confidence"]["share"]["value"] == pytest.approx(share, abs=0.015)


def test_honest_rows_are_no_finding(tmp_path):
    for seed in range(5):
        source, pool = (labels(tmp_path / f"{name}{seed}", 800, seed=2 * seed + name) for name in (0, 1))
        (found,) = look(tmp_path, source, pool, trust=0.7).values()
        assert found["warning"] is None and not found["alarm"] and found["share"]["low"] < 0.01


def test_an_arm_for_which_nothing_tells_is_left_out(tmp_path):
    """An arm that selected nothing or by no score; labelled rows without states, or without enough held-out scores."""
    source, pool = labels(tmp_path / "s", 1000), labels(tmp_path / "p", 1000, foreign=100, seed=1)
    assert look(tmp_path, source, pool, trust=None) == {}
    assert look(tmp_path, source, pool, trust=99.0) == {}
    assert look(tmp_path, source, pool, verbalized_confidence=0.5) == {}  # asked of the pool alone
    assert look(tmp_path, labels(tmp_path / "few", 1000, known=60), pool, trust=1.0) == {}
    table = io.read(source)
    empty = pa.nulls(1000, table[get_state_column("output_last")].type)
    without = table.set_column(
        table.schema.get_field_index(get_state_column("output_last")), "state_output_last", empty
    )
    assert look(tmp_path, io.write(without, str(tmp_path / "none")), pool, trust=1.0) == {}
    assert set(look(tmp_path, source, pool, trust=1.0)) == {"trust"}
