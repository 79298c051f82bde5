"""Columns of the user's files beside the selected rows, by ``curate export --columns``."""

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

from curation.cli import main

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]
NUM_LABELLED, NUM_POOL, N = 160, 400, 60


def curate(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def write_csv(path: Path, num_rows: int, *, seed: int, first: int) -> dict[str, dict[str, str]]:
    """Rows with an id that is a text, labels of which three quarters are right, and a confidence that tells."""
    rng, rows = random.Random(seed), []
    for number in range(first, first + num_rows):
        gold, right = rng.choice(["spam", "ham"]), rng.random() < 0.75
        rows.append(
            {
                "key": f"mail-{number:04d}",
                "text": f"message {number} about {gold}",
                "label": gold,
                "answer": gold if right else {"spam": "ham", "ham": "spam"}[gold],
                "sure": f"{rng.gauss(0.8 if right else 0.5, 0.15):.4f}",
                "url": f"https://example.org/{number}" if number % 3 else "",
            }
        )
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return {row["text"]: row for row in rows}


def config(folder: Path) -> str:
    found: dict[str, Any] = {
        "name": "mail",
        "run_dir": str(folder / "run"),
        "domain": {"name": "classification", "classes": ["spam", "ham"]},
        "teacher": {"backend": "given", "completion": "answer", "confidence": "sure"},
        "sources": {name: {"path": str(folder / f"{name}.csv")} for name in ("labelled", "pool")},
        "splits": {"source": {"from": "labelled"}, "pool": {"from": "pool"}},
        "selection": {"arms": ["naive", "trust"], "budget": {"n": N}},
        "generations": [],
        "ray": {"num_cpus": 2},
    }
    (folder / "mail.yaml").write_text(yaml.safe_dump(found))
    return str(folder / "mail.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keep")


@pytest.fixture(scope="module")
def pool(folder: Path) -> dict[str, dict[str, str]]:
    write_csv(folder / "labelled.csv", NUM_LABELLED, seed=0, first=0)
    rows = write_csv(folder / "pool.csv", NUM_POOL, seed=1, first=5000)
    curate("run", config(folder))
    return rows


def export(folder: Path, *options: str) -> Path:
    out = folder / "-".join(["rows", *options]).replace(",", "-")
    curate("export", str(folder / "run"), "-o", str(out), *options)
    return out / "data"


def test_every_selected_row_has_the_users_own_id(folder: Path, pool: dict[str, dict[str, str]]) -> None:
    for arm in ("naive", "trust"):
        (selected,) = (folder / "run" / "gen-0").glob(f"select*/{arm}.lance")
        (file,) = export(folder, "--arm", arm, "--columns", "key,url").iterdir()
        rows, before = pq.read_table(file), lance.dataset(str(selected)).to_table()
        assert rows.column_names == [*before.column_names, "key", "url"]
        assert rows.drop_columns(["key", "url"]).equals(before)
        for row in rows.to_pylist():
            text = row["prompt"].removeprefix("Text: ").partition("\n")[0]
            assert row["key"] == pool[text]["key"] and pool[text]["answer"] == row["label"]
            assert row["url"] == (pool[text]["url"] or None)
        (file,) = export(folder, "--arm", arm, "--columns", "key", "--format", "jsonl").iterdir()
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [line["key"] for line in lines] == rows["key"].to_pylist() and len(lines) == N


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("Key", "pool.csv: has no column 'Key' (it has: key, text, label, answer, sure, url); did you mean 'key'?"),
        ("label", "--columns: 'label' is a column that every selection has; rename it in the pool's files"),
    ],
)
def test_wrong_columns_are_refused(folder: Path, pool: dict[str, dict[str, str]], columns: str, message: str) -> None:
    told = curate("export", str(folder / "run"), "-o", str(folder / "no"), "--columns", columns, code=2)
    assert message in " ".join(told.split()) and not (folder / "no").exists()
