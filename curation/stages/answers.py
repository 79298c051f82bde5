"""Answers of a model to a test, kept across run directories so that no run asks the same questions again.

An entry is one Parquet file, written atomically. Its name is the fingerprint of its key: the model, how it is asked,
its libraries, and the questions as the model read them. It holds completions, not labels: a run that reuses them still
renders, parses and grades its own rows, so it never gets a stale label. Answers with a failed row are not kept.
"""

import hashlib
import importlib.metadata
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curation.arrays import Int64s
from curation.config import AskConfig, DecodingConfig, DomainConfig
from curation.domains import attempt, get_domain
from curation.domains.given import as_asked
from curation.errors import REFUSALS
from curation.heavy import ray
from curation.json_types import Json, JsonView
from curation.passes.job import PassResult
from curation.refs import TableRef, fingerprint
from curation.rundir.graph import Done, setting
from curation.rundir.run import Task
from curation.signals import label_request
from curation.stages.label import Label, check_errors, count_labels
from curation.stages.label_chunks import LabelJob, label_rows
from curation.storage.paths import Place, to_place, write_atomically
from curation.tables import io, schemas
from curation.tasks import run_in_tasks
from curation.teachers import Gate, Request

TOLD = b"answers"
"""Key of the Parquet metadata that holds an entry's key and run, as JSON."""
LIBRARIES = ("torch", "transformers", "vllm")
"""Packages whose versions are part of the key, since another version may give other answers."""
CHUNK_ROWS = 2_000
SCHEMA = schemas.make_completions_schema((), "float32", 0)


class AnswerOnce(Label):
    """A stage that labels the test split, or reuses the answers that the model gave in an earlier run.

    If the folder cannot be read or written, the run goes on without the answers kept there.
    """

    kept_in: str = setting()
    """Folder in which answers are kept."""

    def run(self, task: Task) -> Done:
        """Reuse the kept answers, or label the split and keep its answers."""
        entry = None
        try:
            job = self.job(task)
            entry = find_answers_entry(job, to_place(self.kept_in), revision=self.revision)
            if (kept := find(entry)) is not None:
                result = recall(job, kept)
                task.say(f"the answers are those of {kept.run}, kept in {entry.path}")
                task.manifest.event("recalled", stage=task.name, run=kept.run, entry=str(entry.path))
                counts = count_labels(result.table)
                record = {**self.teacher.record(result), "recalled": kept.run}
                return Done(outputs=self.Made(labels=result.table, counts=counts, pass_=record), rows=counts.rows)
        except (*REFUSALS, ray.exceptions.RayError) as error:
            task.say(f"no answers are taken from {self.kept_in}: {error}")
        done = super().run(task)
        try:
            if entry is not None:
                keep(entry, done.outputs.labels, str(task.manifest.directory))
        except REFUSALS as error:
            task.say(f"the answers are not kept for other runs: {error}")
        return done


class AnswersPlace(NamedTuple):
    """The place of the answers to a split's questions, whether they exist yet or not."""

    path: Place
    key: JsonView
    """All that the answers depend on, as JSON."""
    row_ids_N: Int64s
    """Ids of the rows that have a question, ascending."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The completions of a model (``schemas.make_completions_schema`` without states), ascending by row id."""

    table: pa.Table
    run: str


def find_answers_entry(job: LabelJob, folder: Place, *, revision: int) -> AnswersPlace:
    """Return the place of the answers that the ``job`` of a stage's ``revision`` needs; Ray tasks render questions."""
    assert job.model is not None, "only answers of models with weights are kept"
    digests: dict[int, str] = {}
    calls = ((batch, job.domain, job.decoding) for batch in _iter_batches(job.examples))
    for part in run_in_tasks(_digest_questions, calls, num_cpus=0):  # idle actors of a model may hold all CPUs
        digests.update(part)
    in_order = sorted(digests.items())
    key = {
        "model": job.model.to_json(),
        "ask": job.teacher.without({*AskConfig.SPREAD, "decoding"}).to_key(),
        "decoding": job.decoding.to_key(),
        "seed": job.seed if job.decoding.temperature else None,
        "questions": _digest([digest for _, digest in in_order]),
        "versions": {package: _get_version(package) for package in LIBRARIES},
        "revision": revision,
    }
    row_ids_N = np.array([row_id for row_id, _ in in_order], dtype=np.int64)
    return AnswersPlace(folder / f"{fingerprint(key)}.parquet", key, row_ids_N)


