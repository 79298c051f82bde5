"""A run as ``curate explain`` reads it: its tables by stage, and the places of rows in files."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from curation.commands.export.run import read_run
from curation.config import RunConfig
from curation.errors import TableError
from curation.json_types import Json
from curation.pipeline.growth import iter_prepare_records
from curation.refs import TableRef
from curation.rundir.graph import Position, Stage
from curation.rundir.manifest import Manifest, StageRecord
from curation.stages.label import Label
from curation.storage.paths import Place
from curation.tables import io
from curation.tables.schemas import FILE_SHIFT


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run directory with its configuration and manifest."""

    place: Place
    config: RunConfig
    manifest: Manifest

    @classmethod
    def of(cls, place: Place) -> Self:
        """Return the run in a directory.

        Raises:
            ExportError: the directory is not a run directory.
            TableError: the run has no rows yet.
        """
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
