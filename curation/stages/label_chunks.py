"""Labelling of a chunk of examples, whose labels become one fragment of the labels table.

Signals that ask the same model are measured in the same call, while the chunk's prompts are in the engine's prefix
cache, each into a fragment of its own. A row that cannot be rendered, labelled or parsed becomes an error row and
never raises.

Pairs of answers may be shown in both orders, to measure how far a teacher's preference survives the other order. If
the domain has ``both_orders`` and a method ``other_order``, a second question is asked about each row whose first
answer states a label. Its outcome is a further column (``ORDER_AGREEMENT``), which trust reads and an arm ranks by. It
is 1 or 0 if the teacher draws an answer instead of scoring options, as a server of kind openai or sglang does. Further
columns count the tokens of the second question.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from curation.config import AskConfig, DecodingConfig
from curation.config.states import find_generated_problem
from curation.domains import Domain, Example, attempt, get_domain
from curation.domains.given import as_asked, get_given_numbers
from curation.errors import ConfigError
from curation.hashing import derive
from curation.json_types import Json
from curation.label_columns import ORDER_AGREEMENT, TOKEN_COLUMNS
from curation.passes.job import ChunkWorker, Job, Models, Row, count_errors
from curation.signals import Ask, Values, Weak, get_signal, label_request, measure
from curation.stages.asking import GateRule, LabelGate
from curation.stages.score import ScoredOnly
from curation.stages.split_tables import find_schema_problem
from curation.tables import commits, schemas
from curation.teachers import Teacher
from curation.teachers.completions import count_clipped, error_batch
from curation.teachers.wrapped import WrappedTeacher
from curation.telemetry import metrics

OtherOrder = Callable[[str, Example], tuple[str, Example]]
SecondAnswers = Mapping[str, Mapping[int, float | None]]
_READ = ("row_id", "completion", "option_share", "error")
_TOKENS = {second: first for first, second in TOKEN_COLUMNS.values()}
_COLUMNS = (pa.field(ORDER_AGREEMENT, pa.float32()), *(pa.field(name, pa.int32()) for name in _TOKENS))


def get_other_order(domain: Domain) -> OtherOrder | None:
    """Return the function that puts a label and its example into the other order, or None if one order is asked."""
    found: OtherOrder | None = getattr(domain, "other_order", None)
    is_both = getattr(domain, "both_orders", False) and not hasattr(domain, "given_numbers")
    return found if is_both else None


def list_added_columns(domain: Domain) -> tuple[pa.Field, ...]:
    """Return the columns that a domain adds to labels: given numbers, and those of the second order."""
    given = (pa.field(name, schemas.GIVEN_TYPE) for name in get_given_numbers(domain))
    return (*given, *(() if get_other_order(domain) is None else _COLUMNS))


def ask_other_order(
    domain: Domain,
    teacher: Teacher,
    answers: Iterable[pa.RecordBatch],
    by_id: Mapping[int, Example],
    decoding: DecodingConfig,
    seed: int,
) -> tuple[Iterable[pa.RecordBatch], SecondAnswers]:
    """Return the answers in the first order (``schemas.make_completions_schema``), and those in the other order.

    The latter are the probability of the same answer, and the tokens that the question took. Rows without a label have
    neither, and rows whose second question fails have no probability; without a second order, no row has any.
    """
    if (turned := get_other_order(domain)) is None:
        return answers, {}
    batches, requests = list(answers), []
    expected: dict[int, tuple[str, Example]] = {}
    for batch in batches:
        for row in batch.select(["row_id", "completion", "error"]).to_pylist():
            if row["error"] is not None or row["completion"] is None:
                continue
            example = by_id[row["row_id"]]
            label, _ = attempt(domain.parse, row["completion"], example)
            if label is not None:
                expected[row["row_id"]] = turned(label, example)
                requests.append(label_request(domain, row["row_id"], expected[row["row_id"]][1]))
    values: dict[str, dict[int, float | None]] = {field.name: {} for field in _COLUMNS}
    second = teacher.label(requests, decoding, seed=derive(seed, "other order"), states=False) if requests else ()
    for batch in second:
        for row in batch.select([*_READ, *_TOKENS.values()]).to_pylist():
            row_id, share = row["row_id"], None
            label, example = expected[row_id]
            stated = None if row["error"] is not None else attempt(domain.parse, str(row["completion"]), example)[0]
            if stated is not None:  # the share is that of the likelier of two options; a drawn answer has none
                likelier = 1.0 if row["option_share"] is None else row["option_share"]
                share = likelier if stated == label else 1 - likelier
            values[ORDER_AGREEMENT][row_id] = share
            for name, column in _TOKENS.items():
                values[name][row_id] = row[column]
    return batches, values


_LABEL = pa.schema([pa.field("label", pa.string())])


@dataclass(frozen=True, kw_only=True)
class LabelsJob(Job):
    """A job that writes the labels table of a table of examples (schema ``schemas.make_examples_schema``)."""

    labels_uri: str
    reduction: ScoredOnly | None = None
    """The reduction to store in place of the hidden states, or None to store all states."""

    def full_schema(self, state_size: int) -> pa.Schema:
        """Return the schema of the labels with all states."""
        ask, added = self.teacher, list_added_columns(get_domain(self.domain))
        return schemas.make_labels_schema(ask.states, ask.state_dtype, state_size, ask.token_logprobs, added)

    def schema(self, state_size: int) -> pa.Schema:
        """Return the schema of the labels table."""
        full = self.full_schema(state_size)
        return full if self.reduction is None else self.reduction.schema(full)

    def write(self, labels: pa.Table, schema: pa.Schema, note: Json) -> pa.Table:
        """Write a fragment of labels, reduced, and note failures and clipped values; return its ``WRITTEN`` row."""
        number = count_clipped(labels)
        note = note | count_errors(self.telemetry, labels["error"].drop_null().to_pylist())
        note |= {"clipped": number} if number else {}
        if self.reduction is not None:
            (batch,) = labels.combine_chunks().to_batches()
            labels = pa.Table.from_batches([self.reduction.reduce(batch)])
        return commits.write_fragment(labels.cast(schema), self.labels_uri, schema, note=note)


@dataclass(frozen=True, kw_only=True)
class LabelJob(LabelsJob):
    """A job that labels the rows of a table."""

    seed: int
    asks: tuple[Ask, ...] = ()
    gate: GateRule | None = None
    """Rule that drops rows before they are answered; the labels then have its columns."""

    def worker(self, models: Models) -> "LabelWorker":
        """Return the worker that labels the job's chunks in a process."""
        return LabelWorker(self, self.load(models))

    def full_schema(self, state_size: int) -> pa.Schema:
        """Return the schema of the labels with all states, and with the columns of a gate."""
        full = super().full_schema(state_size)
        return full if self.gate is None else pa.schema([*full, *self.gate.columns])


