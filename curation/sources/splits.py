"""Row ids, and disjoint splits of a source: a seeded permutation of its rows, cut into consecutive intervals.

An id is the file's number with the row's place in it, or the user's own unique integer.

The permutation is a keyed bijection over [0, N) that needs no array of N: an unbalanced Feistel network over the next
power of two, applied again when it leaves the range (Black, Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA
2002, cycle walking).

With ``splits.group`` the groups are permuted instead, in an array, and an interval ends at the nearest group's end:
rows of one cluster (a user's, a document's) are alike, so no draw may divide them, and confidence intervals count them
as fewer rows. A cluster is a hash of the column's value, equal in all files without a list of values.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from curation.arrays import Int64s
from curation.config import RowsConfig, SplitConfig
from curation.config.base import count_share
from curation.errors import ConfigError, SourceError
from curation.escaping import format_error
from curation.hashing import derive, hash64
from curation.sources.missing import replace_missing, to_python_values
from curation.sources.readers import read_rows
from curation.sources.source_file import SourceFile
from curation.tables.row_ids import include
from curation.tables.schemas import FILE_SHIFT


def get_row_ids(file: SourceFile, start: int, stop: int, id_column: str | None) -> Int64s:
    """Return the ids of the rows ``start`` to ``stop`` of a file, int64 [N]; ``SourceError`` of a wrong one."""
    if id_column is None:
        return np.arange(start, stop, dtype=np.int64) + (file.index << FILE_SHIFT)
    batches = read_rows(file, start, stop, [id_column])
    return np.concatenate([convert_ids(file, batch.column(id_column), id_column) for batch in batches])


def check_unique(files: Iterable[SourceFile], id_column: str) -> None:
    """Raise ``SourceError`` if an id occurs twice in all files of a source, of which only the id column is read."""
    seen = BitMap64()
    for file in files:
        for batch in read_rows(file, columns=[id_column]):
            ids_N = convert_ids(file, batch.column(id_column), id_column)
            ids = BitMap64(ids_N.astype(np.uint64))
            if len(ids) != len(ids_N) or not ids.isdisjoint(seen):
                unique, counts = np.unique(ids_N, return_counts=True)
                twice = next(iter(ids & seen), None)
                example = int(unique[counts > 1][0]) if twice is None else twice
                raise SourceError(
                    f"{file.path}: {id_column}: the id {example} occurs in more than one row; "
                    "make the ids unique, or leave id_column out"
                )
            include(seen, ids_N)


def convert_ids(file: SourceFile, values: pa.Array | Sequence[object], id_column: str) -> Int64s:
    """Return a file's values of ``id_column`` as ids, int64 [N]; ``SourceError`` of a wrong one."""
    where = f"{file.path}: {id_column}"
    if not isinstance(values, pa.Array) or values.type == pa.json_():
        listed = to_python_values(values, id_column) if isinstance(values, pa.Array) else values
        try:
            values = pa.array(listed)
        except (pa.ArrowException, OverflowError) as error:
            raise SourceError(
                f"{where}: ids are not all integers below 2**63 ({format_error(error)}); give such integers, or leave "
                "id_column out"
            ) from error
    if file.format == "csv":
        values = pa.array([replace_missing(value) for value in values.to_pylist()], values.type)
    if values.null_count:
        raise SourceError(f"{where}: {values.null_count} rows have no id; fill them in, or leave id_column out")
    if not (pa.types.is_integer(values.type) or file.format == "csv"):
        raise SourceError(f"{where}: ids are {values.type}, not integers; give integers, or leave id_column out")
    try:
        ids_N: Int64s = values.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise SourceError(
            f"{where}: {format_error(error)}; give integers below 2**63, or leave id_column out"
        ) from error
    if len(ids_N) and ids_N.min() < 0:
        raise SourceError(f"{where}: the id {ids_N.min()} is negative; give ids from 0 on, or leave id_column out")
    return ids_N


def compute_cluster(value: object) -> int | None:
    """Return a row's cluster by its value, as int64 (7 as 7.0), or ``None``: a cluster of its own."""
    if (value := replace_missing(value)) is None:
        return None
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True)


def read_clusters(files: Sequence[SourceFile], column: str) -> Int64s:
    """Return the cluster of each row by position, int64 [N], its own without a value; read once per process."""
    return _read_clusters(
        tuple(json.dumps(file.recorded()) for file in sorted(files, key=lambda file: file.index)), column
    )


