"""The report's rows by class where labels are sets: against scikit-learn's, the page, and the finding of a collapse."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from class_tables import Row, run_of, write
from sklearn.metrics import precision_recall_fscore_support
from sklearn.preprocessing import MultiLabelBinarizer
from test_verdict import HEALTHY

from curation.domains.class_counts import make_held_mask
from curation.domains.classification import Classification
from curation.report.class_table import as_evidence, collect_class_table
from curation.report.html import _PAGES
from curation.report.rules import COLLAPSE
from curation.report.verdict import reach_verdict
from curation.tables import schemas

NAMES = ("card", "<b>fee</b>", "app")
LINES = (*NAMES, "none")
DOMAIN = Classification(classes=NAMES, multi=True)
NUM_SOURCE, NUM_POOL, N = 1_600, 2_000, 50
SHARES = (0.5, 0.3, 0.1)


def text(names: list[str]) -> str:
    return ", ".join(names) or "none"


def dealt(num_rows: int, first: int, rng: np.random.Generator) -> list[Row]:
    """Rows whose teacher misses a third of the classes, and says card of a fifth of the others."""
    rows = []
    for number in range(num_rows):
        gold = [name for name, share in zip(NAMES, SHARES, strict=True) if rng.random() < share]
        label = [name for name in NAMES if rng.random() < (2 / 3 if name in gold else 0.2 * (name == "card"))]
        answer = None if number % 40 == 0 else text(label)
        rows.append({"row_id": first + number, "gold": text(gold), "label": answer, "judged": False})
        rows[-1] |= {"correct": answer == text(gold), "completion": answer}
    return rows


@pytest.fixture
def run(tmp_path: Path) -> tuple[Any, Any, list[Row], list[Row], list[Row]]:
    """What of a run the table is read from: trust selected rows without classes, and a few others."""
    rng = np.random.default_rng(0)
    source, pool = dealt(NUM_SOURCE, 0, rng), dealt(NUM_POOL, 1 << schemas.FILE_SHIFT, rng)
    chosen = [row for row in pool if row["label"] == "none"][: N - 10]
    chosen += [row for row in pool if row["label"] not in ("none", None)][: N - len(chosen)]
    return *run_of(tmp_path, DOMAIN, source, pool, chosen[::-1]), source, pool, chosen


def binary(rows: list[Row], column: str) -> Any:
    """Whether each row's set holds each class, and whether it is empty, by scikit-learn; nothing of an unread label."""
    sets = [[] if row[column] is None else [name.strip() for name in row[column].split(",")] for row in rows]
    return MultiLabelBinarizer(classes=LINES).fit_transform(sets)


def test_rows_by_class_are_those_of_scikit_learn(run):
    of, record, source, pool, chosen = run
    found = collect_class_table(of, record, "trust")
    assert found is not None and found["is_of_sets"] and found["basis"] == "confusion"
    assert [row["name"] for row in found["rows"]] == [*LINES]
    assert found["num_unparsed"] == NUM_POOL / 40 and found["num_labelled"] == NUM_SOURCE
    gold, said, mine = binary(source, "gold"), binary(source, "label"), binary(chosen, "label")
    precision, recall, _, support = precision_recall_fscore_support(gold, said, zero_division=np.nan)
    right = np.array([row["correct"] for row in chosen])
    for place, row in enumerate(found["rows"]):
        assert row["support"] == support[place] and row["given"] == binary(pool, "label")[:, place].sum()
        assert row["precision"]["value"] == pytest.approx(precision[place])
        assert row["recall"]["value"] == pytest.approx(recall[place]) and row["recall"]["n"] == support[place]
        num = mine[:, place].sum()
        assert (row["chosen"], row["share"]) == (num, num / N)
        assert row["purity"]["value"] == pytest.approx(right[mine[:, place] == 1].mean()) and row["purity"]["n"] == num
    # The estimate is near the pool's own shares, and the teacher's counts are far from them.
    true, counts = binary(pool, "gold").mean(axis=0), binary(pool, "label").mean(axis=0)
    estimated = np.array([row["estimated"] for row in found["rows"]])
    assert np.abs(estimated - true).max() < 0.06 < 0.1 < np.abs(counts - true).max()
    gaps = np.abs(mine.mean(axis=0) - estimated)
    assert found["distance"] == pytest.approx(gaps.max()) and gaps.argmax() == 3 and found["least"] <= 0.5 / N


