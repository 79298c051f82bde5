"""The classifier that docs/data-forms.md begins with: its commands as they stand, with texts and a model made here."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import lance
import pytest
from click.testing import CliRunner
from tiny_shape import TINY

from benchmarks import classifier
from curation.cli import main
from curation.models import create

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]
CLASSES = ("card_arrival", "declined_transfer", "top_up_limits", "exchange_rate")
SHAPE = TINY | {"max_position_embeddings": 256, "initializer_range": 0.2}


def write(path: Path, num_rows: int, *, seed: int, labelled: bool) -> dict[str, str]:
    """A file of texts that name their class; the class of each text."""
    rng = random.Random(seed)
    names = [rng.choice(CLASSES) for _ in range(num_rows)]
    found = {f"message {rng.randrange(10**9):09}: {name.replace('_', ' ')}?": name for name in names}
    rows = [("text", "label"), *found.items()]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows if labelled else [(text,) for text, _ in rows])
    return found


def test_the_first_commands_of_the_page_lead_to_a_report_a_selection_and_a_filter(
    local_ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def curate(words: list[str], folder: Path) -> None:
        monkeypatch.chdir(folder)
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output

    letters = ("\n", *map(chr, range(0x20, 0x7F)))
    create(tmp_path / "model", family="qwen3", shape=SHAPE, words=letters, pattern=r"[\s\S]", seed=2)
    write(tmp_path / "labelled.csv", 160, seed=0, labelled=True)
    gold = write(tmp_path / "unlabelled.csv", 100, seed=1, labelled=False)
    write(tmp_path / "later.csv", 100, seed=2, labelled=False)
    assert [words[0] for words in classifier.commands()] == ["validate", "run", "export-trust", "filter"]
    seconds = classifier.run_page(tmp_path, tmp_path / "model", anyway=True, curate=curate)
    assert (tmp_path / "runs/tickets/report.html").is_file()
    assert sum(file["rows"] for file in json.loads((tmp_path / "tickets-kept/filter.json").read_text())["files"]) == 10

    rows = classifier.read_rows(tmp_path, gold)
    assert len(rows.right_N) == 100 and 0 < rows.right_N.sum() < 100
    (selected,) = (tmp_path / "runs/tickets/gen-0").glob("select-*/trust.lance")
    labels = lance.dataset(str(selected)).to_table().to_pylist()
    right = [gold[row["prompt"].split("\n")[0].removeprefix("Text: ")] == row["label"] for row in labels]
    shown = classifier.table(rows, seconds)
    assert rows.selected["trust"].sum() == sum(right)
    lines = {line.split(" | ")[0]: line for line in shown.splitlines()}
    assert {"| **trust**", "| autolabel: mean log-probability", "| plain confidence"} <= lines.keys()
    for name in ("the teacher's probabilities", "cross-validated on the labels", "fitted on the labelled rows"):
        assert rows.probabilities[name].shape == (100, len(CLASSES))
        assert rows.probabilities[name].sum(axis=1) == pytest.approx(1)
