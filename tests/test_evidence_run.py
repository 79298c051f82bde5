"""The cells of the experiment, run in small: a task, the same with a cap in its directory, results and page."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.evidence import cells, tables
from examples.evidence.__main__ import results

EXAMPLES = Path(cells.__file__).parents[1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cells_leave_results_that_a_later_cell_in_their_directory_does_not_change(tmp_path):
    lines = (EXAMPLES / "data" / "sums.jsonl").read_text().splitlines()  # sums that the shipped small models know
    rows = [row | {"solution": rf"\boxed{{{row['answer']}}}"} for row in map(json.loads, lines)]
    paths, first = {}, 0
    for name, num_rows in (("problems", 1000), ("tests", 120), ("longer", 60), ("differences", 60)):
        paths[name] = tmp_path / f"{name}.parquet"
        pq.write_table(pa.Table.from_pylist(rows[first : first + num_rows]), paths[name])
        first += num_rows
    small = (
        *(f"sources.{name}.path={path}" for name, path in paths.items()),
        "splits.source.rows=600",
        "splits.pool.rows=400",
        "splits.test.rows=100",
        "splits.probes.longer.rows=50",
        "splits.probes.differences.rows=50",
        f"teacher.model.path={EXAMPLES / 'bases' / 'sums_teacher'}",
        "teacher.chunk_rows=200",
        "trust.max_steps=40",
        "trust.cpus_per_worker=1",
        "selection.budget.n=40",
        "student.epochs=1",
        "student.cpus_per_worker=1",
        f"generations=[{{student: {{path: {EXAMPLES / 'bases' / 'sums'}}}}}]",
    )
    task = next(task for task in cells.TASKS if task.name == "equations")
    capped = next(task for task in cells.TASKS if task.name == "equations-capped")
    done = []
    for one in (task, capped):
        one = replace(one, settings=(*small, *one.settings))
        done.append(
            cells.Cell(
                name=f"{one.name}-0", task=one, seed=0, gates=False, directory=tmp_path / "equations-0", seconds=1
            )
        )
        cells.run(done[-1])
    assert all(cell.done for cell in done)
    found = json.loads(json.dumps(results({}, done, {cell.name: cell.done["seconds"] for cell in done})))
    arms = found["tasks"]["equations"]["arms"]
    assert len(arms) == 10 and arms["trust, capped"]["words"] == "trust, capped"
    assert arms["trust"]["accuracy"]["n"] == 100 == arms["trust, capped"]["against"]["ground_truth"]["n"]
    assert arms["trust_gold"]["purity"]["value"] == 1 and found["chain"] == []
    page = Path(tmp_path / "page.md")
    page.write_text("<!-- table: arms-equations -->\n<!-- end -->\n")
    tables.write_docs(page, found)
    assert page.read_text().count("| trust") == 3  # trust, that of gold labels, and under a cap