def test_no_set_needs_more_other_rows_than_the_greatest_gap_says(run):
    """A selection that has the pool's sets has no gap: the bound is one from below."""
    of, record, _, pool, _ = run
    same = [row for row in pool if row["label"] is not None]
    record.selections["trust"] = write(Path(record.labels["pool"].uri).parent, "same", same, schemas.SELECTION)
    found = collect_class_table(of, record, "trust")
    counts = np.array([row["given"] for row in found["rows"]]) / len(same)
    assert [row["share"] for row in found["rows"]] == pytest.approx(counts)
    assert found["distance"] <= 0.25 < COLLAPSE


def test_a_label_that_is_no_set_of_the_classes_holds_none():
    labels = pa.array(["card, app", None, "tax", "none", "card, tax", "card,"])
    held_NC = make_held_mask(labels, DOMAIN.label_sets)
    assert held_NC.any(axis=1).tolist() == [True, False, False, True, False, False]
    assert held_NC[[0, 3]].tolist() == [[True, False, True, False], [False, False, False, True]]


def test_without_grades_and_with_few_labelled_rows_the_counts_stand(run):
    of, record, source, *_ = run
    own = [row for row in source[1:40] if "app" not in row["gold"]][:3]
    few = write(Path(record.labels["pool"].uri).parent, "few", own, schemas.GRADES)
    record.grades = {"source": few}
    found = collect_class_table(of, record, "trust")
    assert found["basis"] == "counts" and "of 3 labelled rows" in found["why"]
    assert all(row["purity"] is None for row in found["rows"])
    assert sum(row["support"] for row in found["rows"]) == binary(own, "gold").sum()
    assert found["rows"][2]["support"] == 0 and found["rows"][2]["recall"] is None


def test_the_page_shows_the_table_and_escapes_names(run):
    of, record, *_ = run
    macro = _PAGES.get_template("classes.html.j2").module.classes  # type: ignore[attr-defined]
    found = collect_class_table(of, record, "trust")
    page = str(macro({"classes": found}))
    assert "&lt;b&gt;fee&lt;/b&gt;" in page and "<b>fee" not in page and page.count("<tr>") == 5
    assert '<th>none<span class="ci">no class</span></th>' in page and page.count("no class") == 1
    assert ">Precision<" in page and "Places are not divided by class" in page and page.count("<p") == 1
    assert "Places are divided by the rarest class" in str(macro({"classes": {**found, "is_divided": True}}))
    assert "errors and all: few." in str(macro({"classes": {**found, "basis": "counts", "why": "few"}}))


def test_a_collapse_of_sets_is_found_by_one_class(run):
    of, record, *_ = run
    evidence = as_evidence(collect_class_table(of, record, "trust"))
    assert evidence is not None and evidence["is_of_sets"] and evidence["over"][0][0] == "none"
    shown = replace(HEALTHY, classes=evidence, num_selected=N)
    (item,) = reach_verdict(shown, "runs/x").findings
    assert item["rule"] == "collapse"
    assert "of its rows would have to be of other sets of classes, at the least (none has" in item["finding"]
    assert item["next"] == "Divide the places among the classes: selection: {quota: auto}."
    divided = replace(shown, classes={**evidence, "is_divided": True})
    assert "by the rarest class of each set, and this is left" in reach_verdict(divided, "runs/x").findings[0]["next"]
