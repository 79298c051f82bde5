"""Deals of a bench's rows, what trust above .9 promises over them, and other ways to calibrate a stack."""

import numpy as np
import pytest
import torch
from scipy.special import expit
from scipy.stats import bootstrap

from benchmarks.real.promises import Sure, dealt, summed
from curation.config import TrustConfig
from curation.trust.parts import FIT
from train.stack import fit_stacked
from train.trust_loop import LabelledRows

pytestmark = pytest.mark.long

bench = pytest.importorskip("benchmarks.real.calibrations")
STATES = ("prompt_last", "output_last")


def drawn(num_rows: int, seed: int) -> LabelledRows:
    """Rows whose states and one of two numbers tell, with noise, whether they are right."""
    rng = np.random.default_rng(seed)
    hidden_ND, numbers_NK = rng.standard_normal((num_rows, 12)), rng.standard_normal((num_rows, 2))
    return LabelledRows(
        hidden_ND=hidden_ND.astype(np.float16),
        correct_N=rng.random(num_rows) < expit(2 * hidden_ND[:, 0] + 2 * numbers_NK[:, 0]),
        part_N=np.full(num_rows, FIT, dtype=np.int8),
        sizes=(6, 6),
        row_ids_N=np.arange(num_rows),
        numbers_NK=numbers_NK,
        numbers=("mean_logprob", "margin"),
    )


def test_a_deal_has_every_row_once_and_another_deal_has_others() -> None:
    source, pool = drawn(60, 0), drawn(40, 1)
    deals = list(dealt(source, pool, deals=2, labelled=30))
    for _, given, rest in deals:
        assert len(given.correct_N) == 30
        np.testing.assert_array_equal(np.sort([*given.row_ids_N, *rest.row_ids_N]), np.arange(100))
        both = np.concatenate([source.numbers_NK, pool.numbers_NK])
        np.testing.assert_array_equal(rest.numbers_NK, both[rest.row_ids_N])
    assert set(deals[0][1].row_ids_N) != set(deals[1][1].row_ids_N)


def test_the_promise_by_deals_and_by_rows() -> None:
    deals = [Sure(2, 1.9, 2), Sure(100, 95.0, 90), Sure(0, 0.0, 0), Sure(98, 93.1, 90)]
    found = summed(deals)
    gaps = np.array([-0.05, 0.05, 3.1 / 98])
    assert found["rows"] == 50 and found["mean"] == pytest.approx(gaps.mean())
    assert found["error"] == pytest.approx(gaps.std(ddof=1) / 3**0.5)
    assert found["of_rows"] == pytest.approx((190.0 - 182) / 200)
    assert summed(deals[:1]) == {"rows": 2.0}  # one deal has no interval

    rng = np.random.default_rng(0)
    many = [Sure(int(num), 0.95 * num, int(rng.binomial(num, 0.93))) for num in rng.integers(50, 150, 40)]
    num_D, promised_D, right_D = map(np.array, zip(*many, strict=True))

    def ratio(places: np.ndarray) -> float:
        return (promised_D - right_D)[places].sum() / num_D[places].sum()

    peer = bootstrap((np.arange(40),), ratio, vectorized=False, rng=0).standard_error
    assert summed(many)["of_rows_error"] == pytest.approx(peer, rel=0.1)


def test_the_default_way_is_that_of_the_product_and_other_ways_are_measured() -> None:
    source, pool = drawn(600, 0), drawn(3_000, 1)
    source = source._replace(row_ids_N=np.random.default_rng(0).permutation(600))  # as rows of a deal come
    trust = fit_stacked(source, TrustConfig(states=STATES), seed=3, origin={})
    raw_N = trust.raw_with(torch.from_numpy(np.asarray(pool.hidden_ND)), pool.numbers_NK, pool.numbers)
    found = bench.stacked(source, pool, STATES, 3)
    np.testing.assert_allclose(expit(bench.average(found)(found.raw_N)), trust.to_trust(raw_N), atol=2e-3)
    lines = bench.measured("drawn", [found, found])
    assert len(lines) == len(bench.WAYS) and lines[0].startswith("| drawn | none |")
    for way, fit in bench.WAYS.items():
        trust_N = expit(fit(found)(found.raw_N))
        assert way in "".join(lines) and ((trust_N >= 0) & (trust_N <= 1)).all()
        order = np.argsort(found.raw_N)
        assert (np.diff(trust_N[order]) >= -1e-9).all(), way  # none of them turns the order
        assert abs(trust_N.mean() - found.correct_N.mean()) < 0.05, way
