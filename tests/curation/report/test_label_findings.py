"""Findings on labels: one for all rows, one class selected, and options that win by being short."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from test_verdict import HEALTHY, about

from curation.domains.mcqa import Mcqa
from curation.refs import TableRef
from curation.report.checks import FEW_OPTIONS, OptionLengths, measure_option_lengths
from curation.report.rules import CARE, STOP
from curation.report.verdict import reach_verdict


def findings(**fields: Any) -> dict[str, dict[str, str]]:
    return {item["rule"]: item for item in reach_verdict(replace(HEALTHY, **fields), "runs/x").findings}


def seen(num_labelled: int, num_given: int, num_selected: int) -> dict[str, Any]:
    return {"labels": {"num_labelled": num_labelled, "num_given": num_given, "num_selected": num_selected}}


def test_one_label_for_all_rows_is_found() -> None:
    found = findings(**seen(900, 1, 1))
    assert set(found) == {"one label"} and found["one label"]["level"] == STOP
    assert "the teacher gave one label to all 900 rows" in found["one label"]["finding"]
    assert "teacher: {decoding: {normalise_options: true}}" in found["one label"]["next"]
    assert "curate inspect runs/x" in found["one label"]["next"]
    assert not findings(**seen(19, 1, 1)) and not findings(**seen(900, 2, 2)) and not findings(**seen(0, 0, 0))


@pytest.mark.parametrize("given, line", [(2, "max_per_label: 0.6}"), (10, "max_per_label: 0.2}"), (900, "0.01}")])
def test_a_selection_of_one_class_is_found_with_the_line_to_write(given: int, line: str) -> None:
    found = findings(**seen(5000, given, 1))
    assert set(found) == {"one class"} and found["one class"]["level"] == CARE
    assert f"of one class: all 2,000 rows have one label, of {given:,} that" in found["one class"]["finding"]
    assert line in found["one class"]["next"]
    assert not findings(**seen(5000, given, 2)) and not findings(num_selected=19, **seen(5000, given, 1))


def test_short_labels_are_found_where_the_score_by_length_is_right_more_often() -> None:
    bad = OptionLengths(shorter=about(6.2, 5.0, 7.0, 300), gain=about(0.2, 0.1, 0.3, 300))
    found = findings(option_lengths=bad)
    assert set(found) == {"short options"} and "normalise_options: true" in found["short options"]["next"]
    assert (
        "on 300 labelled rows the chosen one is shorter than the right one by 6.2 characters; by the score per "
        "character 20 points more"
    ) in found["short options"]["finding"]
    for harmless in ({"gain": about(0.01, -0.01, 0.03)}, {"shorter": about(0.1, -0.2, 0.4)}):
        assert not findings(option_lengths=replace(bad, **harmless))


def tables(folder: Path, choices: Sequence[list[str]], gold: Sequence[int], scores: Any) -> tuple[TableRef, TableRef]:
    """Rows of the domain mcqa, and a teacher's scores of their options."""
    ids = list(range(len(choices)))
    rows = {
        "row_id": pa.array(ids, pa.int64()),
        "question": [f"Which of {n}?" for n in ids],
        "choices": pa.array(choices, pa.list_(pa.string())),
        "gold": ["ABCD"[place] for place in gold],
    }
    given = {"row_id": pa.array(ids, pa.int64()), "option_logprobs": pa.array(scores, pa.list_(pa.float32()))}
    for name, table in (("rows", rows), ("labels", given)):
        lance.write_dataset(pa.table(table), str(folder / f"{name}.lance"), mode="overwrite")
    return tuple(TableRef(uri=str(folder / f"{name}.lance"), version=1) for name in ("rows", "labels"))  # type: ignore


def test_lengths_are_measured_on_the_rows_and_scores_of_the_run(tmp_path: Path) -> None:
    """A word costs 2 nats, the right one half of that: by the whole score short options win, not per character."""
    rng, domain = np.random.default_rng(0), Mcqa(option_style="texts")
    choices, gold = [], rng.integers(0, 2, 200).tolist()
    for row in range(200):
        choices.append([f"{row}x", f"{row} " + "long word " * 4 + "x"])
    lengths = [[len(option) for option in domain.options({"question": "", "choices": row})] for row in choices]
    scores = [
        [-0.2 * length * (0.5 if place == right else 1.0) for place, length in enumerate(row)]
        for row, right in zip(lengths, gold, strict=True)
    ]
    rows, labels = tables(tmp_path, choices, gold, scores)
    found = measure_option_lengths(rows, labels, domain, np.arange(200), 0)
    assert found is not None and found.shorter.n == 200
    is_long = np.array(gold) == 1
    assert found.gain.value == pytest.approx(is_long.mean()) and found.gain.low > 0
    gap = np.array([row[1] - row[0] for row in lengths])
    assert found.shorter.value == pytest.approx((gap * is_long).mean()) and found.shorter.low > 0
    fair = [[-1.0 if place == right else -5.0 for place in range(2)] for right in gold]
    rows, labels = tables(tmp_path / "fair", choices, gold, fair)
    found = measure_option_lengths(rows, labels, domain, np.arange(200), 0)
    assert found is not None and found.shorter.value == 0 and found.gain.low <= 0


def test_without_options_of_several_lengths_nothing_is_said(tmp_path: Path) -> None:
    domain, equal = Mcqa(option_style="texts"), [["aa", "bb"]] * 100
    rows, labels = tables(tmp_path / "a", equal, [0] * 100, [[-1.0, -2.0]] * 100)
    assert measure_option_lengths(rows, labels, domain, np.arange(100), 0) is None
    few = FEW_OPTIONS - 1
    rows, labels = tables(tmp_path / "b", [["a", "bb"]] * few, [0] * few, [[-1.0, -2.0]] * few)
    assert measure_option_lengths(rows, labels, domain, np.arange(few), 0) is None
    rows, labels = tables(tmp_path / "c", [["a", "bb"]] * 50, [0] * 50, [None] * 50)  # generated answers
    assert measure_option_lengths(rows, labels, domain, np.arange(50), 0) is None
