"""Finds the same question in two splits, because rows used for training or fitting must not be tested on or curated.

Rows are compared by their identity (``Domain.identity``), not by their prompts: the same question with its options in
another order is a leak too. Ray tasks hash the questions, 16 bytes a row. Those of all splits but the pool are the
index past which tasks stream the pool's; the driver sees only the pool's rows that are in another split.

Within the pool, rows that ask the same question are found so that a selection takes only one of them: tasks hash the
questions, and others sort them by bucket. A row that the domain cannot identify is a question of its own.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.domains import Example, attempt, get_domain
from curation.domains.grading import hash_question
from curation.errors import SourceError, get_error_kind
from curation.heavy import ray
from curation.refs import TableRef
from curation.rundir.graph import Done, In, Stage
from curation.rundir.run import Task
from curation.tables import io, scans, schemas
from curation.tasks import make_driver_error
from curation.telemetry.standing import Standing

TASK_ROWS = 100_000
"""The number of rows that a task reads, or one fragment if that has more."""
_ORDER = ("test", "calibration", "probe-", "shots", "source", "adapt", "pool")


def rank(split: str) -> int:
    """Return the priority of a split; a question in several splits stays in the one with the smallest number."""
    return next(place for place, name in enumerate(_ORDER) if split.startswith(name))


@dataclass(frozen=True, kw_only=True)
class OverlapRows:
    """Rows of the split ``other`` whose question is in ``kept`` too, ascending by row id."""

    kept: str
    other: str
    row_ids_M: Int64s
    example: tuple[int, int]
    """A row of ``kept`` and one of ``other``."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The result of a comparison: matches by pair of splits, and rows without an identity by split and kind."""

    pairs: list[OverlapRows]
    uncompared: dict[str, dict[str, int]]


def find(
    refs: Mapping[str, TableRef], domains: Mapping[str, DomainConfig], *, last: str, dealt: Collection[str] = ()
) -> Compared:
    """Compare the healthy rows of each split with those of the splits before it in the order.

    ``last`` is the split that is streamed; it comes last in the order. Splits of different domains share no rows.
    ``dealt`` splits keep every row: they come before the others, and questions shared only among them are left out.

    Raises:
        SourceError: no row of a split can be compared.
        ray.exceptions.RayError: a task failed.
    """
    names = sorted(refs, key=rank)
    assert names[-1] == last
    hashing: Any = ray.remote(_hash_questions).options(num_cpus=1, num_returns=2)
    tasks = {
        name: [hashing.remote(refs[name], domains[name], group) for group in iter_fragment_groups(refs[name])]
        for name in names[:-1]
    }
    questions = {name: _join([ray.get(task[0]) for task in of]) for name, of in tasks.items()}
    index = ray.put(np.unique(_join([*questions.values()])[1]))
    tasks[last] = [
        hashing.remote(refs[last], domains[last], group, index) for group in iter_fragment_groups(refs[last])
    ]
    questions[last] = _join([ray.get(task[0]) for task in tasks[last]])
    counted = {name: [ray.get(task[1]) for task in of] for name, of in tasks.items()}
    uncompared = {name: dict(sum(of, Counter[str]()).most_common()) for name, of in counted.items()}
    for name, problems in uncompared.items():
        _require_some(name, problems, refs[name])
    pairs = find_pairs({name: questions[name] for name in sorted(names, key=lambda name: name not in dealt)})
    return Compared(
        pairs=[pair for pair in pairs if pair.other not in dealt],
        uncompared={name: problems for name, problems in uncompared.items() if name not in dealt},
    )


def _require_some(split: str, problems: Mapping[str, int], ref: TableRef) -> None:
    if problems and sum(problems.values()) == io.count(ref, "error IS NULL"):
        raise SourceError(
            f"splits.{split}: none of its rows says what identifies its question ({next(iter(problems))}); fix the "
            "member identity of the domain (docs/extending.md)"
        )


def iter_fragment_groups(ref: TableRef) -> Iterator[tuple[int, ...]]:
    """Yield a table's fragments in groups, each the work of one task."""
    held: list[int] = []
    num_rows = 0
    for fragment in io.open_table(ref).get_fragments():
        held.append(fragment.fragment_id)
        num_rows += fragment.metadata.physical_rows
        if num_rows >= TASK_ROWS:
            yield tuple(held)
            held, num_rows = [], 0
    if held:
        yield tuple(held)


def iter_healthy_rows(ref: TableRef, columns: Sequence[str], fragments: Sequence[int]) -> Iterator[list[Example]]:
    """Yield the healthy rows of the given fragments of a table in batches, with ids and ``columns``."""
    names = {name: f"`{name}`" for name in ("row_id", *columns)}
    for batch in scans.iter_table_batches(ref, names, "error IS NULL", fragments, num_rows=4096):
        yield batch.to_pylist()


