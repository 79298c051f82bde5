"""What a run has done: each stage with the fingerprint of what it read and what it wrote; atomic on disk.

``manifest.json`` maps a stage's name to its record. A stage whose fingerprint is there is done; another fingerprint
under the same name means that something it depends on changed, and :meth:`Manifest.why` says what. Beside it stands
what happened (:mod:`curation.events`). One driver at a time holds the directory (:mod:`curation.lease`); in an object
store a manifest is only replaced, besides, where it is still the one that was read.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from curation import lease
from curation.errors import CommitError, RunDirError
from curation.events import events_of
from curation.places import Place, Remote, require_reachable, write_atomically
from curation.refs import fingerprint
from curation.registers import OneObject, Written

PROJECT = "trust-curation"
PACKAGES = (PROJECT, "ray", "torch", "transformers", "peft", "pylance", "pyarrow", "scikit-learn", "chess")


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """A finished stage: what it read (``inputs``), what it wrote (``outputs``), how long it took (``seconds``)."""

    name: str
    fingerprint: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    rows: int
    seconds: float
    started: str


def versions() -> dict[str, str]:
    """The Python version and those of the packages that a result depends on."""
    return ask_versions()()


def ask_versions() -> Callable[[], dict[str, str]]:
    """The question behind :func:`versions`, for other processes too: it is pickled whole and needs nothing of ours."""
    packages = PACKAGES

    def found() -> dict[str, str]:
        import importlib.metadata
        import platform

        versions = {"python": platform.python_version()}
        for package in packages:
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                versions[package] = "not installed"
        return versions

    return found


class Manifest:
    """The manifest of one run directory."""

    def __init__(
        self,
        directory: Place,
        identity: dict[str, Any],
        files: dict[str, list[dict[str, Any]]],
        stages: dict[str, StageRecord],
        *,
        token: str | None = None,
    ) -> None:
        self.directory = directory
        self.events = events_of(directory)
        self._token = token
        self.identity = identity
        """What the run's rows are: domain, sources, splits and seed."""
        self.files = files
        """The input files by source, as numbered when first seen."""
        self.stages = stages

    @classmethod
    def load(cls, directory: Place) -> Self:
        """The manifest of a directory; an empty one where there is none yet.

        Raises:
            RunDirError: the file is no manifest, or the store of the directory is not to be reached.
        """
        require_reachable(directory)
        path = directory / "manifest.json"
        try:
            written = OneObject(path).read() if isinstance(path, Remote) else _read(path)
            if written is None:
                return cls(directory, {}, {}, {})
            raw = json.loads(written.text)
            stages = {name: StageRecord(**item) for name, item in raw["stages"].items()}
            return cls(directory, raw["identity"], raw["files"], stages, token=written.token)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunDirError(f"{path}: is no manifest ({error}); move it away to start again") from error

    def identify(self, identity: dict[str, Any], files: dict[str, list[dict[str, Any]]], *, save: bool) -> None:
        """State what the run's rows are; the same run must state the same again, but for new files.

        Raises:
            RunDirError: the directory belongs to a run over other rows.
        """
        if self.identity and self.identity != identity:
            changes = "; ".join(_differences(self.identity, identity))
            raise RunDirError(
                f"{self.directory}: belongs to another configuration ({changes}); "
                "give this one another name or run_dir, or undo the change"
            )
        if (self.identity, self.files) != (identity, files):
            self.identity, self.files = identity, files
            if save:
                self._save()

    def find(self, name: str, inputs: dict[str, Any]) -> StageRecord | None:
        """The record of a stage that is done with exactly these inputs."""
        record = self.stages.get(name)
        return record if record is not None and record.fingerprint == fingerprint(inputs) else None

    def why(self, name: str, inputs: dict[str, Any]) -> str:
        """Why a stage has to run: it never did, or what changed since."""
        record = self.stages.get(name)
        if record is None:
            return "not done yet"
        return "changed: " + "; ".join(_differences(record.inputs, json.loads(json.dumps(inputs, default=str))))

    def record(
        self, name: str, inputs: dict[str, Any], outputs: dict[str, Any], *, rows: int, seconds: float
    ) -> StageRecord:
        """State that a stage is done, and save."""
        record = StageRecord(
            name=name,
            fingerprint=fingerprint(inputs),
            inputs=inputs,
            outputs=outputs,
            rows=rows,
            seconds=round(seconds, 3),
            started=(datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds"),
        )
        self.stages[name] = record
        self._save()
        return record

    def event(self, kind: str, **fields: Any) -> None:
        """Add a line to the events."""
        line = json.dumps({"time": round(time.time(), 3), "event": kind, **fields}, default=str)
        self.events.add(line, can_wait=kind == "progress")

    def _save(self) -> None:
        lease.check(self.directory)
        value = {
            "format": 1,
            "versions": versions(),
            "identity": self.identity,
            "files": self.files,
            "stages": {name: asdict(record) for name, record in self.stages.items()},
        }
        path, text = self.directory / "manifest.json", json.dumps(value, indent=1, default=str)
        if not isinstance(path, Remote):
            write_atomically(path, text)
            return
        register = OneObject(path)
        put = register.put_if_absent(text) if self._token is None else register.put_if_match(text, self._token)
        if put is None:
            raise CommitError(f"{path}: another driver has written it; this one writes nothing more")
        self._token = put


def _read(path: Path) -> Written | None:
    return Written(text=path.read_text(), token="") if path.exists() else None


def _differences(before: Any, now: Any, path: str = "") -> list[str]:
    """The leaves in which two JSON values differ, as ``a.b was X, is Y``."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            line
            for key in sorted({*before, *now})
            for line in _differences(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))
        ]
    return [] if before == now else [f"{path} was {before}, is {now}"]
