"""Order statistics of scores equal those of a plain sort."""

import numpy as np
import pytest

from curation.selection.order import Sorted


def pools() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    drawn = rng.normal(size=4_000).astype(np.float32)
    holes = np.where(rng.random(4_000) < 0.2, np.float32(np.nan), drawn)
    return {
        "distinct": drawn,
        "holes": np.where(rng.random(4_000) < 0.1, np.float32(-np.inf), holes),
        "ties": np.round(holes, 1),
        "one": np.full(50, np.float32(0.25)),
        "near": (1 + np.arange(3_000) * 2**-23).astype(np.float32),
        "ends": np.array([np.inf, -0.0, 0.0, 1e-45, -1e-45, 3e38, -3e38, np.nan], dtype=np.float32),
    }


@pytest.mark.parametrize("name", pools())
def test_order_statistics_are_those_of_a_plain_sort(name: str) -> None:
    score_N = pools()[name]
    held, ordered = Sorted(score_N), sorted(score_N[score_N > -np.inf].tolist(), reverse=True)
    assert (held.num_rows, held.num_scored) == (len(score_N), len(ordered))
    ranks = np.random.default_rng(0).permutation(np.arange(1, held.num_scored + 1))
    assert held.at_ranks(ranks).tolist() == [ordered[rank - 1] for rank in ranks]
    asked = [*ordered[::7], -np.inf, np.inf, 0.1]
    for inclusive in (True, False):
        found = [sum(o >= a if inclusive else o > a for o in ordered) for a in asked]
        assert held.num_above(asked, inclusive=inclusive).tolist() == found
