"""The grade stage: grades the weak labels of a labelled split by the domain's own rule, in parallel tasks."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.domains import Domain, load_domain
from curation.domains.grading import grade_pairs, hash_questions
from curation.errors import ConfigError
from curation.refs import TableRef
from curation.rundir.graph import Done, In, Stage
from curation.rundir.run import Task
from curation.stages.rows import compute_in_chunks, read_ids
from curation.tables import io, schemas
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
            schema, labelled = _make_schema(self.examples), io.make_answered_filter(self.labels)
            verdicts = compute_in_chunks(
                partial(grade_by_checker, tables=tables, domain=self.domain, checker=self.checker),
                np.intersect1d(read_ids(self.labels, labelled), read_ids(self.gold, "gold IS NOT NULL")),
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

    return io.write_parts(parts(), _make_schema(examples), uri)


def _make_schema(examples: TableRef) -> pa.Schema:
    return schemas.make_grades_schema(io.open_table(examples).schema)


def _iter_calls(
    labels: TableRef, gold: TableRef, examples: TableRef, domain: DomainConfig
) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of each task: each table's offsets of rows in labels and gold, by row id; hold no labels."""
    in_labels, in_gold = io.Lookup(labels), io.Lookup(gold)
    in_examples = in_gold if examples == gold else io.Lookup(examples)
    num_rows = max(PAIRS, min(MOST_PAIRS, len(in_gold) // TASKS))
    for ids_N in in_gold.ascending(num_rows):
        place_N = in_labels.offsets(ids_N)
        (both_M,) = np.nonzero(place_N >= 0)
        if len(both_M):
            ids_M = ids_N[both_M]
            offsets = place_N[both_M], in_gold.offsets(ids_M), in_examples.offsets(ids_M)
            yield (labels, gold, examples), offsets, domain


def _grade(
    tables: tuple[TableRef, TableRef, TableRef], offsets: tuple[Int64s, Int64s, Int64s], domain: DomainConfig
) -> pa.Table:
    """Grade the rows with an answer and a gold label, in their order; ``offsets`` are their places in each table."""
    (labels, gold, examples), (in_labels_M, in_gold_M, in_examples_M) = tables, offsets
    weak = io.take_offsets(labels, in_labels_M, _list_columns(labels))
    right = io.take_offsets(gold, in_gold_M, ["gold"])
    both = pa.array(schemas.find_answered(weak) & right["gold"].is_valid().to_numpy())
    rule = load_domain(domain)
    in_examples_B = in_examples_M[both.to_numpy(zero_copy_only=False)]
    asked = io.take_offsets(examples, in_examples_B, _list_asked_columns(examples, rule))
    return _grade_rows(weak.filter(both), right.filter(both), asked, rule)


def _grade_rows(weak: pa.Table, right: pa.Table, asked: pa.Table, rule: Domain) -> pa.Table:
    """Return grades of rows, given their labels, gold labels and examples in the same order."""
    rows = asked.select(rule.columns.names).to_pylist()
    correct_N, problems = grade_pairs(weak["label"], right["gold"], rule, rows)
    judged_N, question_N = np.zeros(len(correct_N), np.bool_), pa.array(hash_questions(rule, rows), pa.int64())
    columns = [weak["row_id"].combine_chunks(), correct_N, judged_N, pa.array(problems, pa.string()), question_N]
    schema = schemas.make_grades_schema(asked.schema)
    return pa.table([*map(pa.array, columns), *(asked[name] for name in schema.names[len(columns) :])], schema=schema)


def _list_asked_columns(examples: TableRef, rule: Domain) -> list[str]:
    clustered = schemas.CLUSTER.name in io.open_table(examples).schema.names
    return [*rule.columns.names, *([schemas.CLUSTER.name] if clustered else [])]


def _list_columns(labels: TableRef) -> list[str]:
    present = io.open_table(labels).schema.names
    return [name for name in ("row_id", "label", "error", schemas.DROPPED) if name in present]


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
    labels, gold, examples = tables
    weak, unknown = io.take(labels, ids_M, _list_columns(labels)), pa.table({"gold": pa.nulls(len(ids_M), pa.string())})
    right = unknown if gold is None else io.take(gold, ids_M, ["gold"])
    return _grade_rows(weak, right, io.take(examples, ids_M, _list_asked_columns(examples, rule)), rule)
