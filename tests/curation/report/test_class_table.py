"""The report's rows by class: shares, purity and errors against a count by hand; the finding of a collapse."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from class_tables import Row, run_of
from sklearn.metrics import confusion_matrix
from test_verdict import HEALTHY

from curation.domains.classification import Classification
from curation.report.class_table import as_evidence, collect_class_table
from curation.report.html import _PAGES
from curation.report.rules import CARE, COLLAPSE
from curation.report.verdict import reach_verdict
from curation.selection.class_shares import estimate_shares
from curation.tables import schemas

NAMES = ("anger", "joy", "<b>sadness</b>")
NUM_SOURCE, NUM_POOL, N = 200, 500, 60


def dealt(num_rows: int, first: int, rng: np.random.Generator) -> list[Row]:
    """Rows whose teacher calls a third of the others joy."""
    rows = []
    for number in range(num_rows):
        gold = NAMES[rng.integers(3)]
        label = gold if rng.random() < 2 / 3 else "joy"
        rows.append({"row_id": first + number, "gold": gold, "label": None if number % 25 == 0 else label})
        rows[-1] |= {"correct": rows[-1]["label"] == gold, "judged": False, "completion": f" {label}"}
    return rows


@pytest.fixture
def run(tmp_path: Path) -> tuple[Any, Any, list[Row], list[Row], list[Row]]:
    """What of a run the table is read from: trust selected rows that are called joy, and ten others."""
    rng = np.random.default_rng(0)
    source, pool = dealt(NUM_SOURCE, 0, rng), dealt(NUM_POOL, 1 << schemas.FILE_SHIFT, rng)
    joy = [row for row in pool if row["label"] == "joy"]
    chosen = [*joy[: N - 10], *[row for row in pool if row["label"] == "anger"][:10]][::-1]
    return *run_of(tmp_path, Classification(classes=NAMES), source, pool, chosen), source, pool, chosen


def test_rows_by_class_are_those_of_a_count_by_hand(run):
    of, record, source, pool, chosen = run
    found = collect_class_table(of, record, "trust")
    assert found is not None and (found["basis"], found["is_divided"], found["is_cut"]) == ("confusion", False, False)
    matrix = confusion_matrix(
        [row["gold"] for row in source], [row["label"] or "none" for row in source], labels=[*NAMES, "none"]
    )[:3]
    given = [sum(row["label"] == name for row in pool) for name in (*NAMES, None)]
    wanted = estimate_shares(NAMES, np.array(given), matrix)
    for place, (row, name) in enumerate(zip(found["rows"], NAMES, strict=True)):
        mine = [item for item in chosen if item["label"] == name]
        assert (row["name"], row["given"], row["chosen"], row["share"]) == (
            name,
            given[place],
            len(mine),
            len(mine) / N,
        )
        assert row["estimated"] == pytest.approx(wanted.shares[place])
        assert (row["labelled"], row["right"]) == (matrix[:, place].sum(), matrix[place, place])
        if mine:
            assert row["purity"]["value"] == np.mean([item["correct"] for item in mine])
            assert row["purity"]["n"] == len(mine)
        else:
            assert row["purity"] is None
    most = int(np.argmax(np.where(np.arange(3) == 1, 0, matrix[:, 1])))
    assert found["rows"][1]["confused"] == {"name": NAMES[most], "rows": matrix[most, 1]}
    assert found["rows"][0]["confused"] is None  # nobody is called anger in error
    assert found["num_unparsed"] == given[3] > 0
    gaps = [abs(row["share"] - row["estimated"]) for row in found["rows"]]
    assert found["distance"] == pytest.approx(sum(gaps) / 2) and found["distance"] > COLLAPSE and found["least"] < 0.02
    evidence = as_evidence(found)
    assert evidence is not None and [line[0] for line in evidence["over"]] == ["joy"]
    assert [line[0] for line in evidence["under"]] == ["<b>sadness</b>", "anger"]


def test_places_that_are_divided_are_compared_with_their_own_shares(run):
    of, record, *_ = run
    quota = {"classes": NAMES, "shares": [0.2, 0.8, 0.0], "basis": "confusion", "num_labelled": 90, "why": None}
    record.budget = {"rule": "n", "quota": quota}
    found = collect_class_table(of, record, "trust")
    assert found is not None and found["is_divided"] and found["basis"] == "confusion"
    assert found["distance"] == pytest.approx(abs(10 / N - 0.2)) and found["least"] == 0
    record.grades = {"source": record.grades["source"]}
    found = collect_class_table(of, record, "trust")
    assert found is not None and all(row["purity"] is None for row in found["rows"])


def test_certified_cuts_of_classes_stand_in_the_table(run):
    of, record, *_ = run
    quota = {"classes": NAMES, "shares": [0.2, 0.8, 0.0], "basis": "certified", "num_labelled": 0, "why": None}
    cut = {"threshold": 1.0, "num_calibration": 50, "num_kept": 40, "noise": 0.05, "bound": 0.09, "needed": None}
    cuts = [{"label": "anger", **cut}, {"label": "joy", **cut, "threshold": None, "needed": 77}]
    record.budget = {"rule": "risk", "quota": quota, "risk": {"per": "label", "classes": cuts}}
    found = collect_class_table(of, record, "trust")
    assert found is not None and found["is_certified"] and found["is_cut"] and not found["is_divided"]
    assert found["basis"] == "confusion"  # what is certified is no estimate of the pool
    assert [row["certified"] for row in found["rows"]] == [*cuts, None]
    macro = _PAGES.get_template("classes.html.j2").module.classes  # type: ignore[attr-defined]
    page = str(macro({"classes": found})).replace("\N{NO-BREAK SPACE}", " ")
    assert "noise 5.0 % of 40, at most 9.0 %" in page and "50 calibration rows, some 77 needed" in page
    assert "no pool row" in page and "Each class has a cut of its own" in page


def test_there_is_no_table_without_classes_or_rows(run):
    of, record, *_ = run
    assert collect_class_table(of, record, None) is None
    record.n = 0
    assert collect_class_table(of, record, "trust") is None
    record.n, of.domain = N, SimpleNamespace(closed_labels=lambda: None, label_sets=None)
    assert collect_class_table(of, record, "trust") is None


def test_the_page_shows_the_table_and_escapes_names(run):
    of, record, *_ = run
    macro = _PAGES.get_template("classes.html.j2").module.classes  # type: ignore[attr-defined]
    found = collect_class_table(of, record, "trust")
    page = str(macro({"classes": found}))
    assert "&lt;b&gt;sadness&lt;/b&gt;" in page and "<b>sadness" not in page and page.count("<tr>") == 4
    assert "of 200 labelled rows" not in page and "on 200 labelled rows" in page
    assert "Places are not divided by class" in page and str(macro({"classes": None})).strip() == ""
    many = {**found, "rows": found["rows"] * 5, "basis": "counts", "why": "of 3 labelled rows"}
    assert "<summary>All 15 classes</summary>" in str(macro({"classes": many}))
    assert "the teacher's own counts, errors and all: of 3 labelled rows." in str(macro({"classes": many}))


OVER, UNDER = (("joy", 0.9, 0.3),), (("sadness", 0.0, 0.4), ("anger", 0.1, 0.3))


def found(**fields: Any) -> dict[str, dict[str, str]]:
    given = {"distance": 0.6, "least": 0.01, "over": OVER, "under": UNDER, "is_divided": False, "is_cut": False}
    given |= {"basis": "confusion", "is_of_sets": False}
    classes = given | {name: fields.pop(name) for name in [*fields] if name in given}
    return {
        item["rule"]: item for item in reach_verdict(replace(HEALTHY, classes=classes, **fields), "runs/x").findings
    }


def test_a_collapse_names_the_classes_and_the_line_to_write() -> None:
    seen = found()
    assert set(seen) == {"collapse"} and seen["collapse"]["level"] == CARE
    assert seen["collapse"]["finding"].replace("\N{NO-BREAK SPACE}", " ") == (
        "this selection has collapsed: 59.0 % of its rows would have to be of other classes (joy has 90.0 % of its "
        "rows and 30.0 % of the pool, as estimated; sadness has 0.0 % of its rows and 40.0 % of the pool, as "
        "estimated; anger has 10.0 % of its rows and 30.0 % of the pool, as estimated)"
    )
    assert seen["collapse"]["next"] == "Divide the places among the classes: selection: {quota: auto}."
    assert "selection: {budget: {n: 2000}, quota: auto}" in found(is_cut=True)["collapse"]["next"]
    assert "the teacher gave too few rows the other labels" in found(is_divided=True)["collapse"]["next"]
    most = COLLAPSE
    assert not found(distance=most + 0.009) and found(distance=most + 0.02)
    assert not found(num_selected=19)


def test_a_selection_of_one_class_is_told_once_with_the_quota_as_mend() -> None:
    labels = {"num_labelled": 5000, "num_given": 3, "num_selected": 1}
    seen = found(labels=labels)
    assert set(seen) == {"one class"} and "selection: {quota: auto}" in seen["one class"]["next"]
