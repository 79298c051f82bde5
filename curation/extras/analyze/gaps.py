"""Advantage gaps: an engine's values of weak moves that differ from gold (paper, section "Mechanisms", finding 2).

The advantage gap of a row is the gold move's value minus the chosen move's: if it is below zero, the weak label is the
stronger move. Our choices, where the paper gives none: a winning mate is worth 10,000 centipawns in any number of moves
(a mate in two is not better than a mate in three), and being mated -10,000; means and the histogram clip gaps at
10 pawns, so that one mate does not outweigh all other rows; shares are of unclipped gaps.
"""

import numpy as np

from curation.arrays import Floats, Int64s
from curation.json_types import JsonView
from curation.metrics.estimates import average_over_seeds, compute_proportion

MATE = 10_000
"""Value of a mate, in centipawns."""
CUT = 1_000
"""Value at which means and the histogram clip gaps, in centipawns."""
BIN = 100
"""Width of a bin of the histogram, in centipawns."""


def to_centipawns(centipawns_N: Floats, mate_N: Floats) -> Int64s:
    """Return the value of each move in centipawns, int64 [N]; exactly one of the two inputs is NaN for each move.

    ``mate_N``: moves until mate, negative if the mover is mated, 0 if the move itself is mate.
    """
    is_mate_N = ~np.isnan(mate_N)
    decided_N = np.where(mate_N >= 0, MATE, -MATE)
    value_N: Int64s = np.where(is_mate_N, decided_N, np.nan_to_num(centipawns_N)).astype(np.int64)
    return np.clip(value_N, -MATE, MATE)


def compare_moves(gold_N: Int64s, chosen_N: Int64s, *, equal_within: int) -> JsonView:
    """Return statistics of the gaps of rows as JSON: shares with exact intervals, mean, median and histogram.

    ``gold_N``, ``chosen_N``: centipawns by :func:`to_centipawns`. ``stronger`` is the paper's "optimal alternatives",
    any gap below 0; ``equal_or_stronger`` is a gap of at most ``equal_within``; ``winning_mates`` are chosen moves that
    force mate or are mate.
    """
    gap_N, n = gold_N - chosen_N, len(gold_N)
    cut_N = np.clip(gap_N, -CUT, CUT)
    edges = np.arange(-CUT, CUT + BIN, BIN)
    counts, _ = np.histogram(cut_N, edges)
    shares = {
        "stronger": gap_N < 0,
        "equal": np.abs(gap_N) <= equal_within,
        "equal_or_stronger": gap_N <= equal_within,
        "winning_mates": chosen_N == MATE,
        "gold_winning_mates": gold_N == MATE,
    }
    return {
        "n": n,
        **{
            name: compute_proportion(int(flags_N.sum()), n).to_json() if n else None for name, flags_N in shares.items()
        },
        "mean_gap": average_over_seeds(cut_N.tolist()).to_json() if n else None,
        "median_gap": float(np.median(gap_N)) if n else None,
        "edges": edges.tolist(),
        "counts": counts.tolist(),
    }
