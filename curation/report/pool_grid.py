"""The graded rows of a large pool, counted on a grid of scores in one streamed pass, without holding rows in memory.

The grid has a cell for each value of the first 18 bits of a float32 score (sign, exponent, 9 bits of the fraction), so
scores of one cell differ by less than 0.2 %. Counts of rows, of right rows and of selected rows are exact. The rows of
a cell share their mean trust and one rank; right rows are assumed to be spread evenly within a cell, and within the
rows that a uniform arm leaves. ``OnGrid.describe`` bounds the effect on an AUC. A large table is read in Ray tasks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from curation.arms import ARMS, is_free
from curation.arrays import Bools, Float64s, Int64s
from curation.hashing import hash_unit
from curation.json_types import Json
from curation.metrics import Estimate, compute_proportion, compute_share_right
from curation.refs import TableRef
from curation.report.rows import LOWEST, Cells, FunctionScores, InMemory, Judged, fill_scores
from curation.selection.score_keys import from_score_keys, to_score_keys
from curation.tables import io, scans
from curation.tables.row_ids import find_missing_ids, include, make_bitmap
from curation.trust import Scores, TrustFunction, get_trust

CELL_BITS = 18
NUM_CELLS = 1 << CELL_BITS
SAMPLE, SAMPLE_ROWS = "report sample", 1 << 20
"""Purpose of the seed and approximate size of the sample, drawn by a hash of the row id, for numbers that need single
rows of the pool."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GridCounts:
    """Counts of a pass over some rows; an axis of length 2 is indexed by no and yes."""

    rows_22: Int64s
    """Number of rows, by whether they are parsed and whether they are right."""
    cells: Mapping[str, Int64s]
    """Number of parsed rows for each trust function, [selected by its own arm, right, cell]."""
    trust: Mapping[str, Float64s]
    """Sum of the parsed rows' trust for each trust function, [right, cell]."""
    sample: pa.Table
    """Sampled rows: ``row_id``, ``parsed``, ``correct``, and a raw score for each trust function."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GridTables:
    """The input of a pass, which is pickled to every task."""

    labels: TableRef
    graded: BitMap64
    right: BitMap64
    functions: Sequence[str]
    """Trust functions whose columns the labels have."""
    selected: Mapping[str, BitMap64]
    """Rows that the own arm of a trust function selected, by function."""
    arms: Sequence[str]
    """Trust functions that are measured even if they are constant."""
    sample_share: float
    seed: int

    def batches(
        self, functions: Sequence[str], fragments: Sequence[int] | None
    ) -> Iterator[tuple[Int64s, Bools, Bools, pa.RecordBatch]]:
        """Yield batches of graded rows: ids, whether parsed, whether right, and the columns that functions read."""
        features = {feature for name in functions for feature in get_trust(name, 0).features}
        columns = {name: f"`{name}`" for name in sorted({"row_id", *features})} | {"is parsed": "label IS NOT NULL"}
        for batch in scans.iter_table_batches(self.labels, columns, io.make_answered_filter(self.labels), fragments):
            kept = batch.filter(pa.array(~find_missing_ids(batch.column("row_id").to_numpy(), self.graded)))
            ids_B = kept.column("row_id").to_numpy()
            parsed_B = kept.column("is parsed").to_numpy(zero_copy_only=False)
            yield ids_B, parsed_B, ~find_missing_ids(ids_B, self.right), kept

    def count(self, fragments: Sequence[int] | None) -> GridCounts:
        """Return the counts of a pass over the rows of some fragments, or of all."""
        rows_22 = np.zeros((2, 2), dtype=np.int64)
        cells = {name: np.zeros((2, 2, NUM_CELLS), dtype=np.int64) for name in self.functions}
        trust = {name: np.zeros((2, NUM_CELLS)) for name in self.functions}
        sample = [_sample(self.functions).empty_table()]
        for ids_B, parsed_B, right_B, batch in self.batches(self.functions, fragments):
            rows_22 += np.bincount(2 * parsed_B + right_B, minlength=4).reshape(2, 2)
            drawn_B = hash_unit(ids_B, self.seed) < self.sample_share
            arrays = [pa.array(of_B[drawn_B]) for of_B in (ids_B, parsed_B, right_B)]
            drawn = batch.filter(pa.array(drawn_B))
            raws = [pa.array(get_trust(name, 0).raw_score(drawn).astype(np.float32)) for name in self.functions]
            sample.append(pa.table([*arrays, *raws], schema=_sample(self.functions)))
            batch, ids_P, right_P = batch.filter(pa.array(parsed_B)), ids_B[parsed_B], right_B[parsed_B]
            for name in self.functions:
                function = get_trust(name, 0)
                own_P = np.zeros(len(ids_P), dtype=np.bool_)
                if name in self.selected:
                    own_P = ~find_missing_ids(ids_P, self.selected[name])
                cell_P = find_cells(function.raw_score(batch)) + NUM_CELLS * right_P
                trust_P = np.nan_to_num(function.score(batch).astype(np.float64), nan=0.0)
                cells[name] += np.bincount(cell_P + 2 * NUM_CELLS * own_P, minlength=4 * NUM_CELLS).reshape(2, 2, -1)
                trust[name] += np.bincount(cell_P, trust_P, minlength=2 * NUM_CELLS).reshape(2, -1)
        return GridCounts(rows_22=rows_22, cells=cells, trust=trust, sample=pa.concat_tables(sample))

    def above(self, function: str, threshold_G: Float64s, out_M: Int64s, fragments: Sequence[int] | None) -> Int64s:
        """Count wrong and right rows of some fragments at or above each of ascending thresholds, int64 [2, G]."""
        found = np.zeros((2, len(threshold_G) + 1), dtype=np.int64)
        trust: TrustFunction = get_trust(function, 0)
        for ids_B, parsed_B, right_B, batch in self.batches([function], fragments):
            raw_B = fill_scores(trust.raw_score(batch))
            may_B = parsed_B & (raw_B > LOWEST) & ~np.isin(ids_B, out_M)
            place_M = np.searchsorted(threshold_G, raw_B[may_B], side="right")
            size = found.shape[1]
            found += np.bincount(place_M + size * right_B[may_B], minlength=2 * size).reshape(2, size)
        return np.asarray(np.cumsum(found[:, ::-1], axis=1)[:, ::-1][:, 1:])


_FACTS = [("row_id", pa.int64()), ("parsed", pa.bool_()), ("correct", pa.bool_())]


def _sample(functions: Sequence[str]) -> pa.Schema:
    return pa.schema([*_FACTS, *((f"raw {name}", pa.float32()) for name in functions)])


@dataclass(frozen=True, kw_only=True, eq=False)
class OnGrid:
    """A graded pool as counts, with the interface of ``curation.report.rows.InMemory``."""

    source: GridTables
    counts: GridCounts
    selected: Mapping[str, Int64s]
    """Codes of the graded rows that an arm selected, by rank: 2 for a parsed row, plus 1 for a right one."""
    with_unparsed: bool = True
    """Whether unparsed rows belong to the ranked ones and the entries, as the last."""

    def __len__(self) -> int:
        return int(self.counts.rows_22[0 if self.with_unparsed else 1 :].sum())

    @property
    def share_right(self) -> Estimate:
        """The share of right labels; rows count as independent, since the grid has no clusters."""
        return compute_proportion(int(self.counts.rows_22[:, 1].sum()), int(self.counts.rows_22.sum()))

    @property
    def parsed(self) -> "OnGrid":
        """The rows whose label could be read."""
        return replace(self, with_unparsed=False)

    @property
    def all(self) -> "OnGrid":
        """All rows, unparsed ones last."""
        return self

    @property
    def functions(self) -> list[str]:
        """The trust functions with scores, except free signals that are equal, or null, on all parsed rows."""
        null = int(find_cells(np.array([np.nan], dtype=np.float32))[0])
        found = []
        for name, cells in self.counts.cells.items():
            used = np.flatnonzero(cells.sum(axis=(0, 1)))
            if not is_free(name) or name in self.source.arms or len(used[used != null]) > 1:
                found.append(name)
        return found

    def describe(self) -> Json:
        """Return the sizes, and by function how much the AUC may change because a cell's rows share one rank."""
        found = {}
        for name in self.functions:
            wrong_G, right_G = self.counts.cells[name].sum(axis=0)
            pairs = 2.0 * wrong_G.sum() * right_G.sum()
            found[name] = float((wrong_G.astype(np.float64) * right_G).sum() / pairs) if pairs else 0.0
        return {"rows": len(self), "cells": NUM_CELLS, "auc": found}

    @property
    def sample(self) -> Judged:
        """The sampled rows, ascending by row id, without scores."""
        rows = self.counts.sample.select([name for name, _ in _FACTS]).sort_by("row_id")
        ids_N, parsed_N, correct_N = (rows[name].to_numpy() for name, _ in _FACTS)
        return Judged(row_ids_N=ids_N, correct_N=correct_N, parsed_N=parsed_N, scores={})

    def raw(self, function: str) -> Float64s:
        """Return the raw scores of the parsed rows of ``sample``, float64 [N]."""
        rows = self.counts.sample.select(["row_id", "parsed", f"raw {function}"]).sort_by("row_id")
        return fill_scores(rows[f"raw {function}"].to_numpy()[rows["parsed"].to_numpy()])

    def of(self, function: str) -> Judged:
        """Return the rows as entries, one for the right and one for the wrong rows of each cell."""
        counts_2G, sums_2G = self.counts.cells[function].sum(axis=0), self.counts.trust[function]
        correct, cell = np.nonzero(counts_2G)
        weight, trust = counts_2G[correct, cell], sums_2G[correct, cell] / counts_2G[correct, cell]
        lowest = from_score_keys((cell << 32 - CELL_BITS).astype(np.uint32))  # of each cell
        raw, parsed = lowest.astype(np.float64), np.ones(len(cell), dtype=np.bool_)
        if self.with_unparsed:
            (more,) = np.nonzero(self.counts.rows_22[0])
            correct, weight = np.append(correct, more), np.append(weight, self.counts.rows_22[0][more])
            raw, trust = np.append(raw, np.full(len(more), LOWEST)), np.append(trust, np.zeros(len(more)))
            parsed = np.append(parsed, np.zeros(len(more), dtype=np.bool_))
        return Judged(
            row_ids_N=np.arange(len(correct)),
            correct_N=correct.astype(np.bool_),
            parsed_N=parsed,
            scores={function: FunctionScores(raw_N=raw, trust_N=np.clip(trust, 0, 1))},
            weight_N=weight,
        )

    def ranked(self, arm: str) -> Cells:
        """Return the rows by an arm's preference, its selected rows first."""
        code_M = self.selected.get(arm, np.zeros(0, dtype=np.int64))
        right_M = code_M[(code_M >= 2) | self.with_unparsed] % 2 == 1
        unparsed_2, parsed_2 = self.counts.rows_22 - np.bincount(code_M, minlength=4).reshape(2, 2)
        if arm in self.counts.cells:
            rest = [self.counts.cells[arm][0][:, ::-1], unparsed_2[:, None]]
        elif ARMS[arm].parsed:
            rest = [parsed_2[:, None], unparsed_2[:, None]]
        else:
            rest = [(parsed_2 + unparsed_2)[:, None]]
        first = np.stack([~right_M, right_M]).astype(np.int64)
        return Cells(np.concatenate([first, *(rest if self.with_unparsed else rest[:1])], axis=1))

    def by_score(self, function: str) -> Cells:
        """Return the rows by score, the highest first."""
        cells_2G = self.counts.cells[function].sum(axis=0)[:, ::-1]
        unparsed_2 = self.counts.rows_22[0][:, None]
        return Cells(np.append(cells_2G, unparsed_2, axis=1) if self.with_unparsed else cells_2G)

    def among_selected(self, arm: str) -> Estimate:
        """Return the share of right labels of an arm's graded rows; NaN for none."""
        return compute_share_right(self.selected[arm] % 2 == 1)

    def above(self, function: str, threshold_G: Float64s, out_M: Int64s) -> Int64s:
        """Count, exactly, wrong and right rows at or above each of ascending thresholds of the raw score, [2, G].

        Unparsed rows and the row ids ``out_M`` are left out. The count takes a further pass over the rows.
        """
        count, labels = self.source.above, self.source.labels
        parts = scans.map_fragments(labels, lambda fragments: count(function, threshold_G, out_M, fragments))
        return np.asarray(np.sum([*parts], axis=0))


