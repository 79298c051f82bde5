"""The completions of gold arms, and the length stage, which finds rows whose completions are too long to train on.

A gold arm trains on the domain's sentence for the gold label, or on a rollout that is right. If training dropped rows,
its arm would have fewer rows than the others, but all arms of a generation should differ only in their selection. So a
row is excluded for every arm if any completion that one of them may train on (weak, gold or a worked solution) is too
long. The same holds in a calibration split, so that it stays exchangeable with the pool. Parallel tasks count tokens as
training does (:mod:`train.tokens`); the driver reads only row ids.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.domains import Domain, Example, attempt, get_domain, load_domain
from curation.domains.given import Format, GoldSource, GoldWanted, choose_format, choose_gold_source, is_bare
from curation.errors import SourceError
from curation.hashing import derive, draw_by_hash
from curation.json_types import Json, JsonView
from curation.models import load_tokenizer
from curation.refs import ModelRef, TableRef
from curation.rundir.graph import Done, In, Inputs, Stage, setting
from curation.rundir.run import Task
from curation.stages.rows import NO_IDS, read_id_bitmap
from curation.tables import io, scans, schemas
from curation.tables.row_ids import find_missing_ids, iter_ordered_ids
from curation.tasks import run_in_tasks
from curation.telemetry.standing import Standing, Update
from train.tokens import encode_completions, prompt_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROWS = 4_000
"""Number of rows whose tokens a task counts."""
MEASURED_ROWS = 2_000
"""Number of weak completions, sampled by a hash of the row id, whose share of bare answers decides the format."""
_load_tokenizer = lru_cache(maxsize=2)(load_tokenizer)


@dataclass(frozen=True, kw_only=True)
class GoldTexts:
    """The source of the completions of a run's gold arms."""

    source: GoldSource
    samples: TableRef | None = None
    """Further samples of the teacher (``schemas.ROLLOUTS``); without them, only weak completions can be right."""

    @classmethod
    def from_json(cls, value: JsonView | None) -> Self:
        """Return the source in a record; without a record, it is bare answers."""
        if value is None:
            return cls(source="answer")
        samples = value["samples"]
        return cls(source=value["source"], samples=None if samples is None else TableRef.from_json(samples))


class WeakFormat(NamedTuple):
    """The format of a pool's weak completions, and the number of bare answers in the sample."""

    format: Format
    num_bare: int
    num_rows: int


def measure_weak_format(pool: TableRef, labels: TableRef, domain: DomainConfig, *, seed: int) -> WeakFormat:
    """Return the format of the weak completions, from a seeded sample of the rows whose label could be read."""
    ids_M, readable = NO_IDS, "error IS NULL AND label IS NOT NULL"
    for batch in scans.iter_table_batches(labels, {"row_id": "row_id"}, readable):
        ids_M = draw_by_hash(np.concatenate([ids_M, batch.column("row_id").to_numpy()]), MEASURED_ROWS, seed)
    made, rows = get_domain(domain), io.take(labels, ids_M, ["completion", "label"]).to_pylist()
    examples = io.take(pool, ids_M).to_pylist()
    num_bare = sum(is_bare(made, **row, example=example) for row, example in zip(rows, examples, strict=True))
    return WeakFormat(choose_format(num_bare, len(ids_M)), num_bare, len(ids_M))


@dataclass(frozen=True, kw_only=True)
class GoldRollouts:
    """The source of gold arms' completions, the counts behind the decision, and the samples drawn."""

    texts: GoldTexts
    weak: WeakFormat
    num_gold: int
    num_solved: int
    num_asked: int = 0
    num_found: int = 0
    num_samples: int = 0

    @property
    def words(self) -> str:
        """Description of the completions that gold arms train on, and of the reason."""
        share = f"{self.weak.num_bare:,} of {self.weak.num_rows:,} weak completions are bare answers"
        if self.texts.source == "answer":
            return f"{share}; gold arms train on bare answers"
        if self.texts.source == "solution":
            return f"{share}; gold arms train on worked solutions, of {self.num_solved:,} of {self.num_gold:,} rows"
        return (
            f"{share}; gold arms train on the teacher's own rollouts that gold grades right: of {self.num_asked:,} "
            f"rows with a wrong weak label {self.num_found:,} are right in one of {self.num_samples:,} further samples"
        )


