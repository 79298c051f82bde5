"""Order statistics that hold no score equal those of the sorted scores, and so do the cuts that are made of them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from curation.selection import order
from curation.selection.order import Sorted, Streamed
from curation.selection.risk import calibrate, compute_risk_curve
from curation.selection.risk.rules import Kind, Rule


def streamed(score_N: np.ndarray, num_parts: int) -> Streamed:
    """The scores in parts of two batches each."""

    def mapped(function: Callable[[Iterable[order.Batch]], Any]) -> Iterator[Any]:
        for part in np.array_split(np.arange(len(score_N)), num_parts):
            yield function((half, score_N[half]) for half in np.array_split(part, 2))

    return Streamed(mapped)


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


@pytest.mark.long
@pytest.mark.parametrize("name", pools())
def test_streamed_order_equals_sorted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "CELLS_A_PASS", 7)  # several passes
    score_N = pools()[name]
    held, read = Sorted(score_N), streamed(score_N, 3)
    assert (read.num_rows, read.num_scored) == (held.num_rows, held.num_scored) == (len(score_N), held.num_scored)
    ordered = sorted(score_N[score_N > -np.inf].tolist(), reverse=True)
    ranks = np.random.default_rng(0).permutation(np.arange(1, held.num_scored + 1))
    assert read.at_ranks(ranks).tolist() == held.at_ranks(ranks).tolist() == [ordered[rank - 1] for rank in ranks]
    asked = [*ordered[::7], -np.inf, np.inf, 0.1]
    for inclusive in (True, False):
        found = [sum(o >= a if inclusive else o > a for o in ordered) for a in asked]
        assert read.num_above(asked, inclusive=inclusive).tolist() == found
        assert held.num_above(asked, inclusive=inclusive).tolist() == found


@pytest.mark.parametrize("kind", Kind.__args__)
@pytest.mark.parametrize("rule", Rule.__args__)
def test_a_cut_is_the_same_without_the_pool_in_memory(rule: Rule, kind: Kind) -> None:
    rng = np.random.default_rng(5)
    correct_M = rng.random(600) < 0.6
    raw_M = np.where(rng.random(600) < 0.1, -np.inf, (rng.normal(size=600) + 2 * correct_M).astype(np.float32))
    for alpha, score_N in ((0.3, pools()["holes"]), (0.3, pools()["ties"]), (0.01, pools()["ties"])):
        given = {"alpha": alpha, "delta": 0.1, "rule": rule, "kind": kind, "seed": 1}
        assert calibrate(raw_M, correct_M, streamed(score_N, 4), **given) == calibrate(
            raw_M, correct_M, score_N, **given
        )
        found, wanted = (
            compute_risk_curve(raw_M, correct_M, pool, **given) for pool in (streamed(score_N, 4), score_N)
        )
        for name, values in vars(wanted).items():
            np.testing.assert_array_equal(getattr(found, name), values)
