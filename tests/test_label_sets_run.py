"""Rows with several labels: a run over a made model, its selection, student, package and filter."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import lance
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from tiny_shape import TINY

from curation.cli import main
from curation.models import create

pytestmark = [pytest.mark.timeout(900), pytest.mark.whole_run]
NUM_LABELLED, NUM_POOL, NUM_TEST, NUM_NEW, N = 160, 80, 40, 40, 20
CLASSES = ("card", "fee", "app")
WORDS = (*map(chr, range(0x20, 0x7F)), "\n", " yes", " no")
SHAPE = TINY | {"max_position_embeddings": 256, "initializer_range": 0.2}


def curate(*arguments: str, codes: tuple[int, ...] = (0,)) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code in codes, result.output
    return result.output


def texts(num: int, first: int) -> list[tuple[str, list[str]]]:
    """Texts with the labels that they name: two thirds of them some, the others none."""
    rng = random.Random(first)
    found = []
    for number in range(first, first + num):
        labels = [name for name in CLASSES if rng.random() < 0.4]
        found.append((f"message {number * 7919}: {' '.join(labels)}.", labels))
    return found


def write(folder: Path, name: str, num: int, first: int) -> dict[str, str]:
    """A file of lists (.jsonl) or of texts with a separator (.csv); the set of each text, in order of the alphabet."""
    rows = texts(num, first)
    if name.endswith(".jsonl"):
        lines = [json.dumps({"text": text, "topics": labels}) for text, labels in rows]
        (folder / name).write_text("\n".join(lines))
    else:
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([("text", "topics"), *((text, ", ".join(own) or "none") for text, own in rows)])
    return {text: ", ".join(sorted(labels)) or "none" for text, labels in rows}


def supports(path: Path) -> list[int]:
    """How many rows hold each class, in order of the alphabet, and how many none."""
    sets = [json.loads(line)["topics"] for line in path.read_text().splitlines()]
    return [*(sum(name in own for own in sets) for name in sorted(CLASSES)), sum(not own for own in sets)]


def table(folder: Path, pattern: str) -> list[dict[str, Any]]:
    (uri,) = folder.glob(pattern)
    rows: list[dict[str, Any]] = lance.dataset(str(uri)).to_table().to_pylist()
    return rows


def test_from_lists_of_labels_to_report_selection_student_and_filter(tmp_path: Path) -> None:
    create(tmp_path / "base", family="qwen3", shape=SHAPE, words=WORDS, pattern=r" (?:yes|no)(?![a-z])|[\s\S]", seed=2)
    write(tmp_path, "labelled.jsonl", NUM_LABELLED, 0)
    golds = write(tmp_path, "pool.csv", NUM_POOL, 1_000)
    tests = write(tmp_path, "test.csv", NUM_TEST, 2_000)
    config = {
        "name": "topics",
        "run_dir": str(tmp_path / "run"),
        "domain": {"name": "classification", "label": "topics", "multi": True},
        "sources": {path.stem: {"path": str(path)} for path in tmp_path.glob("*.[cj]s*")},
        "splits": {"source": {"from": "labelled"}, "pool": {"from": "pool"}, "test": {"from": "test"}, "audit": True},
        "teacher": {"model": {"path": str(tmp_path / "base")}, "actors": {"num_gpus": 0}},
        "selection": {"arms": ["naive", "internal_confidence", "trust", "ground_truth"], "budget": {"n": N}},
        "student": {"global_batch_size": 4, "epochs": 4, "learning_rate": 5e-3},
        "generations": [{"student": {"path": str(tmp_path / "base")}}],
        "ray": {"num_cpus": 2},
    }
    (tmp_path / "topics.yaml").write_text(yaml.safe_dump(config))
    said = curate("validate", str(tmp_path / "topics.yaml"))
    assert "go to the 3 classes and to rows of none, each row by its rarest class" in " ".join(said.split())
    curate("run", str(tmp_path / "topics.yaml"))

    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert kept["domain"]["classes"] == sorted(CLASSES)
    labels = table(tmp_path / "run" / "gen-0", "label-pool-*/labels.lance")
    examples = {row["row_id"]: row["text"] for row in table(tmp_path / "run", "prepare-*/pool.lance")}
    assert len(labels) == len(examples) == NUM_POOL, "a row stays one row"
    right = [row["label"] == golds[examples[row["row_id"]]] for row in labels]
    assert 0 < sum(right) < NUM_POOL and len({row["label"] for row in labels}) > 2
    for row in labels:
        gaps = [row["option_logprobs"][place] - row["option_logprobs"][place + 1] for place in (0, 2, 4)]
        stated = [name for name, gap in zip(sorted(CLASSES), gaps, strict=True) if gap > 0]
        assert row["label"] == (", ".join(stated) or "none") and row["num_options"] == len(stated)
        assert row["margin"] == pytest.approx(min(map(abs, gaps)), abs=1e-5)

    report = json.loads((tmp_path / "run" / "report.json").read_text())
    (generation,) = report["generations"]
    shown = generation["classes"]
    assert [row["name"] for row in shown["rows"]] == [*sorted(CLASSES), "none"] and shown["is_divided"]
    assert [row["support"] for row in shown["rows"]] == supports(tmp_path / "labelled.jsonl")
    assert generation["budget"]["quota"]["classes"] == [*sorted(CLASSES), "none"]
    naive = next(arm for arm in generation["arms"] if arm["name"] == "naive")
    assert naive["purity"]["n"] == N
    (selected,) = (tmp_path / "run" / "gen-0").glob("select-*/trust.lance")
    rows = lance.dataset(str(selected)).to_table().to_pylist()
    assert len(rows) == N
    for row in rows:
        names = [] if row["label"] == "none" else row["label"].split(", ")
        lines = [f"{name}: {'yes' if name in names else 'no'}" for name in sorted(CLASSES)]
        assert row["completion"] == "\n" + "\n".join(lines) and row["prompt"].endswith("\nLabels:")
    (answers,) = (tmp_path / "run" / "gen-0").glob("test-ground_truth-*/labels.lance")
    tested = lance.dataset(str(answers)).to_table(["row_id", "label"]).to_pylist()
    assert len(tested) == NUM_TEST and all(row["label"] is not None for row in tested)
    assert set(tests.values()) > {"none"}

    package = str(tmp_path / "package")
    curate("export-trust", str(tmp_path / "run"), "-o", package)
    curate("verify", package)
    write(tmp_path, "new.csv", NUM_NEW, 1_000)  # the first rows of the pool
    filtered = tmp_path / "kept"
    new = str(tmp_path / "new.csv")
    curate("filter", package, new, "-o", str(filtered), "--keep", "0.25", "--anyway", codes=(0, 3))
    assert pq.read_table(filtered / "data").num_rows == NUM_NEW // 4
    again = {row["row_id"]: row["label"] for row in table(filtered / "_curation", "label-*/labels.lance")}
    first = {row["row_id"]: row["label"] for row in labels}
    assert len(again) == NUM_NEW and all(first[row_id] == label for row_id, label in again.items())