def decide_gold_source(
    pool: TableRef, labels: TableRef, audit: TableRef, domain: DomainConfig, *, wanted: GoldWanted, seed: int
) -> GoldRollouts:
    """Decide the source of gold arms' completions by ``wanted`` and the format of the pool's weak completions."""
    labelled = read_id_bitmap(labels, io.make_answered_filter(labels))
    weak = measure_weak_format(pool, labels, domain, seed=derive(seed, "format"))
    gold = Gold(GoldTexts(source="answer"), audit=audit, labels=labels, grades=None)
    num_gold, num_solved = (found.intersection_cardinality(labelled) for found in (gold.labelled, gold.solved))
    source = choose_gold_source(weak.format, wanted, num_gold=num_gold, num_solved=num_solved)
    return GoldRollouts(texts=GoldTexts(source=source), weak=weak, num_gold=num_gold, num_solved=num_solved)


class Gold:
    """The gold labels of a pool and the completions to train on; read lazily."""

    def __init__(self, texts: GoldTexts, *, audit: TableRef, labels: TableRef, grades: TableRef | None) -> None:
        self._texts, self._audit, self._labels, self._grades = texts, audit, labels, grades
        self._look_up = cache(io.Lookup)

    @cached_property
    def labelled(self) -> BitMap64:
        """The ids of the rows with a gold label."""
        return read_id_bitmap(self._audit, "gold IS NOT NULL")

    @cached_property
    def solved(self) -> BitMap64:
        """The ids of the rows with a gold label and a worked solution."""
        return read_id_bitmap(self._audit, "gold IS NOT NULL AND solution IS NOT NULL")

    @cached_property
    def right(self) -> BitMap64:
        """The ids of the rows whose weak label is right."""
        assert self._grades is not None, "RunConfig refuses gold arms without an audit set"
        return read_id_bitmap(self._grades, "correct")

    @cached_property
    def teachable(self) -> BitMap64:
        """The ids of the rows with a completion that states the gold label."""
        if self._texts.source in ("answer", "label"):
            return self.labelled
        if self._texts.source == "solution":
            return self.solved
        samples = self._texts.samples
        return self.right if samples is None else self.right | read_id_bitmap(samples, "completion IS NOT NULL")

    def get_training_columns(self, row_ids_n: Int64s, examples: list[Example], domain: Domain) -> dict[str, list[str]]:
        """Return the columns of ``schemas.SELECTION`` that a gold arm trains on, for rows of ``teachable``.

        A right weak completion also serves as its row's rollout.
        """
        source = self._texts.source
        columns = ["gold", "solution"] if source == "solution" else ["gold"]
        rows = self._look_up(self._audit).take(row_ids_n, columns).to_pylist()
        golds, sources = [row["gold"] for row in rows], [str(source)] * len(rows)
        if source in ("answer", "label"):
            texts = [domain.answer(gold, example) for gold, example in zip(golds, examples, strict=True)]
        elif source == "solution":
            texts = [row["solution"] for row in rows]
        else:  # the teacher's right completion: the weak one if it is right, else a sample
            weak_n = ~find_missing_ids(row_ids_n, self.right)
            texts = self._look_up(self._labels).take(row_ids_n, ["completion"])["completion"].to_pylist()
            if self._texts.samples is not None and not weak_n.all():
                places = np.flatnonzero(~weak_n)
                drawn = self._look_up(self._texts.samples).take(row_ids_n[places], ["completion"])["completion"]
                for place, text in zip(places.tolist(), drawn.to_pylist(), strict=True):
                    texts[place] = text
            sources = ["weak" if weak else "sample" for weak in weak_n.tolist()]
        return {"label": golds, "completion": texts, "completion_source": sources}


