"""A small run whose stages write what real ones write, without Ray: labels, weights and exports."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

from curation.refs import TableRef, TrustRef
from curation.rundir.graph import Done, In, Stage, order_stages
from curation.rundir.manifest import Manifest
from curation.rundir.run import Run, Task
from curation.storage.cache import staged
from curation.storage.paths import Place
from curation.tables import commits, compaction, io, schemas
from curation.tables.row_ids import find_missing_ids

SCHEMA = pa.schema([schemas.ROW_ID, pa.field("completion", pa.string()), pa.field("state", pa.list_(pa.float16(), 8))])
NUM_ROWS, NUM_FRAGMENTS = 960, 32
LABEL_KEY = {"revision": 1, "seed": 0}
NUM_LEFT = NUM_ROWS - 1
"""One row is deleted."""


def rows(ids_N: np.ndarray) -> pa.Table:
    """Return labels of these ids."""
    states = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids_N, 8).astype(np.float16)), 8)
    return pa.table([pa.array(ids_N), pa.array([f"row {id}" for id in ids_N]), states], schema=SCHEMA)


PARTS = np.array_split(np.arange(NUM_ROWS), NUM_FRAGMENTS)


class Label(Stage):
    """Rows in many fragments, which are compacted; one of them is deleted."""

    class Made(NamedTuple):
        """The outputs."""

        labels: TableRef

    seed: int

    def run(self, task: Task) -> Done:
        """Write and compact."""
        task.manifest.event("asked", stage=task.name)
        uri = str(task.directory / "labels.lance")
        fill(uri, PARTS)
        ref = io.find_latest(uri)
        if tasks := compaction.plan(ref, 16 << 10):
            ref = compaction.commit(ref, [compaction.rewrite(ref, task) for task in tasks])
        lance.dataset(uri).delete("row_id = 7")
        return Done(outputs=self.Made(io.find_latest(uri)), rows=NUM_LEFT)


def fill(uri: str, parts: Sequence[np.ndarray]) -> None:
    """Write the rows with these ids that are not there yet, a fragment a part."""
    io.create(uri, SCHEMA)
    committer = commits.Committer(uri)
    for ids_N in parts:
        left_N = ids_N[find_missing_ids(ids_N, committer.done)]
        if len(left_N):
            (row,) = commits.write_fragment(rows(left_N), uri, SCHEMA).to_pylist()
            committer.add(row["fragments"], row["row_ids"])
    committer.flush()


def break_off(directory: Path) -> None:
    """Leave the directory as a kill in the middle of the labels does."""
    manifest = Manifest.load(directory)
    manifest.identify({"rows": "sealed"}, {})
    manifest.save()
    fill(str(Manifest.load(directory).directory_of("gen-0/label", LABEL_KEY) / "labels.lance"), PARTS[::2])


class Fit(Stage):
    """Weights."""

    class Made(NamedTuple):
        """The outputs."""

        trust: TrustRef

    labels: In[TableRef]

    def run(self, task: Task) -> Done:
        """Draw and save."""
        with staged(task.directory / "net") as local:
            local.mkdir(parents=True, exist_ok=True)
            weight = np.random.default_rng().standard_normal(64, dtype=np.float32)  # no fit is like another
            save_file({"weight": weight}, local / "weights.safetensors")
            (local / "description.json").write_text(json.dumps({"kind": "trust"}))
        trust = TrustRef(uri=str(task.directory / "net"), digest="0123")
        return Done(outputs=self.Made(trust), rows=io.count(self.labels))


class Select(Stage):
    """A table and its exports."""

    class Made(NamedTuple):
        """The outputs."""

        table: TableRef
        parquet: str
        jsonl: str

    labels: In[TableRef]
    trust: In[TrustRef]

    def run(self, task: Task) -> Done:
        """Select and export."""
        found = io.read(self.labels).sort_by("row_id").slice(0, 40)
        home = task.directory
        with staged(home / "trust.parquet") as path, staged(home / "trust.jsonl") as text:
            pq.write_table(found, path)
            text.write_text("".join(json.dumps(row) + "\n" for row in found.drop(["state"]).to_pylist()))
        table = io.write(found, str(home / "trust.lance"))
        made = self.Made(table, str(home / "trust.parquet"), str(home / "trust.jsonl"))
        return Done(outputs=made, rows=found.num_rows)


def stages(seed: int = 0) -> list[Stage]:
    """Return the graph."""
    labels = Label(name="gen-0/label", seed=seed).out("labels")
    trust = Fit(name="gen-0/trust", labels=labels).out("trust")
    return order_stages([Select(name="gen-0/select", labels=labels, trust=trust).out("table")])


def run(directory: Place) -> Any:
    """Do what is missing; what each stage made."""
    made = Run("test", Manifest.load(directory), room=lambda: {"CPU": 1.0}, redo=f"curate run {directory} --redo")
    return made.do(stages())


def outputs(directory: Place, stage: str) -> dict[str, Any]:
    """Return what a stage made, by its record."""
    return Manifest.load(directory).stages[stage].outputs


def started(directory: Path) -> list[str]:
    """Return the stages that were started, in order, with the reasons."""
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    return [f"{event['stage']}: {event['why']}" for event in events if event["event"] == "started"]
