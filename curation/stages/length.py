"""The length stage: finds labelled rows that are too long for the student, before anything is selected.

If training dropped rows, its arm would have fewer rows than the others, but all arms of a generation should differ only
in their selection. So a row is excluded for every arm if any completion that one of them may train on (weak, gold or a
worked solution) is too long; in a calibration split too, so that it stays exchangeable with the pool. Parallel tasks
count tokens as training does (:mod:`train.tokens`); the driver reads only row ids.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.domains import attempt, load_domain
from curation.errors import SourceError
from curation.json_types import Json
from curation.models import load_tokenizer
from curation.refs import ModelRef, TableRef
from curation.rundir.graph import Done, In, Inputs, Stage, setting
from curation.rundir.run import Task
from curation.stages.gold import decide
from curation.tables import io, schemas
from curation.tables.row_ids import iter_ordered_ids
from curation.tasks import run_in_tasks
from curation.telemetry.standing import Standing, Update
from train.tokens import encode_completions, prompt_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROWS = 4_000


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
    """The number of rows where only the gold completion is too long; gold then restricts weak arms (``oracle``)."""


class MeasureLength(Stage):
    """A stage that finds the labelled rows of a split that some arm could not train a student on; some must be left."""

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
    """``wanted`` and ``seed`` of ``curation.stages.gold.decide`` if arms may train on worked solutions instead of the
    domain's sentence for the label, else None."""
    split: str = setting()

    def run(self, task: Task) -> Done:
        """Count the tokens of what students would be trained on."""
        solutions = False
        if self.gold is not None and self.rollouts is not None:
            source = decide(self.examples, self.labels, self.gold, self.domain, **self.rollouts).source
            solutions = source == "solution"
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


class _Found(NamedTuple):
    rows: pa.Table
    num_rows: int
    shortest: int | None
    """The smallest limit at which some row would fit; None without rows."""


def find_too_long(job: MeasureLength, uri: str, *, solutions: bool = False, progress: Update | None = None) -> TooLong:
    """Write the rows that some arm could not train on, by ``solutions`` if gold arms do; starts over if interrupted."""
    examples = io.Lookup(job.examples)
    golds = None if job.gold is None else io.Lookup(job.gold)
    total = io.count(job.labels)
    found: list[_Found] = []

    def calls() -> Iterator[tuple[Any, ...]]:
        start = 0
        for ids_N in iter_ordered_ids(io.open_table(job.labels), ROWS):
            yield job, solutions, start, examples.offsets(ids_N), None if golds is None else golds.offsets(ids_N)
            start += len(ids_N)

    for measured in run_in_tasks(_measure, calls()):
        found.append(measured)
        if progress is not None:
            progress(Standing(rows=min(ROWS * len(found), total), total=total))
    rows = pa.concat_tables([schemas.TOO_LONG.empty_table(), *(part.rows for part in found)]).sort_by("row_id")
    num_rows = sum(part.num_rows for part in found)
    num_weak, num_gold = (int(rows[name].to_numpy().sum()) for name in ("weak", "gold"))
    if num_rows and rows.num_rows == num_rows:
        shortest = min(part.shortest for part in found if part.shortest is not None)
        raise SourceError(
            f"student.max_length: all {num_rows:,} labelled rows of the {job.split} split have more than "
            f"{job.limit.max_length:,} tokens as a student reads them, so that none can be trained; the shortest needs "
            f"{shortest:,}: raise student.max_length"
        )
    return TooLong(
        table=io.write(rows, uri),
        num_rows=num_rows,
        num_too_long=rows.num_rows,
        num_weak=num_weak,
        num_gold=num_gold,
        num_gold_only=rows.num_rows - num_weak,
    )


def _measure(job: MeasureLength, solutions: bool, start: int, offset_N: Int64s, gold_offset_N: Int64s | None) -> _Found:
    """Measure rows of the labels table from ``start`` on, given their positions in examples and gold (-1: none)."""
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
    weak_long_N = (weak_N > job.limit.max_length) & _mark_given(weak)
    gold_long_N = (gold_N > job.limit.max_length) & _mark_given(answers)
    out_N = weak_long_N | gold_long_N
    arrays = [labelled["row_id"].to_numpy()[out_N], weak_long_N[out_N], gold_long_N[out_N]]
    return _Found(
        rows=pa.table([pa.array(array) for array in arrays], schema=schemas.TOO_LONG),
        num_rows=len(healthy),
        shortest=int(np.maximum(weak_N, gold_N).min()) if len(healthy) else None,
    )


def _count_tokens(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str | None]) -> Int64s:
    """Return the number of tokens of each completion, end token included, int64 [N]; 0 without a completion."""
    num_N = np.zeros(len(texts), dtype=np.int64)
    ids = encode_completions(tokenizer, [text for text in texts if text is not None])
    num_N[_mark_given(texts)] = [len(completion) for completion in ids]
    return num_N


def _mark_given(texts: Sequence[str | None]) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    return np.array([text is not None for text in texts], dtype=np.bool_)


@lru_cache(maxsize=2)
def _load_tokenizer(student: ModelRef) -> "PreTrainedTokenizerBase":
    return load_tokenizer(student)