class Limit(Inputs):
    """The maximum length of a row that a student can be trained on."""

    student: In[ModelRef]
    max_length: int
    chat_template: bool
    completions: bool | Literal["both"] = True
    """Whether completions count, or only prompts; ``both`` counts the longer of a row's two options."""

    def allows(self, prompt: str, completion: str) -> bool:
        """Return whether prompt, completion and end token together are within the limit."""
        tokenizer = _load_tokenizer(self.student)
        (start,) = prompt_ids(tokenizer, [prompt], chat_template=self.chat_template)
        (end,) = encode_completions(tokenizer, [completion]) if self.completions else ([],)
        return len(start) + len(end) <= self.max_length


@dataclass(frozen=True, kw_only=True)
class TooLong:
    """The rows that are too long, and their counts."""

    table: TableRef
    """Table of the rows that are too long (schema ``schemas.TOO_LONG``)."""
    num_rows: int
    """The number of rows labelled without error."""
    num_too_long: int
    num_weak: int
    num_gold: int
    num_gold_only: int
    """The number of rows whose gold answer alone is too long. Weak arms leave them out, too (``oracle``)."""


class MeasureLength(Stage):
    """A stage that finds a split's labelled rows that are too long for some arm; it fails if all rows are."""

    class Made(NamedTuple):
        counts: TooLong
        too_long: TableRef | None
        """The table of ``counts``; None if it is empty, so that a changed limit without effect redoes no selection."""

    examples: In[TableRef]
    labels: In[TableRef]
    weak: bool
    gold: In[TableRef | None]
    domain: DomainConfig
    limit: Limit
    rollouts: Json | None
    """``wanted`` and ``seed`` of :func:`decide_gold_source` if arms may train on worked solutions instead of the
    domain's sentence for the label, else None."""
    split: str = setting()

    def run(self, task: Task) -> Done:
        """Count the tokens of what students would be trained on."""
        solutions = False
        if self.gold is not None and self.rollouts is not None:
            decided = decide_gold_source(self.examples, self.labels, self.gold, self.domain, **self.rollouts)
            solutions = decided.texts.source == "solution"
        with task.progress() as update:
            found = find_too_long(self, str(task.directory / "too_long.lance"), solutions=solutions, progress=update)
        if found.num_too_long:
            first = io.open_table(found.table).to_table(columns=["row_id"], limit=3)["row_id"].to_pylist()
            more = ", ..." if found.num_too_long > len(first) else ""
            task.say(
                f"{found.num_too_long:,} of {found.num_rows:,} labelled rows have more than "
                f"{self.limit.max_length:,} tokens (student.max_length) and are no candidates for any arm: "
                f"{', '.join(map(str, first))}{more}; `curate inspect {task.manifest.directory} {task.name}` lists them"
            )
        made = self.Made(counts=found, too_long=found.table if found.num_too_long else None)
        return Done(outputs=made, rows=found.num_rows)


def find_too_long(job: MeasureLength, uri: str, *, solutions: bool = False, progress: Update | None = None) -> TooLong:
    """Write the rows that are too long for some arm (gold arms train on ``solutions``); starts over if interrupted."""
    examples = io.Lookup(job.examples)
    golds = None if job.gold is None else io.Lookup(job.gold)
    total = io.count(job.labels)
    parts, shortest, num_rows = [schemas.TOO_LONG.empty_table()], list[int](), 0

    def calls() -> Iterator[tuple[Any, ...]]:
        start = 0
        for ids_N in iter_ordered_ids(io.open_table(job.labels), ROWS):
            yield job, solutions, start, examples.offsets(ids_N), None if golds is None else golds.offsets(ids_N)
            start += len(ids_N)

    for number, (too_long, num, least) in enumerate(run_in_tasks(_measure, calls()), 1):
        parts.append(too_long)
        num_rows += num
        shortest += [] if least is None else [least]
        if progress is not None:
            progress(Standing(rows=min(ROWS * number, total), total=total))
    rows = pa.concat_tables(parts).sort_by("row_id")
    num_weak, num_gold = (int(rows[name].to_numpy().sum()) for name in ("weak", "gold"))
    if num_rows and rows.num_rows == num_rows:
        raise SourceError(
            f"student.max_length: all {num_rows:,} labelled rows of the {job.split} split have more than "
            f"{job.limit.max_length:,} tokens as a student reads them, so that none can be trained; the shortest needs "
            f"{min(shortest):,}: raise student.max_length"
        )
    return TooLong(
        table=io.write(rows, uri),
        num_rows=num_rows,
        num_too_long=rows.num_rows,
        num_weak=num_weak,
        num_gold=num_gold,
        num_gold_only=rows.num_rows - num_weak,
    )


