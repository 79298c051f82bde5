"""How long stages took on this machine: a small file beside the run directories, from which later runs are forecast.

``.stage-times.jsonl`` has a line for each stage that a driver did from its beginning to its end: its kind, a
fingerprint of what makes it alike (model, recipe), how much there was to do, and the seconds. Nothing depends on it. It
lies beside run directories, where others may write, so a link, a pipe or a device in its place is left alone.
"""

import json
import os
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from curation.refs import ModelRef, fingerprint
from curation.rundir.graph import Out, Stage, to_plain_json
from curation.storage.files import append_lines, open_file
from curation.storage.paths import Place, write_atomically

FILE = ".stage-times.jsonl"
MOST_LINES = 4_000
"""The file is cut to its newer half when it has more."""
ALIKE = ("ask", "base", "decoding", "domain", "fit_by", "init", "made_by", "model", "recipe", "trained_by", "trust")
"""Inputs on which the time of a unit of work depends; the others are data, seeds and paths."""


@dataclass(frozen=True, kw_only=True)
class StageTime:
    """One stage that was done."""

    kind: str
    """The stage's kind: ``Stage.kind``."""
    like: str
    """Return a value that stages of a kind share which work with the same model and recipe."""
    amount: float
    """How much it had to do: rows, times epochs where it trains."""
    seconds: float

    @classmethod
    def of(cls, stage: Stage, rows: int, seconds: float) -> Self:
        """Return the time of a stage which worked on ``rows``."""
        return cls(kind=stage.kind, like=compute_likeness(stage), amount=compute_amount(stage, rows), seconds=seconds)


def compute_likeness(stage: Stage) -> str:
    """Return a fingerprint of what its time depends on, beside the amount of work."""
    parts = {name: _to_plain(stage.inputs[name]) for name in ALIKE if name in stage.inputs}
    return fingerprint([stage.kind, parts, _to_plain(stage.settings.get("running"))])


def compute_amount(stage: Stage, rows: int) -> float:
    """Return the amount of work in ``rows``: each counts once an epoch."""
    num_epochs = getattr(stage.inputs.get("recipe"), "num_epochs", None)
    return float(rows * (num_epochs(rows) if num_epochs is not None else 1))


def _to_plain(value: object) -> object:
    """Return an input as JSON: of a model that another stage makes, how that stage makes it."""
    if isinstance(value, Out):
        return compute_likeness(value.stage)
    if isinstance(value, ModelRef):
        return value.base
    return to_plain_json(value, {}) if not _has_out(value) else None


def _has_out(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_out, value.values()))
    return isinstance(value, Out) or (isinstance(value, list | tuple) and any(map(_has_out, value)))


def read(run_directory: Place) -> list[StageTime]:
    """Times of earlier runs beside this one on this machine, the oldest first; none where no file can be read."""
    found = []
    for line in _read_lines(run_directory):
        with suppress(ValueError, TypeError, AttributeError):
            item = json.loads(line)
            if item.pop("host") == platform.node():
                found.append(StageTime(**item))
    return found


def note(run_directory: Place, stage: Stage, rows: int, seconds: float) -> None:
    """Append what a stage took; a file that cannot be written is left out, as nothing depends on it."""
    if not isinstance(run_directory, Path) or not seconds:
        return
    line = json.dumps({"host": platform.node(), **asdict(StageTime.of(stage, rows, seconds))})
    path = run_directory.parent / FILE
    with suppress(OSError):
        if len(known := _read_lines(run_directory)) >= MOST_LINES:
            write_atomically(path, "".join(f"{old}\n" for old in known[-MOST_LINES // 2 :]))
        append_lines(path, f"{line}\n".encode())


def _read_lines(run_directory: Place) -> list[str]:
    if not isinstance(run_directory, Path):
        return []
    try:
        with open_file(run_directory.parent / FILE, os.O_RDONLY | os.O_NOFOLLOW) as file:
            return file.read().decode().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
