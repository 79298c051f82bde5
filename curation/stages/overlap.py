"""Finds the same question in two splits, because rows used for training or fitting must not be tested on or curated.

Rows are compared by their identity (``Domain.identity``), not by their prompts: the same question with its options in
another order, or with another distractor, is a leak too. The rule :func:`curation.domains.identity.match_questions` is
expressed as equality of keys, 128-bit digests of the text and two options, so that no rows are compared in pairs.

Ray tasks make the keys. The first halves of the keys of all splits but the pool form one sorted index in Ray's object
store, and the pool's keys are streamed past it; the driver sees only rows that are in two splits.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from curation.arrays import Int64s, Uint64s
from curation.config import DomainConfig
from curation.domains import Domain, Example, Identity, attempt, get_domain
from curation.domains.identity import RULES, SHARED_PARTS
from curation.errors import SourceError, get_error_kind
from curation.heavy import ray
from curation.refs import TableRef
from curation.tables import io

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
class Compared:
    """The result of a comparison: matches by pair of splits, and rows without an identity by split and kind."""

    pairs: list[OverlapRows]
    uncompared: dict[str, dict[str, int]]


class _Entries(NamedTuple):
    """Keys of rows, one entry per key: [K]."""

    row_ids_K: Int64s
    rule_K: npt.NDArray[np.uint8]
    high_K: Uint64s
    low_K: Uint64s

    def taken(self, places: Int64s) -> "_Entries":
        """Return the entries at these positions."""
        return _Entries(self.row_ids_K[places], self.rule_K[places], self.high_K[places], self.low_K[places])


class _Fragments(NamedTuple):
    ref: TableRef
    domain: DomainConfig
    fragments: tuple[int, ...]


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
    assert names[-1] == last and len(names) < 64
    parts = {
        name: [_Fragments(ref, domains[name], group) for group in iter_fragment_groups(ref)]
        for name, ref in refs.items()
    }
    task = _make_remote(_collect_keys, 2)
    known = {name: [task.remote(part) for part in parts[name]] for name in names[:-1]}
    highs = {name: [task[0] for task in tasks] for name, tasks in known.items()}
    sizes = [len(tasks) for tasks in highs.values()]
    index, within = _make_remote(_build_index, 2).remote(sizes, *itertools.chain.from_iterable(highs.values()))
    task = _make_remote(_find_matches, 2)
    streamed = [task.remote(part, index) for part in parts[last]]
    entries = {last: _join_entries(ray.get([task[0] for task in streamed]))}
    shared_K = np.union1d(ray.get(within), entries[last].high_K)
    shared = ray.put(shared_K)
    for name in names[:-1]:
        matched = [task.remote(part, shared) for part in parts[name]] if len(shared_K) else []
        entries[name] = _join_entries(ray.get([task[0] for task in matched]))
    counted = {name: [task[1] for task in tasks] for name, tasks in {**known, last: streamed}.items()}
    uncompared = {name: dict(sum(ray.get(tasks), Counter[str]()).most_common()) for name, tasks in counted.items()}
    for name, problems in uncompared.items():
        _require_some(name, problems, refs[name])
    pairs = _find_pairs(sorted(names, key=lambda name: name not in dealt), entries)
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


def _make_remote(task: Any, num_returns: int) -> Any:
    return ray.remote(task).options(num_cpus=1, num_returns=num_returns)


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


def iter_healthy_rows(ref: TableRef, columns: Sequence[str], fragments: Collection[int]) -> Iterator[list[Example]]:
    """Yield the healthy rows of the given fragments of a table in batches, with ids and ``columns``."""
    dataset = io.open_table(ref)
    chosen = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id in fragments]
    scanner = dataset.scanner(columns=["row_id", *columns], filter="error IS NULL", fragments=chosen, batch_size=4096)
    for batch in scanner.to_batches():
        yield batch.to_pylist()


def _iter_identities(part: _Fragments, domain: Domain) -> Iterator[tuple[int, Identity | None, str]]:
    """Yield the id of each healthy row, and its identity or the reason why it has none."""
    for row in itertools.chain.from_iterable(iter_healthy_rows(part.ref, domain.columns.names, part.fragments)):
        yield row["row_id"], *attempt(get_identity, domain, row)


def get_identity(domain: Domain, row: Mapping[str, object]) -> Identity:
    """Return the identity of a row, with its text and parts as ``str``."""
    text, parts = domain.identity(row)
    return Identity(str(text), tuple(map(str, parts)))


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
        kept = (b"".join(chosen) for size in sizes for chosen in itertools.combinations(self._unique, size))
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


def _split_digests(digests: Sequence[bytes]) -> tuple[Uint64s, Uint64s]:
    halves_K2 = np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)
    return halves_K2[:, 0].copy(), halves_K2[:, 1].copy()


def _collect_keys(part: _Fragments) -> tuple[Uint64s, Counter[str]]:
    """Return distinct first halves of keys, and counts of rows without an identity by kind."""
    domain, problems = get_domain(part.domain), Counter[str]()
    near: list[bytes] = []
    for _, identity, problem in _iter_identities(part, domain):
        if identity is None:
            problems[get_error_kind(problem)] += 1
            continue
        near += Digests(domain.name, identity).near()
    return np.unique(_split_digests(near)[0]), problems


def _build_index(sizes: Sequence[int], *highs: Uint64s) -> tuple[Uint64s, Uint64s]:
    """Return all first halves, ascending, and those that splits share; ``sizes``: the number of arrays per split."""
    given = iter(highs)
    splits = [np.unique(np.concatenate(list(itertools.islice(given, size)))) for size in sizes]
    all_K = np.sort(np.concatenate(splits))
    repeated_K = all_K[1:] == all_K[:-1]
    return all_K[np.append(True, ~repeated_K)], np.unique(all_K[1:][repeated_K])


def _find_matches(part: _Fragments, index_K: Uint64s) -> tuple[_Entries, Counter[str]]:
    """Return entries of rows with a key in the index, and counts of rows without an identity by kind."""
    domain, problems, found = get_domain(part.domain), Counter[str](), []
    rows = _iter_identities(part, domain)
    while held := list(itertools.islice(rows, 4096)):
        problems.update(get_error_kind(problem) for _, identity, problem in held if identity is None)
        known = ((row_id, identity) for row_id, identity, _ in held if identity is not None)
        found.append(_find_hits([(row_id, Digests(domain.name, identity)) for row_id, identity in known], index_K))
    return _join_entries(found), problems


def _find_hits(questions: Sequence[tuple[int, Digests]], index_K: Uint64s) -> _Entries:
    if not len(index_K) or not questions:
        return _join_entries([])
    near = [digests.near() for _, digests in questions]
    row_K = np.repeat(np.arange(len(near)), [len(keys) for keys in near])
    high_K, low_K = _split_digests([key for keys in near for key in keys])
    place_K = np.minimum(np.searchsorted(index_K, high_K), len(index_K) - 1)
    hit_K = index_K[place_K] == high_K
    ids_N = np.fromiter((row_id for row_id, _ in questions), dtype=np.int64, count=len(questions))
    rows_M = np.unique(row_K[hit_K])

    def make_entries(rule: Any, ids_K: Int64s, high_K: Uint64s, low_K: Uint64s) -> _Entries:
        return _Entries(ids_K, np.full(len(ids_K), [*RULES].index(rule), dtype=np.uint8), high_K, low_K)

    found = [make_entries("near_copy", ids_N[row_K[hit_K]], high_K[hit_K], low_K[hit_K])]
    for rule, make in (("permuted", Digests.permuted), ("same", Digests.same)):
        exact = _split_digests([make(questions[row][1]) for row in rows_M])
        found.append(make_entries(rule, ids_N[rows_M], *exact))
    return _join_entries(found)


def _join_entries(entries: Sequence[_Entries]) -> _Entries:
    return _Entries(
        row_ids_K=np.concatenate([np.empty(0, dtype=np.int64), *(item.row_ids_K for item in entries)]),
        rule_K=np.concatenate([np.empty(0, dtype=np.uint8), *(item.rule_K for item in entries)]),
        high_K=np.concatenate([np.empty(0, dtype=np.uint64), *(item.high_K for item in entries)]),
        low_K=np.concatenate([np.empty(0, dtype=np.uint64), *(item.low_K for item in entries)]),
    )


def _find_pairs(names: Sequence[str], entries: Mapping[str, _Entries]) -> list[OverlapRows]:
    """Return the rows of each split whose whole keys occur in an earlier split, by pair of splits."""
    table = _join_entries([entries[name] for name in names])
    split_K = np.repeat(np.arange(len(names), dtype=np.uint64), [len(entries[name].rule_K) for name in names])
    order_K = np.lexsort((table.row_ids_K, split_K, table.low_K, table.high_K))
    table, split_K = table.taken(order_K), split_K[order_K]
    if not len(split_K):
        return []
    new_K = (np.diff(table.high_K) != 0) | (np.diff(table.low_K) != 0)
    first_G = np.flatnonzero(np.append(True, new_K))
    group_K = np.cumsum(np.append(False, new_K))
    splits_G = np.bitwise_or.reduceat(np.uint64(1) << split_K, first_G)
    pairs = []
    for one, other in itertools.combinations(range(len(names)), 2):
        in_one_K = (splits_G >> np.uint64(one) & np.uint64(1)).astype(np.bool_)[group_K]
        hit_M = np.flatnonzero((split_K == other) & in_one_K)
        if not len(hit_M):
            continue
        hit_M = hit_M[np.lexsort((table.rule_K[hit_M], table.row_ids_K[hit_M]))]
        ids_M, place_M = np.unique(table.row_ids_K[hit_M], return_index=True)
        best_M = hit_M[place_M]
        rules = np.bincount(table.rule_K[best_M], minlength=len(RULES)).tolist()
        shown = best_M[np.argmin(table.rule_K[best_M])]
        # In its group the entries are in the order of the splits.
        partner = first_G[group_K[shown]] + np.argmax(split_K[first_G[group_K[shown]] :] == one)
        pairs.append(
            OverlapRows(
                kept=names[one],
                other=names[other],
                row_ids_M=ids_M,
                rules={rule: number for rule, number in zip(RULES, rules, strict=True) if number},
                example=(int(table.row_ids_K[partner]), int(table.row_ids_K[shown])),
            )
        )
    return pairs