def _measure(
    job: MeasureLength, solutions: bool, start: int, offset_N: Int64s, gold_offset_N: Int64s | None
) -> tuple[pa.Table, int, int | None]:
    """Measure rows of the labels table from ``start`` on, given their positions in examples and gold (-1: none).

    Return those that are too long, the number of rows without error, and the smallest limit at which one would fit.
    """
    domain, tokenizer = load_domain(job.domain), _load_tokenizer(job.limit.student)
    columns = ["row_id", "completion", "error"]
    labelled = io.open_table(job.labels).take(np.arange(start, start + len(offset_N)), columns=columns)
    healthy = np.flatnonzero(labelled["error"].is_null().to_numpy())
    labelled = labelled.take(pa.array(healthy))
    examples = io.take_offsets(job.examples, offset_N[healthy], ["row_id", *domain.columns.names]).to_pylist()
    answers: list[str | None] = [None] * len(healthy)
    if job.gold is not None and gold_offset_N is not None:
        place_N = gold_offset_N[healthy]
        known = np.flatnonzero(place_N >= 0)
        column = "solution" if solutions else "gold"
        golds = io.take_offsets(job.gold, place_N[known], [column])[column].to_pylist()
        for place, gold in zip(known.tolist(), golds, strict=True):
            is_ready = solutions or gold is None
            answers[place] = gold if is_ready else attempt(domain.answer, gold, examples[place])[0]
    prompts = [attempt(domain.prompt, example)[0] or "" for example in examples]
    weak = [text if job.weak else None for text in labelled["completion"].to_pylist()]
    if job.limit.completions == "both":
        options = [attempt(domain.options, example)[0] or ("",) for example in examples]
        lengths = [_count_tokens(tokenizer, texts) for texts in options]
        weak = [texts[int(num_N.argmax())] for texts, num_N in zip(options, lengths, strict=True)]
    ids = prompt_ids(tokenizer, prompts, chat_template=job.limit.chat_template)
    prompt_N = np.array(list(map(len, ids)), dtype=np.int64)
    weak_N = gold_N = prompt_N
    if job.limit.completions:
        weak_N, gold_N = (prompt_N + _count_tokens(tokenizer, texts) for texts in (weak, answers))
    has_weak_N, has_gold_N = (np.array([text is not None for text in texts], np.bool_) for texts in (weak, answers))
    weak_long_N = (weak_N > job.limit.max_length) & has_weak_N
    gold_long_N = (gold_N > job.limit.max_length) & has_gold_N
    out_N = weak_long_N | gold_long_N
    arrays = [labelled["row_id"].to_numpy()[out_N], weak_long_N[out_N], gold_long_N[out_N]]
    shortest = int(np.maximum(weak_N, gold_N).min()) if len(healthy) else None
    return pa.table([pa.array(array) for array in arrays], schema=schemas.TOO_LONG), len(healthy), shortest


def _count_tokens(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str | None]) -> Int64s:
    """Return the number of tokens of each completion, end token included, int64 [N]; 0 without a completion."""
    ids = iter(encode_completions(tokenizer, [text for text in texts if text is not None]))
    return np.array([0 if text is None else len(next(ids)) for text in texts], dtype=np.int64)