def _hash_questions(
    ref: TableRef, config: DomainConfig, fragments: tuple[int, ...], index_K: Int64s | None = None
) -> tuple[Int64s, Counter[str]]:
    """Return row ids and questions, int64 [2, N], of the healthy rows, and counts of rows without one by kind of error.

    With an index, only rows whose question is in it are returned.
    """
    domain, problems, found = get_domain(config), Counter[str](), list[Int64s]()
    for rows in iter_healthy_rows(ref, domain.columns.names, fragments):
        pairs = []
        for row in rows:
            question, problem = attempt(hash_question, domain, row)
            if question is None:
                problems[get_error_kind(problem)] += 1
            else:
                pairs.append((row["row_id"], question))
        found.append(np.array(pairs, dtype=np.int64).reshape(-1, 2).T)
    pair_2N = _join(found)
    return pair_2N if index_K is None else pair_2N[:, np.isin(pair_2N[1], index_K)], problems


def _join(parts: Sequence[Int64s]) -> Int64s:
    return np.concatenate([np.zeros((2, 0), dtype=np.int64), *parts], axis=1)


def find_pairs(questions: Mapping[str, Int64s]) -> list[OverlapRows]:
    """Return the rows of each split whose question occurs in a split before it, by pair of splits.

    ``questions``: row ids and questions of each split, int64 [2, N].
    """
    pairs = []
    for (one, (kept_id_M, kept_M)), (other, (id_N, question_N)) in itertools.combinations(questions.items(), 2):
        hit_M = np.flatnonzero(np.isin(question_N, kept_M))
        if len(hit_M):
            shown = hit_M[id_N[hit_M].argmin()]
            partner = kept_id_M[kept_M == question_N[shown]].min()
            example = (int(partner), int(id_N[shown]))
            pairs.append(OverlapRows(kept=one, other=other, row_ids_M=np.sort(id_N[hit_M]), example=example))
    return pairs


BUCKET_ROWS = 1 << 25
"""The number of pool rows among which one task finds repetitions, which takes 512 MiB."""


@dataclass(frozen=True, kw_only=True)
class RepeatCounts:
    """The numbers of usable rows of the pool, of rows with a repeated question, and of these questions."""

    num_pool: int
    num_rows: int
    num_questions: int


class FindRepeats(Stage):
    """A stage that finds the pool rows whose question another pool row asks too."""

    class Made(NamedTuple):
        counts: RepeatCounts
        repeats: TableRef | None

    pool: In[TableRef]
    domain: DomainConfig

    def run(self, task: Task) -> Done:
        """Hash the pool's questions, and write the rows whose question is asked more than once, ascending by id."""
        total, num_pool = io.count(self.pool), 0
        num_buckets = 1 + total // BUCKET_ROWS
        hashing: Any = ray.remote(_sort_questions).options(num_cpus=1, num_returns=1 + num_buckets)
        finding = ray.remote(_find_repeated).options(num_cpus=1)
        groups = iter_fragment_groups(self.pool)
        try:
            with task.progress() as update:
                parts = [hashing.remote(self.pool, self.domain, group, num_buckets) for group in groups]
                for part in parts:
                    num_pool += ray.get(part[0])
                    update(Standing(rows=num_pool, total=total))
                found = ray.get([finding.remote(*(part[1 + at] for part in parts)) for at in range(num_buckets)])
        except ray.exceptions.RayError as error:
            raise make_driver_error(error, task.name) from error
        row_id_R, question_R = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        num_questions = len(np.unique(question_R))
        counts = RepeatCounts(num_pool=num_pool, num_rows=len(row_id_R), num_questions=num_questions)
        repeats = None
        if num_questions:
            task.say(
                f"{counts.num_rows:,} rows of the pool ask {num_questions:,} questions more than once; an arm selects "
                "the best row of each"
            )
            table = pa.table([row_id_R, question_R], schema=schemas.REPEATS).sort_by("row_id")
            repeats = io.write(table, str(task.directory / "repeats.lance"))
        return Done(outputs=self.Made(counts=counts, repeats=repeats), rows=num_pool)


def _sort_questions(
    ref: TableRef, config: DomainConfig, fragments: tuple[int, ...], num_buckets: int
) -> tuple[Any, ...]:
    """Return the number of healthy rows and, by bucket, row ids and questions, each int64 [2, N]."""
    pair_2N, problems = _hash_questions(ref, config, fragments)
    bucket_N = pair_2N[1].astype(np.uint64) % np.uint64(num_buckets)
    num_rows = pair_2N.shape[1] + problems.total()
    return num_rows, *(pair_2N[:, bucket_N == bucket] for bucket in range(num_buckets))


def _find_repeated(*pairs_2N: Int64s) -> tuple[Int64s, Int64s]:
    row_id_N, question_N = _join(pairs_2N)
    _, place_N, size_Q = np.unique(question_N, return_inverse=True, return_counts=True)
    again_N = size_Q[place_N] > 1
    return row_id_N[again_N], question_N[again_N]
