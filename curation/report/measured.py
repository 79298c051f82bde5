"""Sets of graded rows, the input of the report's numbers: rows in memory, or counts (``curation.report.pool_grid``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from curation import metrics
from curation.arrays import Float64s, Int64s
from curation.hashing import hash_unit
from curation.metrics import CONFIDENCE, Estimate
from curation.report.rows import LOWEST, Judged, rank_for_arm


class Cells(NamedTuple):
    """Counts of ranked graded rows by cell, the best cell first."""

    counts_2G: Int64s
    """Numbers of wrong and right rows, [2, G]."""
    cluster_G: Int64s | None = None
    """Cluster of each cell, if each cell is one row (``splits.group``)."""

    def purities(self, points: Sequence[int], confidence: float = CONFIDENCE) -> list[Estimate]:
        """Return the share of right rows among the first n rows, for each n of ``points``."""
        return metrics.compute_cell_purity(self.counts_2G, points, cluster_G=self.cluster_G, confidence=confidence)


class View(Protocol):
    """A view of graded rows: only the parsed ones, or all with unparsed ones last."""

    @property
    def functions(self) -> Sequence[str]:
        """The trust functions with scores."""
        ...

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def of(self, function: str) -> Judged:
        """Return the rows with a function's scores; an entry may represent several rows (``Judged.weight_N``)."""
        ...

    def ranked(self, arm: str) -> Cells:
        """Return the rows by an arm's preference, its selected rows first, by rank."""
        ...

    def by_score(self, function: str) -> Cells:
        """Return the rows by score, the highest first."""
        ...


class GradedSet(Protocol):
    """The graded rows of a split."""

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    @property
    def share_right(self) -> Estimate:
        """The share of right labels; NaN if there are no rows."""
        ...

    @property
    def parsed(self) -> View:
        """The rows whose label could be read; only these can be selected by trust."""
        ...

    @property
    def all(self) -> View:
        """All rows; unparsed ones have the lowest score and trust 0, as in selection."""
        ...

    def ranked(self, arm: str) -> Cells:
        """Return all rows by an arm's preference, its selected rows first."""
        ...

    def among_selected(self, arm: str) -> Estimate:
        """Return the share of right labels of an arm's graded rows; NaN for none."""
        ...

    def above(self, function: str, threshold_G: Float64s, out_M: Int64s) -> Int64s:
        """Count wrong and right rows at or above each of ascending thresholds of the raw score, int64 [2, G].

        Unparsed rows and the row ids ``out_M`` are left out.
        """
        ...

    @property
    def sample(self) -> Judged:
        """All rows, or a sample of about ``curation.report.pool_grid.SAMPLE_ROWS`` rows of a large pool."""
        ...

    def raw(self, function: str) -> Float64s:
        """Return the raw scores of the parsed rows of ``sample``, float64 [N]."""
        ...


@dataclass(frozen=True, kw_only=True)
class InMemory:
    """Graded rows in memory; ``selected`` has the row ids, by rank, of each arm that selected from these rows."""

    judged: Judged
    selected: Mapping[str, Int64s]
    seed: int

    def __len__(self) -> int:
        return len(self.judged)

    @property
    def share_right(self) -> Estimate:
        """The share of right labels; NaN if there are no rows."""
        return self.judged.share_right()

    @property
    def parsed(self) -> "InMemoryView":
        """The rows whose label could be read; only these can be selected by trust."""
        return InMemoryView(self.judged.readable, self.selected, self.seed)

    @property
    def all(self) -> "InMemoryView":
        """All rows; unparsed ones have the lowest score and trust 0, as in selection."""
        return InMemoryView(self.judged.unparsed_last, self.selected, self.seed)

    def ranked(self, arm: str) -> Cells:
        """Return all rows by an arm's preference, its selected rows first."""
        return InMemoryView(self.judged, self.selected, self.seed).ranked(arm)

    def among_selected(self, arm: str) -> Estimate:
        """Return the share of right labels of an arm's graded rows; NaN for none."""
        return self.judged.subset(np.isin(self.judged.row_ids_N, self.selected[arm])).share_right()

    def above(self, function: str, threshold_G: Float64s, out_M: Int64s) -> Int64s:
        """Count wrong and right rows at or above each of ascending thresholds of the raw score, int64 [2, G]."""
        rows = self.judged
        raw_N = rows.scores[function].raw_N
        may_N = rows.parsed_N & (raw_N > LOWEST) & ~np.isin(rows.row_ids_N, out_M)
        kept_2 = (np.sort(raw_N[may_N & right_N]) for right_N in (~rows.correct_N, rows.correct_N))
        return np.stack([len(kept) - np.searchsorted(kept, threshold_G, side="left") for kept in kept_2])

    @property
    def sample(self) -> Judged:
        """All rows."""
        return self.judged

    def raw(self, function: str) -> Float64s:
        """Return the raw scores of the parsed rows of ``sample``, float64 [N]."""
        found: Float64s = self.judged.scores[function].raw_N[self.judged.parsed_N]
        return found


@dataclass(frozen=True)
class InMemoryView:
    """A view of rows in memory, in which each row is a cell."""

    judged: Judged
    selected: Mapping[str, Int64s]
    seed: int

    @property
    def functions(self) -> list[str]:
        """The trust functions with scores."""
        return [*self.judged.scores]

    def __len__(self) -> int:
        return len(self.judged)

    def of(self, function: str) -> Judged:
        """Return all rows; they have every function's scores."""
        return self.judged

    def ranked(self, arm: str) -> Cells:
        """Return the rows by an arm's preference, its selected rows first, by rank."""
        order = rank_for_arm(self.judged, arm, self.selected.get(arm, np.zeros(0, dtype=np.int64)), self.seed)
        return self._make_cells(order)

    def by_score(self, function: str) -> Cells:
        """Return the rows by score, the highest first."""
        draw_N = hash_unit(self.judged.row_ids_N, self.seed)
        return self._make_cells(np.lexsort((draw_N, -self.judged.scores[function].raw_N)))

    def _make_cells(self, order: Int64s) -> Cells:
        right_N, cluster_N = self.judged.correct_N[order], self.judged.cluster_N
        return Cells(np.stack([~right_N, right_N]).astype(np.int64), None if cluster_N is None else cluster_N[order])
