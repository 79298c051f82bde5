"""Pairs of answers, filtered: a run's trust on both orders, its package, and new pairs that pass through it."""

import json
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

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]
NUM_LABELLED, NUM_POOL, NUM_NEW = 120, 40, 60
SHAPE = TINY | {"max_position_embeddings": 256}


def curate(*arguments: str, codes: tuple[int, ...] = (0,)) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code in codes, result.output
    return result.output


def write(path: Path, num: int, keys: tuple[str, str]) -> None:
    """Pairs whose better answer, the first key's, says yes."""
    rows = [{"prompt": f"Is {n} it?", keys[0]: f"yes, {n}", keys[1]: f"no, {n * n}"} for n in range(num)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_a_package_of_a_pair_run_filters_new_pairs(tmp_path: Path) -> None:
    """The default trust reads ``order_agreement``, so that the package has to know it as a number of its rows."""
    words = tuple(map(chr, range(0x20, 0x7F)))
    create(tmp_path / "base", family="qwen3", shape=SHAPE, words=(*words, "\n"), pattern=r"[\s\S]", seed=0)
    write(tmp_path / "labelled.jsonl", NUM_LABELLED, ("chosen", "rejected"))
    for name, num in (("pool", NUM_POOL), ("new", NUM_NEW)):
        write(tmp_path / f"{name}.jsonl", num, ("second", "first"))
    config = {
        "name": "pairs",
        "run_dir": str(tmp_path / "run"),
        "domain": "pair",
        "sources": {name: {"path": str(tmp_path / f"{name}.jsonl")} for name in ("labelled", "pool")},
        "splits": {"source": {"from": "labelled"}, "pool": {"from": "pool"}, "overlap": "report"},
        "teacher": {"model": {"path": str(tmp_path / "base")}, "actors": {"num_gpus": 0}},
        "selection": {"arms": ["naive", "trust"], "budget": {"n": 20}},
        "ray": {"num_cpus": 2},
    }
    (tmp_path / "pairs.yaml").write_text(yaml.safe_dump(config))
    curate("run", str(tmp_path / "pairs.yaml"))
    package, kept = str(tmp_path / "package"), tmp_path / "kept"
    curate("export-trust", str(tmp_path / "run"), "-o", package)
    described = json.loads((tmp_path / "package" / "package.json").read_text())["description"]
    assert "order_agreement" in described["inputs"], "or this test says nothing of it"
    curate("verify", package)
    new = str(tmp_path / "new.jsonl")
    curate("filter", package, new, "-o", str(kept), "--keep", "0.25", "--anyway", codes=(0, 3))  # 3: a shift is told
    labels = {row["row_id"]: row for row in table(kept / "_curation", "label-*/labels.lance")}
    assert pq.read_table(kept / "data").num_rows == NUM_NEW // 4 and len(labels) == NUM_NEW
    assert all(row["order_agreement"] is not None for row in labels.values())
    for row in table(tmp_path / "run" / "gen-0", "label-pool-*/labels.lance"):  # these are the first of the new ones
        found = labels[row["row_id"]]
        assert found["order_agreement"] == pytest.approx(row["order_agreement"], abs=1e-4)


def table(folder: Path, pattern: str) -> list[dict[str, Any]]:
    (uri,) = folder.glob(pattern)
    rows: list[dict[str, Any]] = lance.dataset(str(uri)).to_table().to_pylist()
    return rows
