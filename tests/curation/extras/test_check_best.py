"""What the check of the best rows writes, counts and shows of its verdicts."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from curation.extras.check_best.stage import VERDICT, CheckBest, _make_verdicts, count_passed
from curation.features import features
from curation.refs import TableRef, as_json
from curation.report.html import _render_parts
from curation.tables import io


def test_rows_that_fail_are_left_out_with_the_reason(tmp_path: Path) -> None:
    found = pa.table(
        {"row_id": [7, 3, 5], "value": pa.array([0.2, 0.9, None], pa.float32()), "error": [None, None, "timeout: late"]}
    )
    said = list[str]()
    stage: Any = SimpleNamespace(arm="trust")
    made = CheckBest.write(
        stage,
        SimpleNamespace(say=said.append, directory=tmp_path),
        _make_verdicts(found),
        2,  # type: ignore[arg-type]
    )
    assert made.counts == {"arm": "trust", "asked": 3, "passed": 1, "problems": 1}
    assert io.read(made.verdicts).column_names == VERDICT and io.read(made.verdicts)["row_id"].to_pylist() == [7, 3, 5]
    assert io.read(made.left_out).to_pylist() == [
        {"row_id": 5, "error": "check_failed: the judge gave no verdict: timeout: late"},
        {"row_id": 7, "error": "the check calls its answer wrong"},
    ]
    assert "3 rows checked (1 of them before)" in said[-1] and "1 pass, 2 are dropped" in said[-1]
    assert as_json(made)["left_out"] == made.left_out.to_json() and isinstance(made.left_out, TableRef)


def test_the_report_says_how_many_selected_rows_were_checked() -> None:
    counts = {"arm": "trust", "asked": 40, "passed": 30, "problems": 1}
    outputs: Any = {"counts": counts, "num_selected": 35, "budget": {"max_per_label": None, "quota": None}}
    numbers = count_passed(outputs)
    assert numbers["share"]["value"] == 0.75 and numbers["selected_checked"] == 30
    (part,) = _render_parts({"index": 0, "features": {"check_best": numbers}})
    assert part["title"] == features()["check_best"].title
    assert "was run on the 40 rows" in part["html"] and "the other 5 were not checked" in part["html"]
    assert count_passed({**outputs, "budget": {"max_per_label": 3}})["selected_checked"] is None
