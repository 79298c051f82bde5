"""Recorded stages of a run directory as JSON, with paths in the directory's present location."""

from pathlib import Path
from typing import Any

from curation.rundir.manifest import Manifest


def recorded(directory: Path) -> dict[str, Any]:
    """Return the record of each stage, by name; of a filter, give the folder ``_curation`` of its output."""
    return {name: vars(record) for name, record in Manifest.load(directory).stages.items()}


def planned(directory: Path) -> dict[str, Any]:
    """Return the record of each stage that a plan lists: not those of the numbers, which follow when all are done."""
    return {name: record for name, record in recorded(directory).items() if not name.endswith("/numbers")}
