"""A hostile input and the small run that it is tried on: each must be refused in one line, before any work."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Settings = Mapping[str, Any]
RAN = "ran"
"""The file that foreign code writes into the case's folder when it runs."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """An input that `curate validate`, `plan` and `run` are to refuse."""

    name: str
    make: Callable[[Path], Settings]
    """Gets a folder with a good model in ``model`` and an adapter for it in ``adapter``, damages what it likes, and
    returns the keys of the configuration to set."""
    says: str
    """A regular expression that the refusal matches."""


def write_config(folder: Path, settings: Settings, *, rows: Path) -> Path:
    """The configuration of a small run in ``folder`` over a file of chess puzzles, with other values."""
    config: dict[str, Any] = {
        "name": "hostile",
        "run_dir": str(folder / "run"),
        "sources": {"puzzles": {"path": str(rows)}},
        "splits": {"source": {"from": "puzzles", "rows": 15}, "pool": {"from": "puzzles", "rows": 20}},
        "teacher": {"backend": "transformers" if "model" in settings.get("teacher", {}) else "scripted"},
        "selection": {"budget": {"n": 5}, "arms": ["naive"]},
    }
    path = folder / "hostile.yaml"
    path.write_text(yaml.safe_dump(_merged(config, settings)))
    return path


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result
