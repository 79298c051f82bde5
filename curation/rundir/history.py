"""Durations of stages on this machine, in a small file beside the run directories, to forecast later runs.

``.stage-times.jsonl`` has a line for each stage that one driver did from beginning to end: its kind, a fingerprint of
the inputs that determine its speed (model, recipe), the amount of work, and the seconds. Nothing depends on the file.
Others may write beside run directories, so a link, a pipe or a device in its place is left alone.
"""

import json
import os
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from curation.refs import ModelRef, fingerprint, iter_leaves
from curation.rundir.graph import Out, Stage, to_plain_json
from curation.storage.files import append_lines, open_file
from curation.storage.paths import Place, write_atomically

FILE = ".stage-times.jsonl"
MOST_LINES = 4_000
"""Number of lines at which the file is cut to its newer half."""
ALIKE = ("ask", "base", "decoding", "domain", "fit_by", "init", "made_by", "model", "recipe", "trained_by", "trust")
"""Inputs on which the time per unit of work depends; the others are data, seeds and paths."""


@dataclass(frozen=True, kw_only=True)
class StageTime:
    """The duration of a stage that was done."""

    kind: str
    """The stage's kind: ``Stage.kind``."""
    like: str
    """A fingerprint that stages of a kind share if they use the same model and recipe."""
    amount: float
    """The amount of work: the number of rows, times the epochs of a training."""
    seconds: float

    @classmethod
    def of(cls, stage: Stage, rows: int, seconds: float) -> Self:
        """Return the time of a stage that worked on ``rows`` rows for ``seconds``."""
        return cls(kind=stage.kind, like=compute_likeness(stage), amount=compute_amount(stage, rows), seconds=seconds)


def compute_likeness(stage: Stage) -> str:
    """Return a fingerprint of what a stage's duration depends on, apart from the amount of work."""
    parts = {name: _to_plain(stage.inputs[name]) for name in ALIKE if name in stage.inputs}
    return fingerprint([stage.kind, parts, _to_plain(stage.settings.get("running"))])


def compute_amount(stage: Stage, rows: int) -> float:
    """Return the amount of work in ``rows`` rows: each counts once per epoch."""
    num_epochs = getattr(stage.inputs.get("recipe"), "num_epochs", None)
    return float(rows * (num_epochs(rows) if num_epochs is not None else 1))


def _to_plain(value: object) -> object:
    """Return an input as JSON, with the likeness of its stage in place of another stage's output."""
    if isinstance(value, Out):
        return compute_likeness(value.stage)
    if isinstance(value, ModelRef):
        return value.base
    return to_plain_json(value, {}) if next(iter_leaves(value, Out), None) is None else None


def read(run_directory: Place) -> list[StageTime]:
    """Return stage times of runs beside this one on this machine, oldest first; none if the file cannot be read."""
    found = []
    for line in _read_lines(run_directory):
        with suppress(ValueError, TypeError, AttributeError):
            item = json.loads(line)
            if item.pop("host") == platform.node():
                found.append(StageTime(**item))
    return found


def note(run_directory: Place, stage: Stage, rows: int, seconds: float) -> None:
    """Append the time of a stage; errors of writing are ignored, since nothing depends on the file."""
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
