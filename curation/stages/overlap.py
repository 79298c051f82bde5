"""A search for questions that are in two splits: rows used for training or fitting must not be tested on or curated.

Rows are compared by their identity (``Domain.identity``), not by their prompts: the same question with its options in
another order, or with another distractor, is a leak too. The rule :func:`curation.domains.identity.match_questions` is
expressed as equality of keys, 128-bit digests of the text and two options, so that no rows are compared in pairs.

Ray tasks make the keys. The first halves of the keys of all splits but the pool form one sorted index in Ray's object
store, and the pool's keys are streamed past it; the driver sees only rows that are in two splits.

Within the pool, rows that ask the same question (equal text and set of options, normalised) are found so that a
selection takes only one of them: tasks hash the questions, 16 bytes a row in the store, and others sort them by bucket.
A row that the domain cannot identify is a question of its own.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.arrays import Int64s, Uint64s
from curation.config import DomainConfig
from curation.domains import Example, Identity, attempt, get_domain
from curation.domains.grading import hash_questions
from curation.domains.identity import RULES, SHARED_PARTS
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
    rules: dict[str, int]
    example: tuple[int, int]
    """A row of ``kept`` and one of ``other``."""


@dataclass(frozen=True, kw_only=True)
class SplitMatches:
    """The matching rows by pair of splits, and the numbers of rows without an identity by split and kind of error."""

    pairs: list[OverlapRows]
    uncompared: dict[str, dict[str, int]]


_KEY = np.dtype([("high", "<u8"), ("low", "<u8")])
"""The halves of a digest."""
_ENTRY = np.dtype([("row_id", np.int64), ("rule", np.uint8), *_KEY.descr])
"""A key of a row, by one of the ``RULES``."""
_Entries = npt.NDArray[np.void]
_NONE: _Entries = np.empty(0, dtype=_ENTRY)


class _Fragments(NamedTuple):
    ref: TableRef
    domain: DomainConfig
    fragments: tuple[int, ...]


def find_overlap(
    refs: Mapping[str, TableRef], domains: Mapping[str, DomainConfig], *, last: str, fixed: Collection[str] = ()
) -> SplitMatches:
    """Compare the healthy rows of each split with those of the splits before it in the order of :func:`rank`.

    ``last`` is the split that is streamed; it comes last in the order. Splits of different domains share no questions.
    ``fixed`` splits keep every row: they come before the others, and questions shared only among them are left out.

    Raises:
        SourceError: no row of a split can be compared.
        ray.exceptions.RayError: a task failed.
    """
    names = sorted(refs, key=rank)
    assert names[-1] == last
    parts = {
        name: [_Fragments(ref, domains[name], group) for group in iter_fragment_groups(ref)]
        for name, ref in refs.items()
    }
    task = _make_remote(_collect_keys)
    known = {name: [task.remote(part) for part in parts[name]] for name in names[:-1]}
    highs = {name: [task[0] for task in tasks] for name, tasks in known.items()}
    sizes = [len(tasks) for tasks in highs.values()]
    index, within = _make_remote(_build_index).remote(sizes, *itertools.chain.from_iterable(highs.values()))
    task = _make_remote(_find_matches)
    streamed = [task.remote(part, index) for part in parts[last]]
    entries = {last: np.concatenate([_NONE, *ray.get([task[0] for task in streamed])])}
    shared_K = np.union1d(ray.get(within), entries[last]["high"])
    shared = ray.put(shared_K)
    for name in names[:-1]:
        matched = [task.remote(part, shared) for part in parts[name]] if len(shared_K) else []
        entries[name] = np.concatenate([_NONE, *ray.get([task[0] for task in matched])])
    counted = {name: [task[1] for task in tasks] for name, tasks in {**known, last: streamed}.items()}
    uncompared = {name: dict(sum(ray.get(tasks), Counter[str]()).most_common()) for name, tasks in counted.items()}
    for name, problems in uncompared.items():
        _require_some(name, problems, refs[name])
    pairs = _find_pairs(sorted(names, key=lambda name: name not in fixed), entries)
    return SplitMatches(
        pairs=[pair for pair in pairs if pair.other not in fixed],
        uncompared={name: problems for name, problems in uncompared.items() if name not in fixed},
    )


def _require_some(split: str, problems: Mapping[str, int], ref: TableRef) -> None:
    if problems and sum(problems.values()) == io.count(ref, "error IS NULL"):
        raise SourceError(
            f"splits.{split}: none of its rows says what identifies its question ({next(iter(problems))}); fix the "
            "member identity of the domain (docs/extending.md)"
        )


def _make_remote(task: Any) -> Any:
    return ray.remote(task).options(num_cpus=1, num_returns=2)


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


class Digests:
    """Digests of the parts that two identities may share, 16 bytes each; those of different domains differ."""

    def __init__(self, domain: str, identity: Identity) -> None:
        """Digest an ``identity`` of the ``domain`` of this name."""
        self._text = _digest(f"{domain}\n{identity.text}".encode())
        self._parts = [_digest(part.encode()) for part in identity.parts]
        self._unique = sorted(set(self._parts))

    def near(self) -> list[bytes]:
        """Return keys of which near-copies share at least one, by the rule ``match_questions``."""
        sizes = {SHARED_PARTS, 1} if len(self._unique) == SHARED_PARTS else {min(len(self._unique), SHARED_PARTS)}
        kept = (b"".join(parts) for size in sizes for parts in itertools.combinations(self._unique, size))
        alone = b"of two" if len(self._unique) == SHARED_PARTS else b""
        return [_digest(self._text + b"near" + (alone if len(key) == 16 else b"") + key) for key in kept]

    def permuted(self) -> bytes:
        """Return a key that rows with the same text and set of options share."""
        return _digest(self._text + b"permuted" + b"".join(self._unique))

    def same(self) -> bytes:
        """Return a key that rows with the same text and the same options in the same order share."""
        return _digest(self._text + b"same" + b"".join(self._parts))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _iter_digests(part: _Fragments) -> Iterator[tuple[int, Digests | None, str]]:
    """Yield the id of each healthy row, and the digests of its identity or the reason why it has none."""
    domain = get_domain(part.domain)

    def identify(row: Example) -> Identity:
        text, parts = domain.identity(row)
        return Identity(str(text), tuple(map(str, parts)))

    for row in itertools.chain.from_iterable(iter_healthy_rows(part.ref, domain.columns.names, part.fragments)):
        identity, problem = attempt(identify, row)
        yield row["row_id"], None if identity is None else Digests(domain.name, identity), problem


def _to_keys(digests: Sequence[bytes]) -> npt.NDArray[np.void]:
    return np.frombuffer(b"".join(digests), dtype=_KEY)


def _collect_keys(part: _Fragments) -> tuple[Uint64s, Counter[str]]:
    """Return distinct first halves of keys, and counts of rows without an identity by kind."""
    problems, near = Counter[str](), list[bytes]()
    for _, digests, problem in _iter_digests(part):
        if digests is None:
            problems[get_error_kind(problem)] += 1
        else:
            near += digests.near()
    return np.unique(_to_keys(near)["high"]), problems


def _build_index(sizes: Sequence[int], *highs: Uint64s) -> tuple[Uint64s, Uint64s]:
    """Return all first halves, ascending, and those that splits share; ``sizes``: the number of arrays per split."""
    arrays = iter(highs)
    splits = [np.unique(np.concatenate(list(itertools.islice(arrays, size)))) for size in sizes]
    all_K = np.sort(np.concatenate(splits))
    repeated_K = all_K[1:] == all_K[:-1]
    return all_K[np.append(True, ~repeated_K)], np.unique(all_K[1:][repeated_K])


def _find_matches(part: _Fragments, index_K: Uint64s) -> tuple[_Entries, Counter[str]]:
    """Return entries of rows with a key in the index, and counts of rows without an identity by kind."""
    problems, found, rows = Counter[str](), [_NONE], _iter_digests(part)
    while held := list(itertools.islice(rows, 4096)):
        problems.update(get_error_kind(problem) for _, digests, problem in held if digests is None)
        found.append(_find_hits([(row_id, digests) for row_id, digests, _ in held if digests is not None], index_K))
    return np.concatenate(found), problems


def _find_hits(questions: Sequence[tuple[int, Digests]], index_K: Uint64s) -> _Entries:
    """Return all keys of the rows that have one in the index."""
    if not len(index_K) or not questions:
        return _NONE
    near = [digests.near() for _, digests in questions]
    row_K, key_K = np.repeat(np.arange(len(near)), list(map(len, near))), _to_keys(list(itertools.chain(*near)))
    hit_K = index_K[np.minimum(np.searchsorted(index_K, key_K["high"]), len(index_K) - 1)] == key_K["high"]
    rows_M = np.unique(row_K[hit_K])
    ids_N = np.array([row_id for row_id, _ in questions], dtype=np.int64)
    found = [("near_copy", row_K[hit_K], key_K[hit_K])]
    for rule, make in (("permuted", Digests.permuted), ("same", Digests.same)):
        found.append((rule, rows_M, _to_keys([make(questions[row][1]) for row in rows_M])))
    parts = [_NONE]
    for rule, rows, keys in found:
        parts.append(np.empty(len(rows), dtype=_ENTRY))
        parts[-1]["row_id"], parts[-1]["rule"] = ids_N[rows], RULES.index(rule)
        parts[-1]["high"], parts[-1]["low"] = keys["high"], keys["low"]
    return np.concatenate(parts)


def _find_pairs(names: Sequence[str], entries: Mapping[str, _Entries]) -> list[OverlapRows]:
    """Return the rows of each split that share a whole key with an earlier split, by pair of splits."""
    table = np.concatenate([entries[name] for name in names])
    split_K = np.repeat(np.arange(len(names)), [len(entries[name]) for name in names])
    if not len(table):
        return []
    order_K, group_K = np.lexsort((table["low"], table["high"])), np.empty(len(table), dtype=np.int64)
    is_new_K = np.any([np.diff(table[half][order_K]) != 0 for half in ("high", "low")], axis=0)
    group_K[order_K] = np.cumsum(np.append(False, is_new_K))  # numbers of the keys, ascending
    pairs = []
    for one, other in itertools.combinations(range(len(names)), 2):
        hit_M = np.flatnonzero((split_K == other) & np.isin(group_K, group_K[split_K == one]))
        if not len(hit_M):
            continue
        hit_M = hit_M[np.lexsort((group_K[hit_M], table["rule"][hit_M], table["row_id"][hit_M]))]
        ids_M, place_M = np.unique(table["row_id"][hit_M], return_index=True)
        rule_M = table["rule"][hit_M[place_M]]
        rules = np.bincount(rule_M, minlength=len(RULES)).tolist()
        shown = hit_M[place_M[np.argmin(rule_M)]]
        partner = table["row_id"][(split_K == one) & (group_K == group_K[shown])].min()
        pairs.append(
            OverlapRows(
                kept=names[one],
                other=names[other],
                row_ids_M=ids_M,
                rules={rule: number for rule, number in zip(RULES, rules, strict=True) if number},
                example=(int(partner), int(table["row_id"][shown])),
            )
        )
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
        hashing: Any = ray.remote(_hash_questions).options(num_cpus=1, num_returns=1 + num_buckets)
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


def _hash_questions(
    ref: TableRef, config: DomainConfig, fragments: tuple[int, ...], num_buckets: int
) -> tuple[Any, ...]:
    """Return the number of rows and, by bucket, ids and questions of rows with a question, each int64 [2, N]."""
    domain, num_rows, pieces = get_domain(config), 0, [np.zeros((2, 0), dtype=np.int64)]
    for rows in iter_healthy_rows(ref, domain.columns.names, fragments):
        num_rows += len(rows)
        found = zip(rows, hash_questions(domain, rows), strict=True)
        pairs = [(row["row_id"], question) for row, question in found if question is not None]
        pieces.append(np.array(pairs, dtype=np.int64).reshape(-1, 2).T)
    pair_2N = np.concatenate(pieces, axis=1)
    bucket_N = pair_2N[1].astype(np.uint64) % np.uint64(num_buckets)
    return num_rows, *(pair_2N[:, bucket_N == bucket] for bucket in range(num_buckets))


def _find_repeated(*pairs_2N: "np.ndarray[Any, np.dtype[np.int64]]") -> tuple[Int64s, Int64s]:
    row_id_N, question_N = np.concatenate([np.zeros((2, 0), dtype=np.int64), *pairs_2N], axis=1)
    _, place_N, size_Q = np.unique(question_N, return_inverse=True, return_counts=True)
    again_N = size_Q[place_N] > 1
    return row_id_N[again_N], question_N[again_N]
