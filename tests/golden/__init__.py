"""Golden records of whole runs: a few numbers to the digit, and digests of what each arm selected.

``check(name, directory)`` compares a finished run with ``tests/golden/<name>.json``. With ``WRITE_GOLDEN=1`` in the
environment it writes the file instead; a commit that changes such a file says why. A model's sums depend on which rows
share a batch, and so on timing, and all sums depend on the processor's instructions. So numbers may differ by ``APART``
and digests are not compared if a model answers, or if the record was made on a processor of another kind.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import torch

FOLDER = Path(__file__).parent
APART = 0.005
"""Maximum difference of an estimate that another order of summation may cause."""
ESTIMATE = ("value", "low", "high", "n")
IDENTITY = ("row_id", "label", "rank")


def check(name: str, directory: Path | str, *, exact: bool = True) -> None:
    """Compare a finished run with its record, or write the record; set ``exact=False`` if a model answers.

    Raises:
        AssertionError: the run differs from the record; the message lists all differences.
    """
    compare(name, record_of(Path(directory)), exact=exact)


def compare(name: str, found: Mapping[str, Any], *, exact: bool = True) -> None:
    """Compare values with the record of the given name, as :func:`check` does; digests are below ``selected``."""
    path, found = FOLDER / f"{name}.json", {"instructions": torch.backends.cpu.get_cpu_capability(), **found}
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        return
    expected = json.loads(path.read_text())
    exact &= found["instructions"] == expected["instructions"]
    now, then = ({place: value for place, value in leaves(record)} for record in (found, expected))
    apart = [
        f"{place}: {then.get(place, 'nothing')} before, {now.get(place, 'nothing')} now"
        for place in sorted(now.keys() | then.keys())
        if not _equal(place, then.get(place), now.get(place), exact=exact)
    ]
    assert not apart, f"{path.name} (WRITE_GOLDEN=1 writes it again):\n" + "\n".join(apart)


def record_of(directory: Path) -> dict[str, Any]:
    """Return the numbers and digests of a finished run."""
    report = json.loads((directory / "report.json").read_text())
    return {"generations": [_generation(of, directory / f"gen-{of['index']}") for of in report["generations"]]}


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each leaf of nested mappings and lists."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from leaves(part, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from leaves(part, f"{place}[{number}]")
    else:
        yield place, value


def _generation(of: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    arms = of["arms"] or []
    trust = of["trust"] or {}
    return {
        "n": of["n"],
        "verdict": {"level": of["verdict"]["level"], "rules": [found["rule"] for found in of["verdict"]["findings"]]},
        "teacher": {split: _estimate(of["teacher"][split]) for split in ("pool", "test")},
        "base": _estimate(of["base"]),
        "arms": {
            arm["name"]: {"num_selected": arm["num_selected"]}
            | {key: _estimate(arm[key]) for key in ("purity", "foreseen_purity", "accuracy")}
            for arm in arms
        },
        "trust": {
            split: {name: _estimate(function["auc"]) for name, function in trust[split]["parsed"]["functions"].items()}
            for split in ("validation", "pool")
            if trust.get(split)
        },
        "regimes": [{key: _estimate(regime[key]) for key in ("auc", "brier", "ece")} for regime in of["regimes"] or []],
        "selected": {
            arm["name"]: digest(lance.dataset(str(path)).to_table())
            for arm in arms
            for path in folder.glob(f"select*/{arm['name']}.lance")
        },
    }


def digest(table: pa.Table) -> str:
    """Return the digest of selected rows: their ids, labels and ranks, in order."""
    columns = [table[name].to_pylist() for name in IDENTITY if name in table.column_names]
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:16]


def _estimate(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    value = value.get("test", value)
    return {key: value[key] for key in ESTIMATE if key in value} if isinstance(value, Mapping) else value


def _equal(place: str, then: Any, now: Any, *, exact: bool) -> bool:
    if place == "instructions" or (not exact and ".selected." in place):
        return True
    numbers = [number for number in (then, now) if isinstance(number, float | int) and not isinstance(number, bool)]
    if len(numbers) < 2:
        return bool(then == now)
    return math.isclose(then, now, rel_tol=1e-9, abs_tol=1e-9 if exact else APART)
