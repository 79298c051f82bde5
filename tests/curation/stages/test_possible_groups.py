"""Columns that may divide rows into groups are named by `curate validate`, and no others."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curation.commands.validate import check
from curation.config import RunConfig
from curation.stages.preview import is_possible_group


def warned(
    folder: Path, labelled: list[dict[str, Any]], pool: list[dict[str, Any]], group: str | None = None
) -> list[str]:
    for name, rows in (("labelled", labelled), ("pool", pool)):
        rows = [
            row | {"question": f"{name} {n}?", "choices": ["a", "b"], "answer": n % 2} for n, row in enumerate(rows)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = RunConfig.model_validate(
        {
            "name": "grouped",
            "run_dir": str(folder / "run"),
            "domain": "mcqa",
            "sources": {name: {"path": str(folder / f"{name}.jsonl")} for name in ("labelled", "pool")},
            "splits": {"source": {"from": "labelled"}, "pool": {"from": "pool"}, "group": group},
            "teacher": {"backend": "scripted"},
            "selection": {"budget": {"n": 1}, "arms": ["naive"]},
        }
    )
    return [line.text for line in check(config) if line.kind == "warning" and "may divide" in line.text]


def of_users(users: np.ndarray, **more: Any) -> list[dict[str, Any]]:
    return [{"user": f"u{user}", **more} for user in users.tolist()]


def test_users_of_whom_the_pool_has_others_are_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labelled, pool = of_users(rng.integers(30, size=300)), of_users(100 + rng.integers(500, size=900))
    (line,) = warned(tmp_path, labelled, pool)
    assert "user may divide rows into groups (300 labelled rows that were looked at have 30 values, and 100 %" in line
    assert "curate review draw" in line and "set splits.group: user" in line
    assert warned(tmp_path, labelled, pool, group="user") == [], "its rows are counted by group"


@pytest.mark.parametrize("kind", ["same users", "a user a row", "few values", "no such column"])
def test_other_columns_are_not(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    users = rng.integers(30, size=300)
    labelled, pool = {
        "same users": (of_users(users), of_users(rng.integers(30, size=900))),
        "a user a row": (of_users(np.arange(300)), of_users(np.arange(1000, 1900))),
        "few values": (of_users(users % 3), of_users(5 + rng.integers(3, size=900))),
        "no such column": (of_users(users), [{"page": n // 9} for n in range(900)]),
    }[kind]
    assert warned(tmp_path, labelled, pool) == []


def test_nine_of_ten_rows_have_to_have_other_values() -> None:
    of_source = Counter({f"u{user}": 10 for user in range(10)})
    assert is_possible_group(of_source, Counter(u1=10, x=90)) and not is_possible_group(of_source, Counter(u1=11, x=89))
    assert not is_possible_group(Counter({f"u{user}": 2 for user in range(40)}), Counter(x=90))  # two rows a user
    assert not is_possible_group(of_source, Counter(x=49))
