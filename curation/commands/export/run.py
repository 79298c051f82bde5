"""Reads a run directory for exports, from its manifest and configuration."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from curation.arms import REFERENCE_ARM
from curation.config import RunConfig
from curation.config.load import load_config
from curation.errors import ExportError, TableError
from curation.json_types import Json
from curation.pipeline.growth import iter_prepare_records
from curation.refs import TableRef
from curation.rundir.graph import Position, Stage
from curation.rundir.manifest import Manifest, StageRecord
from curation.stages.fit import FitTrust
from curation.stages.label import Label
from curation.stages.search import Search
from curation.storage.paths import Place, require_reachable
from curation.tables import io
from curation.tables.schemas import FILE_SHIFT


def read_run(run: Place) -> tuple[RunConfig, Manifest]:
    """Return the configuration and the manifest of a run directory; refuse any other one, by an ``ExportError``."""
    require_reachable(run)
    if not all((run / name).is_file() for name in ("manifest.json", "config.yaml")):
        raise ExportError(
            f"{run}: is not a run directory (manifest.json or config.yaml is missing); give the run_dir of a run"
        )
    return load_config(run / "config.yaml", (f"run_dir={json.dumps(str(run))}",)), Manifest.load(run)


def choose_generation(config: RunConfig, generation: int | None, there: str) -> int:
    """Return the requested generation, or the last one; ``there`` is the end of the message that refuses another."""
    last = max(0, len(config.generations) - 1)
    if generation is not None and not 0 <= generation <= last:
        raise ExportError(f"generation {generation}: the run's generations are 0 to {last}; {there}")
    return last if generation is None else generation


def choose_arm(config: RunConfig, arm: str | None, there: str) -> str:
    """Return the requested arm, or ``trust`` or the only one; ``there`` ends the message that refuses another."""
    arms = config.selection.arms
    if arm is None and REFERENCE_ARM not in arms and len(arms) > 1:
        raise ExportError(f"arm: name one of the run's arms ({', '.join(arms)}); {there}")
    found = arm or (REFERENCE_ARM if REFERENCE_ARM in arms else arms[0])
    if found not in arms:
        raise ExportError(f"arm {found}: the run's arms are {', '.join(arms)}; {there}")
    return found


def get_fitting_stage(config: RunConfig, trust: str) -> str:
    """Return the name, without the generation, of the stage that fits a trust function, for messages."""
    if get_fitting_class(config, trust) is Search:
        return "search"
    return "trust" if trust == REFERENCE_ARM else f"trust-{trust}"


def get_fitting_class(config: RunConfig, trust: str) -> type[Stage]:
    """Return the class of the stage that fits a trust function.

    The manifest may also have a stage of the other class, which ran before the setting changed.
    """
    return Search if trust == REFERENCE_ARM and config.trust.search else FitTrust


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run directory with its configuration and manifest."""

    place: Place
    config: RunConfig
    manifest: Manifest

    @classmethod
    def of(cls, place: Place) -> Self:
        """Return the run in a directory; refuse another directory, and a run without rows."""
        config, manifest = read_run(place)
        if "prepare" not in manifest.stages:
            raise TableError(
                f"{place}: the run has no rows yet, its stage prepare is not done; `curate run {place}` continues it"
            )
        return cls(place=place, config=config, manifest=manifest)

    def stage(self, generation: int, split: str, *classes: type[Stage], of: str = "") -> StageRecord | None:
        """Return the main chain's record of a stage on a split, of the first class that is done, or ``None``."""
        return self.manifest.find(Position(generation=generation, split=split, of=of), *classes)

    def has_labels(self, generation: int) -> bool:
        """Return whether a split is labelled in a generation."""
        return any(self.stage(generation, split, Label) is not None for split in self.splits)

    @cached_property
    def splits(self) -> dict[str, TableRef]:
        """The tables of prepared rows, by split, including ``audit`` if there is one."""
        found = [record.outputs["tables"] for record in iter_prepare_records(self.manifest)]
        return {name: TableRef.from_json(value) for tables in found for name, value in tables.items()}

    def one(self, ref: TableRef, row_id: int, columns: list[str] | None = None) -> Json | None:
        """Return the row with an id from a table, or ``None`` if there is none."""
        (at,) = io.find_offsets(ref, np.array([row_id], dtype=np.int64))
        if at < 0:
            return None
        present = io.open_table(ref).schema.names
        names = [name for name in present if columns is None or name in columns]
        row: Json = io.take_offsets(ref, np.array([at], dtype=np.int64), names).to_pylist()[0]
        return row

    def origin(self, row_id: int, split: str) -> Json:
        """Return where a row of a split comes from: its source, file and row number in the file."""
        source = self.config.splits.named()[split].source
        files, id_column = self.manifest.source_files.get(source, []), self.config.sources[source].id_column
        found: Json = {"source": source, "file": None, "row": None, "id_column": id_column}
        if id_column is None:
            index = row_id >> FILE_SHIFT
            file = next((file for file in files if file.index == index), None)
            found |= {"file": None if file is None else file.path, "row": row_id & ((1 << FILE_SHIFT) - 1)}
        elif len(files) == 1:
            found["file"] = files[0].path
        return found
