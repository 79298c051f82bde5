"""Labels of a test that are kept across run directories, so that no run asks a model the same questions again.

An entry is one Parquet file, written atomically. Its name is the fingerprint of its key: the model, how it is asked,
its libraries and this package, and the rows with their domain. Labels of a pass with a failed row are not kept.
"""

import hashlib
import importlib.metadata
import json
import time
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from curation.config import AskConfig
from curation.domains import get_domain
from curation.errors import REFUSALS
from curation.json_types import JsonView
from curation.passes.job import PassResult
from curation.refs import TableRef, fingerprint
from curation.rundir.graph import Done, setting
from curation.rundir.run import Task
from curation.stages.label import Label, check_errors, count_labels
from curation.stages.label_chunks import LabelJob
from curation.storage.paths import Place, to_place, write_atomically
from curation.tables import io

TOLD = b"answers"
"""Key of the Parquet metadata that holds an entry's key and run, as JSON."""
PACKAGES = ("torch", "transformers", "vllm", "trust-curation")
"""Packages whose versions are part of the key, since another version may answer or read answers otherwise."""


class AnswerOnce(Label):
    """A stage that labels the test split, or reuses the labels that the model gave in an earlier run.

    If the folder cannot be read or written, the run goes on without the labels kept there.
    """

    kept_in: str = setting()
    """Folder in which labels are kept."""

    def run(self, task: Task) -> Done:
        """Reuse the kept labels, or label the split and keep its labels."""
        entry, begun = None, time.monotonic()
        try:
            job = self.job(task)
            entry = make_entry(job, to_place(self.kept_in), revision=self.revision)
            if (kept := find(entry)) is not None:
                table = io.write(kept.labels, job.labels_uri)
                check_errors(table, job.teacher.max_error_rate, job.examples)
                task.say(f"the answers are those of {kept.run}, kept in {entry.path}")
                task.manifest.event("recalled", stage=task.name, run=kept.run, entry=str(entry.path))
                result = PassResult(table=table, rows=0, seconds=time.monotonic() - begun, deaths=0, teachers=[])
                counts, record = count_labels(table), {**self.teacher.record(result), "recalled": kept.run}
                return Done(outputs=self.Made(labels=table, counts=counts, pass_=record), rows=counts.rows)
        except REFUSALS as error:
            task.say(f"no answers are taken from {self.kept_in}: {error}")
        done = super().run(task)
        try:
            if entry is not None:
                keep(entry, done.outputs.labels, self.examples, str(task.manifest.directory))
        except REFUSALS as error:
            task.say(f"the answers are not kept for other runs: {error}")
        return done


class Entry(NamedTuple):
    """The place of a test's labels, whether they exist yet or not."""

    path: Place
    key: JsonView
    """All that the labels depend on, as JSON."""
    schema: pa.Schema


class KeptLabels(NamedTuple):
    """The labels of a test, and the run directory in which a model gave them."""

    labels: pa.Table
    run: str


def make_entry(job: LabelJob, folder: Place, *, revision: int) -> Entry:
    """Return the place of the labels that the ``job`` of a stage's ``revision`` makes."""
    assert job.model is not None, "only answers of models with weights are kept"
    columns = ["row_id", "error", *get_domain(job.domain).columns.names]
    rows = io.read(job.examples, columns).sort_by("row_id").to_pylist()
    key = {
        "model": job.model.to_json(),
        "ask": job.teacher.without({*AskConfig.SPREAD, "decoding"}).to_key(),
        "decoding": job.decoding.to_key(),
        "seed": job.seed if job.decoding.temperature else None,
        "domain": job.domain.to_key(),
        "rows": hashlib.sha256(json.dumps(rows, default=str).encode()).hexdigest(),
        "versions": {package: _get_version(package) for package in PACKAGES},
        "revision": revision,
    }
    return Entry(folder / f"{fingerprint(key)}.parquet", key, job.schema(0))


def find(entry: Entry) -> KeptLabels | None:
    """Return the labels of an entry, or None if its file is missing, damaged or holds others."""
    try:
        content = entry.path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        table = pq.read_table(pa.BufferReader(content), page_checksum_verification=True)
        stored = json.loads(table.schema.metadata[TOLD])
        is_it = stored["key"] == entry.key and table.schema.equals(entry.schema)
        return KeptLabels(table.replace_schema_metadata(), stored["run"]) if is_it else None
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        return None  # damaged: this run's labels replace it


def keep(entry: Entry, labels: TableRef, examples: TableRef, run: str) -> bool:
    """Keep a labels table unless a question has no answer; return whether it was kept.

    Two runs that write one entry at once write the same labels; the later one replaces the other's file as a whole.
    """
    if io.count(labels, "completion IS NULL") > io.count(examples, "error IS NOT NULL"):
        return False
    stored = json.dumps({"key": entry.key, "run": run})
    table = io.read(labels, entry.schema.names).replace_schema_metadata({TOLD: stored})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True)
    write_atomically(entry.path, sink.getvalue().to_pybytes())
    return True


def _get_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