class AskSettings(NamedTuple):
    """The settings of a :class:`LabelJob` that :func:`label_rows` reads, for rows that are in no table."""

    teacher: AskConfig
    decoding: DecodingConfig
    seed: int


def count_tokens(labels: pa.Table | pa.RecordBatch, kind: str) -> int:
    """Return the tokens of a kind of ``TOKEN_COLUMNS`` that labels took, those of a second order included."""
    names = [name for name in TOKEN_COLUMNS[kind] if name in labels.schema.names]
    return sum(pc.sum(labels[name]).as_py() or 0 for name in names)


class Labelled(NamedTuple):
    """Results of some rows: their labels, and the values of each signal by row id."""

    labels: pa.Table
    signals: list[Values]


class LabelWorker(ChunkWorker[Labelled]):
    """A worker that labels rows by one teacher."""

    def __init__(self, job: LabelJob, teacher: WrappedTeacher) -> None:
        self._job, self._domain = job, get_domain(job.domain)
        self.meter = self._teacher = teacher
        self._schema = job.schema(teacher.state_size)
        self._gate = None if job.gate is None else job.gate.make_gate(job.teacher.states)
        self._signals = [(ask, get_signal(ask.signal, **ask.options)) for ask in job.asks]

    def work(self, rows: list[Row]) -> Labelled:
        """Label rows, and measure the signals of rows that have a label."""
        labels = pa.Table.from_batches(list(self._iter_labelled(rows)))
        by_id = {row["row_id"]: row for row in rows}
        known = labels.filter(pc.field("label").is_valid() & pc.field("error").is_null())
        weak = known.select(["row_id", "label", "completion"]).to_pylist()
        answered = [(row_id := row.pop("row_id"), by_id[row_id], Weak(**row)) for row in weak]
        about = self._domain, self._teacher, answered, self._job.decoding
        return Labelled(
            labels, [measure(signal, *about, seed=ask.seed, on_batch=self.alive) for ask, signal in self._signals]
        )

    def stream(self, rows: list[Row]) -> Iterator[Labelled]:
        """Yield labels as they come or, with signals, which need all rows of a chunk at once, in one piece."""
        if self._signals:
            yield self.work(rows)
        else:
            yield from (Labelled(pa.Table.from_batches([batch]), []) for batch in self._iter_labelled(rows))

    def _iter_labelled(self, rows: list[Row]) -> Iterator[pa.RecordBatch]:
        for batch in label_rows(self._job, self._domain, self._teacher, rows, self._gate):
            self.answered(batch.num_rows)
            yield batch

    def give_up(self, rows: list[Row], error: str) -> Labelled:
        """Return an error row for each row."""
        failed = error_batch({row["row_id"]: error for row in rows}, self._job.teacher, self._teacher.state_size)
        labels = _add_labels(failed, self._domain, {}, {}, self._gate)
        return Labelled(pa.Table.from_batches([labels]), [{} for _ in self._signals])

    def write(self, parts: list[Labelled], note: Json) -> pa.Table:
        """Write a fragment of labels, and one for each signal; return their rows of ``commits.WRITTEN``."""
        job = self._job
        labels = pa.concat_tables([part.labels for part in parts])
        job.telemetry.add(metrics.PROMPT_TOKENS, count_tokens(labels, "prompt"))
        job.telemetry.add(metrics.OUTPUT_TOKENS, count_tokens(labels, "output"))
        written = [job.write(labels, self._schema, note)]
        for ask, *of_parts in zip(job.asks, *(part.signals for part in parts), strict=True):
            written.append(ask.write(dict(chain.from_iterable(values.items() for values in of_parts))))
        return pa.concat_tables(written)