@lru_cache(maxsize=8)
def _read_clusters(files: tuple[str, ...], column: str) -> Int64s:
    values: list[int | None] = []
    for file in map(SourceFile.from_json, map(json.loads, files)):
        if column not in file.schema:
            values += [None] * file.num_rows
            continue
        for batch in read_rows(file, columns=[column]):
            values += map(compute_cluster, to_python_values(batch.column(column), column))
    alone_N = hash64(np.arange(len(values), dtype=np.int64), 0).view(np.int64)
    pairs = zip(values, alone_N.tolist(), strict=True)
    cluster_N = np.array([alone if value is None else value for value, alone in pairs], dtype=np.int64)
    cluster_N.setflags(write=False)
    return cluster_N


NOTHING: Mapping[str, int] = MappingProxyType({})
"""Rows of previously assigned splits, if there are none."""
_ROUNDS = 8


@dataclass(frozen=True, kw_only=True)
class Permutation:
    """A bijection over [0, size), determined by ``seed``."""

    size: int
    seed: int

    def __call__(self, positions_N: Int64s) -> Int64s:
        """Return the place of each position, int64 [N], in [0, size)."""
        return self._walk(positions_N, back=False)

    def inverse(self, places_N: Int64s) -> Int64s:
        """Return the positions that go to these places, int64 [N]."""
        return self._walk(places_N, back=True)

    def _walk(self, positions_N: Int64s, *, back: bool) -> Int64s:
        moved_N = self._permute(np.asarray(positions_N, dtype=np.int64), back=back)
        while (outside := np.flatnonzero(moved_N >= self.size)).size:
            moved_N[outside] = self._permute(moved_N[outside], back=back)
        return moved_N

    def _permute(self, positions_N: Int64s, *, back: bool) -> Int64s:
        bits = max((self.size - 1).bit_length(), 2)
        low_bits = bits // 2
        low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
        low_N, high_N = positions_N & low_mask, positions_N >> low_bits
        for turn in reversed(range(_ROUNDS)) if back else range(_ROUNDS):
            if turn % 2:
                low_N = low_N ^ (self._mix(high_N, turn) & low_mask)
            else:
                high_N = high_N ^ (self._mix(low_N, turn) & high_mask)
        return (high_N << low_bits) | low_N

    def _mix(self, half_N: Int64s, turn: int) -> Int64s:
        # Half of a position is below 2**32, so the round number goes into the bits above it.
        mixed_N: Int64s = (hash64(half_N + (turn << 40), self.seed) >> np.uint64(1)).astype(np.int64)
        return mixed_N


