"""The grade stage: grades the weak labels of a labelled split by the domain's own rule, in parallel tasks."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.domains import load_domain
from curation.domains.grading import grade_pairs, hash_questions
from curation.errors import ConfigError
from curation.refs import TableRef
from curation.rundir.graph import Done, In, Stage
from curation.rundir.run import Task
from curation.stages.rows import NO_IDS, compute_in_chunks, read_id_bitmap
from curation.tables import io, schemas
from curation.tables.row_ids import find_missing_ids
from curation.tasks import run_in_tasks
from curation.telemetry.standing import Standing, Update

CHECKED_ROWS = 200
"""Minimum number of rows per task and commit if a command grades; its batch size if that is larger."""
BATCH_ROWS = 100
"""Default number of rows that a command takes at a time."""
PAIRS, MOST_PAIRS, TASKS = 2_000, 1 << 15, 64
"""Minimum and maximum number of pairs of a weak and a gold label per task, and number of tasks between these limits."""


class Grade(Stage):
    """A stage that compares weak with gold labels by the domain's own rule, and records a hash of each row's question.

    If a user's command is the rule, rows committed before an interruption are not checked again.
    """

    class Made(NamedTuple):
        grades: TableRef

    labels: In[TableRef]
    gold: In[TableRef]
    examples: In[TableRef]
    domain: DomainConfig
    checker: str | None = None
    """Digest of the command and its files, so that a changed command grades again, or None without a command."""

    def run(self, task: Task) -> Done:
        """Grade the labels."""
        uri, tables = str(task.directory / "grades.lance"), (self.labels, self.gold, self.examples)
        with task.progress() as update:
            if self.checker is None:
                grades = grade(*tables, self.domain, uri, progress=update)
                return Done(outputs=self.Made(grades=grades), rows=io.count(grades))
            schema = schemas.make_grades_schema(io.open_table(self.examples).schema)
            verdicts = compute_in_chunks(
                partial(grade_by_checker, tables=tables, domain=self.domain, checker=self.checker),
                np.frombuffer(_find_both(self.labels, self.gold).to_array(), dtype=np.uint64).astype(np.int64),
                str(task.directory / "verdicts.lance"),
                schema,
                chunk_rows=max(CHECKED_ROWS, self.domain.options["check"].get("batch_rows", 0)),
                guard=task.guard,
                progress=update,
            )
        in_order = io.read(verdicts).sort_by("row_id").cast(schema)
        say_failed(task, in_order)
        return Done(outputs=self.Made(grades=io.write(in_order, uri)), rows=in_order.num_rows)


def say_failed(task: Task, grades: pa.Table) -> None:
    """Report how many rows a command could not check, and the first row's problem."""
    if num_failed := grades.num_rows - grades["problem"].null_count:
        first = next(problem for problem in grades["problem"].to_pylist() if problem is not None)
        task.say(f"{num_failed:,} of {grades.num_rows:,} rows could not be checked; the first: {first}")


def grade(
    labels: TableRef,
    gold: TableRef,
    examples: TableRef,
    domain: DomainConfig,
    uri: str,
    *,
    progress: Update | None = None,
) -> TableRef:
    """Write grades (``schemas.GRADES``) of rows with a label and a gold label; if interrupted, it starts over."""
    total, num_done = io.count(labels, filter=io.make_answered_filter(labels)), 0

    def parts() -> Iterator[pa.Table]:
        nonlocal num_done
        for graded in run_in_tasks(_grade, _iter_calls(labels, gold, examples, domain)):
            yield graded
            num_done += graded.num_rows
            if progress is not None:
                progress(Standing(rows=num_done, total=total))

    return io.write_parts(parts(), schemas.make_grades_schema(io.open_table(examples).schema), uri)


def _iter_calls(
    labels: TableRef, gold: TableRef, examples: TableRef, domain: DomainConfig
) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of each task, by row id: each table's offsets of rows with an answer and a gold label."""
    in_labels, in_gold = io.Lookup(labels), io.Lookup(gold)
    in_examples = in_gold if examples == gold else io.Lookup(examples)
    both = _find_both(labels, gold)
    for ids_N in in_gold.ascending(max(PAIRS, min(MOST_PAIRS, len(in_gold) // TASKS))):
        ids_M = ids_N[~find_missing_ids(ids_N, both)]
        if len(ids_M):
            offsets = [lookup.offsets(ids_M) for lookup in (in_labels, in_gold, in_examples)]
            yield (labels, gold, examples), offsets, domain


def _find_both(labels: TableRef, gold: TableRef) -> BitMap64:
    """Return the ids of the rows with an answer and a gold label."""
    return read_id_bitmap(labels, io.make_answered_filter(labels)) & read_id_bitmap(gold, "gold IS NOT NULL")


def _grade(
    tables: tuple[TableRef, TableRef | None, TableRef], offsets: Sequence[Int64s], domain: DomainConfig
) -> pa.Table:
    """Grade rows, given their places in labels, gold labels (None: unknown) and examples."""
    (labels, gold, examples), rule = tables, load_domain(domain)
    schema = schemas.make_grades_schema(io.open_table(examples).schema)
    weak = io.take_offsets(labels, offsets[0], ["row_id", "label"])
    right = pa.nulls(len(weak), pa.string()) if gold is None else io.take_offsets(gold, offsets[1], ["gold"])["gold"]
    further = schema.names[len(schemas.GRADES) :]
    questions = io.take_offsets(examples, offsets[2], [*rule.columns.names, *further], weak["row_id"].to_numpy())
    rows = questions.select(rule.columns.names).to_pylist()
    correct_N, problems = grade_pairs(weak["label"], right, rule, rows)
    columns = {
        "row_id": weak["row_id"],
        "correct": correct_N,
        "judged": np.zeros(len(correct_N), np.bool_),
        "problem": problems,
        "question": hash_questions(rule, rows),
    }
    return pa.table({**columns, **{name: questions[name] for name in further}}, schema=schema)


def grade_by_checker(
    ids_M: Int64s, tables: tuple[TableRef, TableRef | None, TableRef], domain: DomainConfig, checker: str
) -> pa.Table:
    """Return grades of rows by the command, from labels, gold labels (None: it is given null) and examples."""
    rule: Any = load_domain(domain)
    if rule.checker != checker:
        raise ConfigError(
            "check.command: the program's files on this machine are not those of the driver; put them on a file system "
            "that all nodes share"
        )
    return _grade(tables, [NO_IDS if ref is None else io.find_offsets(ref, ids_M) for ref in tables], domain)
