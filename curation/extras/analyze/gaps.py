"""Better than gold: what weak labels that differ from gold are worth, by an engine (paper, "Mechanisms", finding 2).

The advantage gap of a row is the gold move's value minus the chosen move's: below zero, the weak label is the stronger
move. The paper leaves open, and we chose: the value of a winning mate is 10,000 centipawns however many moves it takes
(a mate in two is not better than a mate in three), that of being mated -10,000; means and the histogram cut gaps at
10 pawns, so that one mate does not outweigh all other rows; shares are of the gaps as they are.
"""

import numpy as np

from curation.arrays import Floats, Int64s
from curation.json_types import JsonView
from curation.metrics.estimates import average_over_seeds, compute_proportion

MATE = 10_000
"""Centipawns of a mate."""
CUT = 1_000
"""Centipawns at which gaps are cut in means and in the histogram."""
BIN = 100
"""Centipawns of a bin of the histogram."""


def to_centipawns(centipawns_N: Floats, mate_N: Floats) -> Int64s:
    """Return the value of each move in centipawns, int64 [N]; of both columns one is NaN.

    ``mate_N``: moves until mate, negative where the mover is mated, 0 where the move itself is mate.
    """
    is_mate_N = ~np.isnan(mate_N)
    decided_N = np.where(mate_N >= 0, MATE, -MATE)
    value_N: Int64s = np.where(is_mate_N, decided_N, np.nan_to_num(centipawns_N)).astype(np.int64)
    return np.clip(value_N, -MATE, MATE)


def compare_moves(gold_N: Int64s, chosen_N: Int64s, *, equal_within: int) -> JsonView:
    """Return gaps of rows whose weak label differs from gold, as JSON: shares with exact intervals, mean and histogram.

    ``gold_N``, ``chosen_N``: centipawns by :func:`to_centipawns`. ``stronger`` is the paper's "optimal alternatives",
    any gap below 0; ``equal_or_stronger`` a gap of at most ``equal_within``; ``winning_mates`` chosen moves that force
    mate or are mate.
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
