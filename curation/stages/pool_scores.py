"""The scores of labelled rows under one trust function, read in streams: cuts and counts without holding the pool.

A large table is read by Ray tasks, some fragments each, and their results are merged; a smaller one is read in this
process, batch by batch. Ids of selected rows are returned ranked and in parts
(:mod:`curation.selection.external_sort`), so that neither the pool nor the selected rows are held.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from curation.arrays import Int64s
from curation.domains.class_counts import Grouping, find_class_places, is_unseen
from curation.hashing import hash_unit
from curation.json_types import Json
from curation.refs import TableRef
from curation.rundir.graph import In, Inputs
from curation.selection import Candidates, Cut
from curation.selection.bound import Bound, find_exact_bound, merge_counts, tally
from curation.selection.capped import Cap, Capped, Labels, walk_batches, walk_parts
from curation.selection.class_shares import ClassScores, ClassShares
from curation.selection.external_sort import iter_ranked
from curation.selection.order import Streamed
from curation.stages.rows import NO_IDS, read_sorted_ids
from curation.tables import io, scans
from curation.tables.row_ids import find_missing_ids
from curation.trust import Scores, get_trust

SAMPLE_ROWS = 1 << 20
"""Number of rows from which candidate cuts are taken, if no rule needs all rows."""
LAST = np.float32(-1e38)
"""The upper bound of the raw scores of rows that rank below all others."""
Batch = tuple[Int64s, Scores]
"""Row ids and scores [B]; NaN for a row that is never selected."""
Result = TypeVar("Result")
Reader = Callable[[Int64s, pa.Array], Labels]
"""Function that returns the groups of some rows, given their ids and weak labels."""


class Groups(NamedTuple):
    """Groups of rows, and how many rows of each an arm may take."""

    make_reader: Callable[[], Reader]
    """Function that each task calls once; pickled."""
    most: Cap


@dataclass(frozen=True, kw_only=True)
class PoolScores:
    """The scores of rows labelled without error that no gate dropped; pickled to every task."""

    labels: TableRef
    further: tuple[TableRef, ...] = ()
    trust: str
    seed: int = 0
    parsed: bool = True
    """Whether rows whose label could not be read are never selected."""
    too_long: TableRef | None = None
    repeats: TableRef | None = None
    """Repeated rows (schema ``schemas.REPEATS``), of which only the best row of each question may be selected."""
    left_out: tuple[TableRef, ...] = ()
    only: BitMap64 | None = None
    unread_last: bool = False
    """Whether rows whose signal could not be read rank last; otherwise they are never selected."""
    seen: tuple[str, ...] | None = None
    """Seen labels; rows with another label rank last, with a trust of 0. If None, no label is unseen."""

    @cached_property
    def num_rows(self) -> int:
        """The number of labelled rows, including those that are never selected."""
        return sum(io.count(ref, filter=io.make_answered_filter(ref)) for ref in (self.labels, *self.further))

    @cached_property
    def copies_M(self) -> Int64s:
        """Ids of rows whose question a better row or an equal, earlier one asks, ascending; 60 bytes a repeated row."""
        if self.repeats is None:
            return NO_IDS
        table, all_rows = io.read(self.repeats), replace(self, repeats=None)
        row_id_R, question_R = (table[name].to_numpy() for name in ("row_id", "question"))

        def find_repeated(batch: Batch) -> Batch:
            place_B = np.minimum(np.searchsorted(row_id_R, batch[0]), len(row_id_R) - 1)
            among_B = row_id_R[place_B] == batch[0]
            return batch[0][among_B], batch[1][among_B]

        found = all_rows.map_batches(lambda batches: _stack_batches(map(find_repeated, batches)))
        ids, scores = zip(*found, strict=True)
        ids_R, score_R = np.concatenate(ids), np.nan_to_num(np.concatenate(scores), nan=-np.inf)
        question_R = question_R[np.searchsorted(row_id_R, ids_R)]
        order_R = np.lexsort((ids_R, -score_R, question_R))
        behind_R = np.append(False, question_R[order_R][1:] == question_R[order_R][:-1])
        return np.sort(ids_R[order_R][behind_R])

    def _iter_scored(
        self, fragments: Sequence[int] | None, also: Sequence[str] = (), *, trust: bool = False
    ) -> Iterator[tuple[pa.RecordBatch, Int64s, Scores]]:
        """Yield batches in the table's order, of ``fragments`` or of all, with their row ids and scores.

        Batches have the columns that the function reads, and those of ``also``. Scores are raw, or ``trust`` in [0, 1].
        """
        function = get_trust(self.trust, self.seed, unread_last=self.unread_last)
        present = io.open_table(self.labels).schema.names
        also = also if self.seen is None else (*also, "label")
        columns = {name: f"`{name}`" for name in ("row_id", *function.features, *also) if name in present}
        if self.parsed:
            columns["is parsed"] = "label IS NOT NULL"
        out_M = np.unique(np.concatenate([self.copies_M, *map(read_sorted_ids, (self.too_long, *self.left_out))]))
        for batch in scans.iter_table_batches(self.labels, columns, io.make_answered_filter(self.labels), fragments):
            ids_B = batch.column("row_id").to_numpy()
            score_B = function.score(batch) if trust else function.raw_score(batch)
            if self.seen is not None:
                is_last_B = is_unseen(batch.column("label"), self.seen) & ~np.isnan(score_B)
                # in the same order, below all other scores
                below_B = 0 if trust else LAST * (1.5 - np.arctan(score_B.astype(np.float64)) / np.pi)
                score_B = np.where(is_last_B, below_B, score_B).astype(score_B.dtype)
            never_B = np.zeros(len(ids_B), dtype=np.bool_)
            if self.parsed:
                never_B |= ~batch.column("is parsed").to_numpy(zero_copy_only=False)
            if len(out_M):
                never_B |= out_M[np.minimum(np.searchsorted(out_M, ids_B), len(out_M) - 1)] == ids_B
            if self.only is not None:
                never_B |= find_missing_ids(ids_B, self.only)
            yield batch, ids_B, np.where(never_B, np.float32(np.nan), score_B)

    def _map_tables(self, function: Callable[["PoolScores", Sequence[int] | None], Result]) -> Iterator[Result]:
        """Call a function with each table's scores: once or, for a large table, once per Ray task on some fragments."""
        _ = self.copies_M  # found once, here, and not by every task
        for scores in self._by_table:
            yield from scans.map_fragments(scores.labels, partial(function, scores))

    @property
    def _by_table(self) -> list["PoolScores"]:
        return [self, *(replace(self, labels=ref, further=()) for ref in self.further)]

    def map_batches(self, function: Callable[[Iterable[Batch]], Result], *, trust: bool = False) -> Iterator[Result]:
        """Return results of ``function`` for all batches of a table or, if it is large, for those of each Ray task."""

        def of(scores: PoolScores, fragments: Sequence[int] | None) -> Result:
            return function((ids_B, score_B) for _, ids_B, score_B in scores._iter_scored(fragments, trust=trust))

        return self._map_tables(of)

    def bound(self, n: int, seed: int) -> Bound:
        """Return the bound of the n highest raw scores; raise ``BudgetError`` if fewer rows have a score, or n < 1."""
        return find_exact_bound(lambda asked: merge_counts(self.map_batches(partial(tally, asked))), n, seed)

    def top(self, n: int, seed: int) -> Cut:
        """Return the n rows with the highest raw scores in rank order, as ``TopN`` cuts them; see :meth:`bound`."""
        bound = self.bound(n, seed)
        return Cut(row_ids_n=np.concatenate([*self.ranked(bound)]), threshold=bound.score)

    def ranked(self, bound: Bound) -> Iterator[Int64s]:
        """Return the ids of rows that pass a bound, best first, in parts (:mod:`curation.selection.external_sort`)."""
        _ = self.copies_M

        def iter_passing(scores: PoolScores, fragments: Sequence[int] | None) -> Iterator[Batch]:
            for _, ids_B, raw_B in scores._iter_scored(fragments):
                place_M = np.flatnonzero(bound.passes(ids_B, raw_B))
                if len(place_M):
                    yield ids_B[place_M], raw_B[place_M]

        parts = (scans.stream_fragments(scores.labels, partial(iter_passing, scores)) for scores in self._by_table)
        return iter_ranked(chain.from_iterable(parts), bound.seed)

    def grouped(self, groups: Groups, n: int, seed: int) -> Capped:
        """Return the n best rows that the limits of ``groups`` leave, or fewer (:mod:`curation.selection.capped`)."""

        def of(scores: PoolScores, fragments: Sequence[int] | None) -> Capped:
            read = groups.make_reader()

            def at(ids_B: Int64s, weak_B: pa.Array, place_M: Int64s) -> Labels:
                return read(ids_B[place_M], weak_B.take(pa.array(place_M)))

            keyed = (
                (ids_B, score_B, partial(at, ids_B, batch.column("label")))
                for batch, ids_B, score_B in scores._iter_scored(fragments, ("label",))
            )
            return walk_batches(keyed, n, groups.most, seed)

        return walk_parts(self._map_tables(of), n, groups.most)

    def sizes(self, classes: Grouping) -> tuple[Int64s, int]:
        """Return the number of rows of each class that may be selected, int64 [C], and the number of all rows."""

        def count(weak_B: pa.Array, _: Int64s, score_B: Scores) -> tuple[Int64s, int]:
            may_B = score_B > -np.inf  # false for NaN, too
            return np.bincount(find_class_places(weak_B, classes)[may_B], minlength=len(classes) + 1), len(score_B)

        parts = [(np.zeros(len(classes) + 1, dtype=np.int64), 0), *self._map_labelled(count)]
        return np.sum([size_C for size_C, _ in parts], axis=0)[:-1], sum(num_rows for _, num_rows in parts)

    def sample_of(self, classes: Sequence[str], seed: int) -> ClassScores:
        """Return raw scores and classes of all rows, or of about ``SAMPLE_ROWS`` rows drawn by a hash of the id."""
        total = self.num_rows

        def draw(weak_B: pa.Array, ids_B: Int64s, score_B: Scores) -> ClassScores:
            is_drawn_B = hash_unit(ids_B, seed) * total < SAMPLE_ROWS
            return ClassScores(score_N=score_B[is_drawn_B], class_N=find_class_places(weak_B, classes)[is_drawn_B])

        nothing = ClassScores(score_N=np.zeros(0, dtype=np.float32), class_N=NO_IDS)
        return ClassScores.joined([nothing, *self._map_labelled(draw)])

    def num_above_by_class(self, classes: Sequence[str], threshold_C: npt.NDArray[np.float64]) -> Int64s:
        """Return the number of rows of each class that may be selected and reach its threshold, int64 [C]."""
        threshold_T = np.append(threshold_C, np.inf)

        def count(weak_B: pa.Array, _: Int64s, score_B: Scores) -> Int64s:
            class_B = find_class_places(weak_B, classes)
            return np.bincount(class_B[score_B >= threshold_T[class_B]], minlength=len(threshold_T))

        total_T: Int64s = np.sum([np.zeros(len(threshold_T), dtype=np.int64), *self._map_labelled(count)], axis=0)
        return total_T[:-1]

    def _map_labelled(self, function: Callable[[pa.Array, Int64s, Scores], Result]) -> Iterator[Result]:
        """Yield the values of a function of the weak labels, row ids and scores of each batch."""

        def of(scores: PoolScores, fragments: Sequence[int] | None) -> list[Result]:
            batches = scores._iter_scored(fragments, ("label",))
            return [function(batch.column("label"), ids_B, score_B) for batch, ids_B, score_B in batches]

        return chain.from_iterable(self._map_tables(of))

    def candidates(self) -> Candidates:
        """Return all rows, for rules that need them at once; takes 12 bytes per pool row, and briefly twice that."""
        ids_N, raw_N = _stack_batches(self.map_batches(_stack_batches))
        return Candidates(row_ids_N=ids_N, raw_score_N=raw_N)

    def trust_of_all(self) -> Scores:
        """Return the trust of all rows, in the order of :meth:`candidates`, float32 [N]."""
        return np.concatenate([scores for _, scores in self.map_batches(_stack_batches, trust=True)])

    def ordered(self, floor: float | None = None) -> Streamed:
        """Return the raw scores, from a ``floor`` on, as order statistics: one pass now, and one per query."""
        if floor is None:
            return Streamed(self.map_batches)

        def keep_above(batches: Iterable[Batch]) -> Iterator[Batch]:
            return ((ids_B[raw_B >= floor], raw_B[raw_B >= floor]) for ids_B, raw_B in batches)

        return Streamed(lambda function: self.map_batches(lambda batches: function(keep_above(batches))))

    @property
    def num_scored(self) -> int:
        """The number of rows that may be selected."""
        return sum(self.map_batches(partial(_count_at_least, float(np.finfo(np.float32).min))))

    def num_trusted(self, threshold: float) -> int:
        """Return the number of rows that may be selected and have at least this trust."""
        return sum(self.map_batches(partial(_count_at_least, threshold), trust=True))