@dataclass(frozen=True, kw_only=True)
class GroupedPermutation:
    """A bijection over a source's rows that puts rows of a cluster next to each other, in the order of files."""

    position_N: Int64s
    """The position of the row at each place."""
    place_N: Int64s
    """The place of each position."""

    @classmethod
    def of(cls, cluster_N: Int64s, seed: int) -> "GroupedPermutation":
        """Return the permutation that orders clusters by a seeded hash; ``cluster_N`` has each position's cluster."""
        position_N = np.lexsort((cluster_N, hash64(cluster_N, seed)))
        place_N = np.empty_like(position_N)
        place_N[position_N] = np.arange(len(place_N))
        return cls(position_N=position_N, place_N=place_N)

    def __call__(self, positions_N: Int64s) -> Int64s:
        """Return the place of each position, int64 [N], in [0, size)."""
        return self.place_N[positions_N]

    def inverse(self, places_N: Int64s) -> Int64s:
        """Return the positions that go to these places, int64 [N]."""
        return self.position_N[places_N]

    def counts_of_groups(self, counts: Mapping[str, int], cluster_N: Int64s) -> dict[str, int]:
        """Return the number of rows of each split, so that its interval ends where the nearest cluster does."""
        if not len(cluster_N):
            return dict(counts)
        in_order_N = cluster_N[self.position_N]
        ends_C = np.append(0, np.append(np.flatnonzero(np.diff(in_order_N)) + 1, len(in_order_N)))
        wanted_S = np.cumsum(list(counts.values()))
        after_S = np.searchsorted(ends_C, wanted_S)
        before_S = np.maximum(after_S - 1, 0)
        is_before_S = wanted_S - ends_C[before_S] < ends_C[after_S] - wanted_S
        ends_S = ends_C[np.where(is_before_S, before_S, after_S)]
        return dict(zip(counts, np.diff(ends_S, prepend=0).tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The split of each row of one source."""

    counts: dict[str, int]
    """Number of rows of each split, in the order of their intervals."""
    permutation: Permutation | GroupedPermutation

    def split_of(self, positions_N: Int64s) -> Int64s:
        """Return the index in ``counts`` of each position's split, int64 [N]; ``len(counts)`` for rows of no split."""
        ends = np.cumsum(list(self.counts.values()))
        place_N: Int64s = np.searchsorted(ends, self.permutation(positions_N), side="right")
        return place_N

    def draw(self, splits: Collection[str], num: int, seed: int) -> Int64s:
        """Return positions of ``num`` rows of these splits together, in random order, listing none; int64 [num]."""
        starts = dict(zip(self.counts, np.cumsum([0, *self.counts.values()]).tolist(), strict=False))
        sizes = {name: self.counts[name] for name in self.counts if name in splits}
        chosen_N = Permutation(size=sum(sizes.values()), seed=seed)(np.arange(num, dtype=np.int64))
        ends = np.cumsum(list(sizes.values()))
        split_N = np.searchsorted(ends, chosen_N, side="right")
        shift = np.array([starts[name] for name in sizes]) - (ends - list(sizes.values()))
        return self.permutation.inverse(chosen_N + shift[split_N])


def assign(
    total_rows: int,
    splits: Mapping[str, SplitConfig],
    seed: int,
    taken: Mapping[str, int] = NOTHING,
    *,
    cluster_N: Int64s | None = None,
) -> Assignment:
    """Assign the rows of one source to its ``splits``, except the ``taken`` ones, counted by split.

    With ``cluster_N`` [total_rows], the clusters of the rows, splits get whole clusters and end within half a cluster
    of their size. ``ConfigError``: two splits take the rest. ``SourceError``: rows are too few, or a split gets none.
    """
    rest = [name for name, split in splits.items() if split.rows is None and split.fraction is None]
    if len(rest) > 1:
        raise ConfigError(
            f"splits.{rest[0]} and splits.{rest[1]} both take the rest of source {splits[rest[0]].source!r}; "
            "give one of them rows or fraction"
        )
    counts = {
        name: split.rows or 0 if split.fraction is None else count_share(split.fraction, total_rows)
        for name, split in splits.items()
    }
    asked, left = sum(counts.values()), total_rows - sum(taken.values())
    text = ", ".join(f"{name} {number}" for name, number in counts.items() if name not in rest)
    if asked > left:
        source = next(iter(splits.values())).source
        has = f"which has {total_rows}"
        if taken:
            has += f", of which {left} are left ({_format_sizes(taken)} were assigned before, and stay)"
        fewer = "ask for fewer, or take the split from another source" if taken else "ask for fewer"
        raise SourceError(f"splits ask for {asked} rows of source {source!r} ({text}), {has}; {fewer}")
    counts |= dict.fromkeys(rest, left - asked)
    order: Permutation | GroupedPermutation = Permutation(size=total_rows, seed=seed)
    every = {**taken, **counts}
    if cluster_N is not None:
        grouped = order = GroupedPermutation.of(cluster_N, seed)
        every = grouped.counts_of_groups(every, cluster_N)
    for name, number in counts.items():
        if every[name]:
            continue
        before = f", {left} of which are left ({_format_sizes(taken)} were assigned before)" if taken else ""
        why = f" ({text})" if name in rest and text else ""
        if number and cluster_N is not None:
            groups = len(np.unique(cluster_N))
            why = f": it asks for {number}, and splits.group keeps the rows of each of {groups} groups in one split"
        raise SourceError(
            f"splits.{name}: gets none of the {total_rows} rows of source {splits[name].source!r}{before}{why}; ask "
            "for other numbers, give more rows, or take it from another source"
        )
    return Assignment(counts=every, permutation=order)


def make_assignment(
    config: RowsConfig, source: str, files: Sequence[SourceFile], taken: Mapping[str, int] = NOTHING
) -> Assignment:
    """Return the assignment of a source's rows to splits, or raise as :func:`assign`; those of ``taken`` stay."""
    splits = {name: split for name, split in config.splits.named().items() if split.source == source}
    before = {name: number for name, number in taken.items() if name in splits}
    new = {name: split for name, split in splits.items() if name not in taken}
    group, num_rows = config.splits.group, sum(file.num_rows for file in files)
    takes_all = len(splits) == 1 and all(split.rows is None and split.fraction is None for split in splits.values())
    cluster_N = None if group is None or takes_all else read_clusters(files, group)
    return assign(num_rows, new, derive(config.seed, f"splits:{source}"), before, cluster_N=cluster_N)


def _format_sizes(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in rows.items())


def compute_split_sizes(
    config: RowsConfig, files: Mapping[str, Sequence[SourceFile]], taken: Mapping[str, int] = NOTHING
) -> dict[str, int]:
    """Return the rows of each split, in the order of ``SplitsConfig.named``, or raise as :func:`assign`."""
    named = config.splits.named()
    sizes: dict[str, int] = {}
    for source in dict.fromkeys(split.source for split in named.values()):
        sizes |= make_assignment(config, source, files[source], taken).counts
    return {name: sizes[name] for name in named}