def find(entry: AnswersPlace) -> Answers | None:
    """Return the answers of an entry, or None if its file is missing, damaged or holds other answers."""
    try:
        content = entry.path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        table = pq.read_table(pa.BufferReader(content), page_checksum_verification=True)
        stored = json.loads(table.schema.metadata[TOLD])
        is_it = stored["key"] == entry.key and table.schema.equals(SCHEMA)
        is_it = is_it and np.array_equal(table["row_id"].to_numpy(), entry.row_ids_N)
        return Answers(table=table, run=stored["run"]) if is_it else None
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        return None  # damaged: this run's answers replace it


def keep(entry: AnswersPlace, labels: TableRef, run: str) -> bool:
    """Keep the answers of a labels table unless a question has none; return whether they were kept.

    Two runs that write one entry at once write the same answers; the later one replaces the other's file as a whole.
    """
    table = io.read(labels, columns=[name for name in SCHEMA.names if name != "error"])
    table = table.filter(table["completion"].is_valid()).sort_by("row_id")
    if not np.array_equal(table["row_id"].to_numpy(), entry.row_ids_N):
        return False
    errors = pa.nulls(table.num_rows, pa.string())  # of parsing: whoever takes the answers parses them again
    columns = [errors if name == "error" else table[name] for name in SCHEMA.names]
    stored = json.dumps({"key": entry.key, "run": run})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=SCHEMA.with_metadata({TOLD: stored})), sink, write_page_checksum=True)
    write_atomically(entry.path, sink.getvalue().to_pybytes())
    return True


def recall(job: LabelJob, answers: Answers) -> PassResult:
    """Make the labels table of ``job`` from kept answers, in Ray tasks and without starting a model."""
    begun = time.monotonic()
    table = answers.table
    calls = (
        (batch, table.filter(pc.is_in(table["row_id"], value_set=batch.column("row_id"))), job)
        for batch in _iter_batches(job.examples)
    )
    labels = run_in_tasks(_recall_labels, calls, num_cpus=0)
    ref = io.write(pa.concat_tables([job.schema(0).empty_table(), *labels]), job.labels_uri)
    check_errors(ref, job.teacher.max_error_rate, job.examples)
    return PassResult(table=ref, rows=0, seconds=time.monotonic() - begun, deaths=0, teachers=[])


def _iter_batches(examples: TableRef) -> Iterator[pa.RecordBatch]:
    yield from io.open_table(examples).scanner(batch_size=CHUNK_ROWS).to_batches()


def _digest_questions(batch: pa.RecordBatch, domain: DomainConfig, decoding: DecodingConfig) -> dict[int, str]:
    """Return a digest of the question of each row that can be asked, by row id."""
    made, found = as_asked(get_domain(domain), decoding), {}
    for row in batch.to_pylist():
        if row["error"] is None:
            request, _ = attempt(label_request, made, row["row_id"], row)
            if request is not None:
                found[request.row_id] = _digest(request.question)
    return found


def _recall_labels(batch: pa.RecordBatch, answers: pa.Table, job: LabelJob) -> pa.Table:
    """Return the labels of a batch of examples, given recorded answers."""
    labels = label_rows(job, get_domain(job.domain), RecordedTeacher(answers), batch.to_pylist())
    return pa.Table.from_batches(labels, schema=job.schema(0))


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _get_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


class RecordedTeacher:
    """A teacher that replays recorded answers."""

    state_size = 0
    facts: Mapping[str, float] = MappingProxyType({})

    def __init__(self, answers: pa.Table) -> None:
        self._answers = answers
        self._place = {row_id: place for place, row_id in enumerate(answers["row_id"].to_pylist())}

    def label(
        self,
        requests: Iterable[Request],
        decoding: DecodingConfig,
        *,
        seed: int,
        states: bool = True,
        gate: Gate | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the recorded answers to the requests (see ``Teacher.label``); the other arguments have no effect."""
        places = [self._place[request.row_id] for request in requests]
        yield from self._answers.take(places).combine_chunks().to_batches()

    @staticmethod
    def engine_key(config: AskConfig) -> Json:
        """Return an empty key, since no engine is started."""
        return {}

    def asked(self, config: AskConfig) -> Self:
        """Return this teacher unchanged, since its answers are recorded."""
        return self