def _count_at_least(threshold: float, batches: Iterable[Batch]) -> int:
    return sum(int((score_B >= threshold).sum()) for _, score_B in batches)


def _stack_batches(batches: Iterable[Batch]) -> Batch:
    """Return all batches as one pair of arrays, copied so that no batch is kept for a few of its rows."""
    ids, scores = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.float32)]
    for ids_B, score_B in batches:
        ids.append(ids_B.copy())
        scores.append(score_B)
    return np.concatenate(ids), np.concatenate(scores)


class ScoredSplit(Inputs):
    """A split's labels with scores and signals, and its grades if gold labels are known."""

    labels: In[TableRef]
    grades: In[TableRef | None]
    too_long: In[TableRef | None] = None  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class ComputedBudget:
    """The number of rows, and how it was determined."""

    n: int
    """The number of rows to select; 0 only if no risk-controlled threshold could be certified."""
    rule: str
    reference: str
    """The arm whose scores the rule reads, if it reads any."""
    oracle: bool
    threshold: float | None = None
    """Minimum raw score of the reference arm with which a row passes."""
    risk: Json | None = None
    """The configuration and the result of the calibration (``curation.selection.risk.RiskCut``)."""
    is_cut: bool = False
    """Whether all n rows pass a threshold of the reference arm."""
    asked: int | None = None
    """The n of the rule if divisions leave fewer rows, else None."""
    limited_by: str | None = None
    """The arm with the fewest rows left, if that arm sets n."""
    shares: ClassShares | None = None
    """Shares of the classes among the rows, if each class has a cut of its own."""
    divided: Mapping[str, Any] = field(default_factory=dict)
    """The value of each division of an arm's rows (a number, shares), by feature."""

    def to_json(self) -> Json:
        """Return the budget as it is recorded: the divisions stand beside the other fields, by feature."""
        found = dict(vars(self))
        del found["shares"]
        return found | dict(found.pop("divided"))
