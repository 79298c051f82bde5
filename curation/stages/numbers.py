"""Computation of a generation's numbers from its tables, once, into ``metrics.json``; and their only reader."""

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from curation.config import DomainConfig
from curation.domains import get_domain
from curation.json_types import Json
from curation.refs import TableRef
from curation.report.numbers import compute_numbers
from curation.report.record import GenerationRecord, PossibleGroups, RunInputs
from curation.rundir.graph import Done, Position, Stage, setting
from curation.rundir.manifest import Manifest
from curation.rundir.run import Task
from curation.storage.inside import from_record, to_record
from curation.storage.json_files import read_json
from curation.storage.paths import to_place, write_atomically


class ComputeNumbers(Stage):
    """A stage that computes the numbers of a generation (``report.numbers.compute_numbers``)."""

    class Made(NamedTuple):
        metrics: str
        """The path of ``metrics.json``: ``numbers``, and the settings ``made_by``; paths below the run directory are
        relative to it."""

    config: Json
    seed: int
    domain: DomainConfig
    prepared: dict[str, TableRef]
    prepare_counts: Json
    overlap: Json
    record: GenerationRecord
    revision: int = 3  # a sample of a large pool instead of a grid
    find_groups: Callable[[], Sequence[PossibleGroups]] = setting()
    """Function that finds columns of the files that may divide rows into groups."""
    made_by: Json = setting()
    """``command`` and ``versions`` of the run, and its ``stages`` by name: when each started, and its seconds."""

    def run(self, task: Task) -> Done:
        """Compute the numbers, and write them to ``metrics.json``."""
        inputs = RunInputs(
            config=self.config,
            seed=self.seed,
            domain=get_domain(self.domain),
            prepared=self.prepared,
            prepare_counts=self.prepare_counts,
            overlap=self.overlap,
            groups=self.find_groups(),
        )
        numbers = compute_numbers(inputs, self.record)
        path = task.directory / "metrics.json"
        content = to_record({"numbers": numbers, "made_by": dict(self.made_by)}, task.manifest.directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
        return Done(outputs=self.Made(metrics=str(path)), rows=numbers["num_pool"])


def read_numbers(manifest: Manifest, generation: int, branch: str = "") -> Json | None:
    """Return the content of a generation's ``metrics.json``, or None if the file is missing or cannot be read."""
    record = manifest.find(Position(generation=generation, branch=branch), ComputeNumbers)
    if record is None:
        return None
    try:
        content: Json = from_record(read_json(to_place(record.outputs["metrics"])), manifest.directory)
    except (OSError, ValueError):
        return None
    return content