GradedSet = InMemory | OnGrid
"""The graded rows of a split."""


def place_on_grid(
    labels: TableRef,
    grades: TableRef,
    functions: Sequence[str],
    selected: Mapping[str, pa.Table],
    *,
    arms: Sequence[str],
    num_pool: int,
    seed: int,
) -> OnGrid:
    """Count the graded rows of a pool; ``selected`` has the arms' rows by rank (``rows.read_selected_rows``).

    A free signal that is not among ``arms`` is left out if it is equal on all rows.
    """
    graded, right, present = BitMap64(), BitMap64(), set(io.open_table(labels).schema.names)
    for batch in scans.iter_table_batches(grades, {"row_id": "row_id", "correct": "correct"}, None):
        ids_B, correct_B = batch.column("row_id").to_numpy(), batch.column("correct").to_numpy(zero_copy_only=False)
        include(graded, ids_B)
        include(right, ids_B[correct_B])
    codes = {}
    for arm, table in selected.items():
        ids_M = table["row_id"].to_numpy()
        known_M = ~find_missing_ids(ids_M, graded)
        parsed_M = table["is_parsed"].to_numpy()[known_M]
        codes[arm] = 2 * parsed_M + ~find_missing_ids(ids_M[known_M], right)
    source = GridTables(
        labels=labels,
        graded=graded,
        right=right,
        functions=[name for name in dict.fromkeys(functions) if set(get_trust(name, 0).features) <= present],
        arms=arms,
        selected={arm: make_bitmap(selected[arm]["row_id"].to_numpy()) for arm in functions if arm in selected},
        sample_share=SAMPLE_ROWS / max(num_pool, 1),
        seed=seed,
    )
    parts = [*scans.map_fragments(labels, source.count)]
    counts = GridCounts(
        rows_22=np.sum([part.rows_22 for part in parts], axis=0),
        cells={name: np.sum([part.cells[name] for part in parts], axis=0) for name in source.functions},
        trust={name: np.sum([part.trust[name] for part in parts], axis=0) for name in source.functions},
        sample=pa.concat_tables([part.sample for part in parts]),
    )
    return OnGrid(source=source, counts=counts, selected=codes)


def find_cells(raw_N: Scores) -> Int64s:
    """Return the cell of each raw score, int64 [N]; NaN is below all numbers."""
    filled_N = np.nan_to_num(raw_N.astype(np.float32), nan=LOWEST, posinf=-LOWEST, neginf=LOWEST)
    return (to_score_keys(filled_N) >> 32 - CELL_BITS).astype(np.int64)
