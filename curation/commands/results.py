"""A run directory as objects (``curation.open``): its report, its metrics, and tables that are read on demand."""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Self

import pyarrow as pa
import pyarrow.dataset

from curation.commands.export.run import RecordedRun, choose_generation, find_selection, get_labels_stage
from curation.errors import REFUSALS, TableError, describe_lance_error
from curation.json_types import Json
from curation.pipeline.grading import choose_grading_stage
from curation.pipeline.numbers import find_verdict
from curation.refs import TableRef
from curation.rundir.graph import Stage
from curation.stages.handover import read_numbers
from curation.stages.score import Score
from curation.storage.json_files import read_json
from curation.storage.paths import to_place
from curation.tables import io, schemas


class ResultTable:
    """A table of a run, which :meth:`to_arrow` reads into memory."""

    def __init__(self, name: str, dataset: pyarrow.dataset.Dataset) -> None:
        self.name = name
        self.dataset = dataset
        """The pyarrow dataset (Lance's own, ``lance.LanceDataset``), for scans that do not fit into memory."""

    def __len__(self) -> int:
        return int(self.dataset.count_rows())

    def __repr__(self) -> str:
        return f"{self.name}: {len(self):,} rows of {', '.join(self.schema.names)}"

    @property
    def schema(self) -> pa.Schema:
        """The names and types of all columns, including hidden states."""
        return self.dataset.schema

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are read by default."""
        return [name for name in self.schema.names if not schemas.is_state(name)]

    def to_arrow(self, columns: Sequence[str] | None = None, filter: str | None = None) -> pa.Table:
        """Return the rows as an Arrow table in stored order; selected rows are stored by rank.

        The default is all columns but hidden states (``state_...``), which are most of a table's bytes. ``filter`` is
        an SQL expression (``"label IS NOT NULL AND trust_trust > 0.9"``).

        Raises:
            TableError: there is no such column, or the table cannot be read.
        """
        names = self.columns if columns is None else list(columns)
        if missing := [name for name in names if name not in self.schema.names]:
            raise TableError(f"{self.name}: has no column {missing[0]!r}; it has {', '.join(self.schema.names)}")
        try:
            return self.dataset.to_table(columns=names, filter=filter)
        except REFUSALS as error:
            raise TableError(f"{self.name}: cannot be read ({describe_lance_error(error) or error})") from error


class Results:
    """The results of one generation of a run.

    Methods raise a ``UserError`` if a result is missing. For an unknown arm or split, the message lists the known ones;
    for an unfinished result, it names the stage that makes it.
    """

    def __init__(self, run: RecordedRun, generation: int) -> None:
        self._run = run
        self.directory = run.manifest.directory
        self.generation = generation

    @classmethod
    def of(cls, run: str | os.PathLike[str], generation: int | None = None) -> Self:
        """Return the results of one generation (default: the last) of the run in a directory or at a URL."""
        found = RecordedRun.of(to_place(os.fspath(run)))
        return cls(found, choose_generation(found.config, generation, "leave it out for the last one"))

    def __repr__(self) -> str:
        return f"{self.directory}, generation {self.generation}"

    @cached_property
    def report(self) -> Json:
        """The content of ``report.json``, which a run writes when its last stage is done."""
        path = self.directory / "report.json"
        if not path.is_file():
            raise TableError(f"{path}: is not there yet; `curate run {self.directory}` writes it at its end")
        return dict(read_json(path))

    @cached_property
    def metrics(self) -> Json:
        """The content of the generation's ``metrics.json``: its ``numbers``, and what they were ``made_by``."""
        found = read_numbers(self._run.manifest, self.generation)
        if found is None:
            raise self._make_missing("numbers")
        return found

    @property
    def verdict(self) -> Json | None:
        """The verdict on all generations of the run; ``None`` if no arm ranks by trust."""
        return find_verdict(self._run.manifest) if self.metrics else None

    def selected(self, arm: str) -> ResultTable:
        """Return the rows that an arm selected, by rank, in TRL's format (``schemas.SELECTION``).

        In a pair domain, rows have ``prompt``, ``chosen`` and ``rejected`` (``schemas.PREFERENCES``).
        """
        _, ref = find_selection(self._run.config, self._run.manifest, arm, self.generation)
        return self._open_table(f"selected_{arm}", ref)

    def labels(self, split: str = "pool") -> ResultTable:
        """Return the teacher's labels of a split, with scores of trust and signals once these are computed."""
        return self._open_made("labels", split, "label", Score, get_labels_stage(self._run.config))

    def grades(self, split: str = "pool") -> ResultTable:
        """Return which labels of a split are right (``schemas.GRADES``); for the pool, if ``splits.audit`` is set."""
        return self._open_made("grades", split, "grade", choose_grading_stage(self._run.config, split))

    def rows(self, split: str = "pool") -> ResultTable:
        """Return the prepared rows of a split, in the domain's columns; split ``audit`` has the pool's gold labels."""
        if split not in self._run.splits:
            raise TableError(f"{self.directory}: has no split {split!r}; it has {', '.join(self._run.splits)}")
        return self._open_table(f"rows of {split}", self._run.splits[split])

    def _open_made(self, output: str, split: str, verb: str, *classes: type[Stage]) -> ResultTable:
        """Return a table of a labelled split, made by a stage of the first of ``classes`` that is done."""
        if split not in (labelled := self._run.config.splits.labelled()):
            raise TableError(f"{self.directory}: has no {output} of {split!r}, but of {', '.join(labelled)}")
        record = self._run.stage(self.generation, split, *classes)
        if record is None:
            raise self._make_missing(f"{verb}-{split}")
        return self._open_table(f"{output} of {split}", TableRef.from_json(record.outputs[output]))

    def _make_missing(self, stage: str) -> TableError:
        return TableError(
            f"{self.directory}: stage gen-{self.generation}/{stage} is not done; `curate run {self.directory}` goes on "
            f"with it{' where splits.audit is set' if stage == 'grade-pool' else ''}"
        )

    def _open_table(self, name: str, ref: TableRef) -> ResultTable:
        try:
            return ResultTable(name, io.open_table(ref))
        except REFUSALS as error:
            raise TableError(
                f"{ref.uri}: cannot be read ({describe_lance_error(error) or error}); "
                f"`curate verify {self.directory}` says what is damaged"
            ) from error
