"""A hostile input and the small run that must refuse it in one line, before any work."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Settings = Mapping[str, Any]
RAN = "ran"
"""Name of the file that foreign code writes to the case's folder if it runs."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """An input that `curate validate`, `plan` and `run` must refuse."""

    name: str
    make: Callable[[Path], Settings]
    """Function that damages files of a folder with a good model in ``model`` and its adapter in ``adapter``, and
    returns the configuration keys to set."""
    says: str
    """Regular expression that the refusal must match."""


def write_config(folder: Path, settings: Settings, *, rows: Path) -> Path:
    """Write the configuration of a small run in ``folder`` over a file of chess puzzles, with other values."""
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