def label_rows(
    job: LabelJob | AskSettings, domain: Domain, teacher: Teacher, examples: list[Json], gate: LabelGate | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield each row's labels once, in any order (``schemas.make_labels_schema``, and the columns of a gate).

    Raises:
        ConfigError: ``teacher.states`` names states of answer options, and a row has no options; or the gate refuses a
            row; or the decoding is constrained, and the domain does not list a row's possible answers.
    """
    domain = as_asked(domain, job.decoding)
    by_id = {example["row_id"]: example for example in examples}
    errors: dict[int, str] = {row_id: example["error"] for row_id, example in by_id.items() if example["error"]}
    requests = []
    for row_id, example in by_id.items():
        if row_id in errors:
            continue
        request, problem = attempt(label_request, domain, row_id, example)
        if request is None:
            errors[row_id] = problem
        elif job.decoding.constrained and request.options is None:
            raise ConfigError(
                f"decoding.constrained: {job.decoding.constrained}: domain {domain.name} does not list the possible "
                f"answers of row {row_id}; leave it out, or give the domain a method candidates (docs/extending.md)"
            )
        elif request.is_drawn and (refused := find_generated_problem(job.teacher.states, f"row {row_id}")) is not None:
            raise ConfigError(refused)
        else:
            if gate is not None:
                gate.check(request)
            requests.append(request)
    if errors:
        yield _add_labels(error_batch(errors, job.teacher, teacher.state_size), domain, {}, {}, gate)
    how: Json = {} if gate is None else {"gate": gate}
    answers: Iterable[pa.RecordBatch] = teacher.label(requests, job.decoding, seed=job.seed, **how)
    answers, second = ask_other_order(domain, teacher, answers, by_id, job.decoding, job.seed)
    for batch in answers:
        yield _add_labels(batch, domain, by_id, second, gate)


def _add_labels(
    batch: pa.RecordBatch,
    domain: Domain,
    by_id: Mapping[int, Example],
    second: SecondAnswers,
    gate: LabelGate | None,
) -> pa.RecordBatch:
    """Return the batch with its labels, and before its errors the columns that the domain adds, and those of a gate.

    The domain's columns are null for rows without an example.
    """
    labels: list[str | None] = []
    ids, completions, problems = (batch.column(name).to_pylist() for name in ("row_id", "completion", "error"))
    for place, (row_id, completion) in enumerate(zip(ids, completions, strict=True)):
        label = None
        if problems[place] is None and completion is not None:
            label, problem = attempt(lambda: domain.parse(completion, by_id[row_id]))  # noqa: B023 (called at once)
            if not problem and (problem := find_schema_problem({"label": label}, _LABEL)):
                label = None
            problems[place] = problem or None
        labels.append(label)
    index = batch.schema.get_field_index("error")
    batch = batch.set_column(index, schemas.ERROR, pa.array(problems, pa.string()))
    for field in list_added_columns(domain):
        of_given = {row_id: by_id[row_id][field.name] for row_id in ids if row_id in by_id and field.name not in second}
        values = [second.get(field.name, of_given).get(row_id) for row_id in ids]
        batch = batch.add_column(batch.num_columns - 1, field, pa.array(values, field.type))
    batch = batch.add_column(2, _LABEL.field("label"), pa.array(labels, pa.string()))
    return batch if gate is None else gate.add_columns(batch)
