import json
import math

import numpy as np
import pytest
from scipy import stats

from curation.errors import ConfigError, UserError
from curation.extras.first_cut.threshold import (
    HeldOut,
    compute_tolerance_rank,
    describe_first_cut,
    find_first_cut,
)


def held_out(first_M, full_M, prompt=10, output=90):
    num = len(first_M)
    return HeldOut(
        first_M=np.asarray(first_M, dtype=np.float64),
        full_M=np.asarray(full_M, dtype=np.float64),
        prompt_tokens_M=np.full(num, prompt),
        output_tokens_M=np.full(num, output),
    )


def correlated(rng, num, rho):
    first = rng.normal(size=num)
    return first, rho * first + math.sqrt(1 - rho**2) * rng.normal(size=num)


@pytest.mark.parametrize("num_rows", [1, 298, 299, 300, 1000, 5000])
@pytest.mark.parametrize(("loss", "delta"), [(0.01, 0.05), (0.05, 0.1), (0.002, 0.01)])
def test_the_rank_is_the_largest_whose_exact_bound_is_within_the_loss(num_rows, loss, delta):
    rank = compute_tolerance_rank(num_rows, loss, delta)
    found = [
        r
        for r in range(1, math.ceil(loss * num_rows) + 3)
        if r <= num_rows
        and stats.binomtest(r - 1, num_rows).proportion_ci(1 - 2 * delta, method="exact").high <= loss + 1e-12
    ]
    assert rank == max(found, default=0)
    if rank:  # Wilks: the share below the r-th of the order statistics is Beta(r, n - r + 1)
        assert stats.beta.cdf(loss, rank, num_rows - rank + 1) >= 1 - delta
        assert stats.beta.cdf(loss, rank + 1, num_rows - rank) < 1 - delta


# The share of the selected rows of a normal population that a threshold loses, in closed form.


def lost_share(threshold, rho, full_threshold):
    if not np.isfinite(threshold):
        return 0.0
    both = stats.multivariate_normal([0, 0], [[1, -rho], [-rho, 1]])  # of first and -full
    return both.cdf([threshold, -full_threshold]) / stats.norm.sf(full_threshold)


@pytest.mark.parametrize("rho", [0.0, 0.8])
@pytest.mark.parametrize("by", ["share", "threshold"])
def test_the_loss_holds_with_the_stated_confidence_and_little_is_given_away(by, rho):
    keep, loss, confidence, num_runs = 0.2, 0.05, 0.9, 400
    at = stats.norm.isf(keep)
    cut = {"keep": keep} if by == "share" else {"full_threshold": at}
    rng, violations, losses = np.random.default_rng(1), 0, []
    for _ in range(num_runs):
        found = find_first_cut(held_out(*correlated(rng, 1500, rho)), loss=loss, confidence=confidence, **cut)
        losses.append(lost_share(-math.inf if found["limit"] is None else found["limit"], rho, at))
        violations += losses[-1] > loss
    # the number of violations that a rule of this confidence passes with probability 0.999
    assert violations <= stats.binom.ppf(0.999, num_runs, 1 - confidence)
    assert np.mean(losses) > 0.4 * loss
    if by == "threshold":  # the exact rule uses most of its level
        assert violations >= stats.binom.ppf(0.001, num_runs, 0.4 * (1 - confidence))


def test_the_loss_holds_for_a_share_larger_than_what_may_be_selected_and_for_ties():
    rng, violations, num_runs = np.random.default_rng(2), 0, 300
    for _ in range(num_runs):
        first, full = correlated(rng, 1000, 0.7)
        full[rng.random(1000) < 0.6] = np.nan  # unparsed rows are never selected
        found = find_first_cut(held_out(np.round(first, 1), np.round(full, 1)), keep=0.5, loss=0.05, confidence=0.9)
        threshold = -math.inf if found["limit"] is None else found["limit"]
        # all rows that may be selected are: their first scores are normal, rounded
        violations += stats.norm.cdf(np.round(threshold, 1) - 0.05) > 0.05
    assert violations <= stats.binom.ppf(0.999, num_runs, 0.1)


def test_a_good_first_score_saves_and_the_record_says_what():
    rows = held_out(*correlated(np.random.default_rng(0), 5000, 0.95))
    found = find_first_cut(rows, keep=0.1)
    dropped = rows.first_M < found["threshold"]
    selected = np.argsort(-rows.full_M)[:500]
    assert found["off"] is None and found["dropped"]["value"] == pytest.approx(dropped.mean())
    assert found["num_selected"] == 500
    assert found["bound"] <= 0.01
    upper = stats.binomtest(int(dropped[selected].sum()), 500).proportion_ci(1 - 2 * 0.045, method="exact").high
    assert found["bound"] == pytest.approx(upper)
    assert found["saved"]["value"] == pytest.approx(0.9 * dropped.mean())
    assert found["saved"]["value"] > 0.3 and "saved" in describe_first_cut(found)
    assert json.loads(json.dumps(found)) == found


def test_the_interval_of_the_saved_tokens_is_that_of_a_bootstrap():
    rng = np.random.default_rng(3)
    first, full = correlated(rng, 2000, 0.9)
    output = rng.integers(1, 400, 2000)
    rows = HeldOut(first_M=first, full_M=full, prompt_tokens_M=rng.integers(20, 60, 2000), output_tokens_M=output)
    found = find_first_cut(rows, full_threshold=1.0, fed_twice=8)
    tokens = rows.prompt_tokens_M + output
    gain = np.where(first < found["threshold"], output, -8)
    picks = rng.integers(0, 2000, (2000, 2000))
    ratios = gain[picks].sum(1) / tokens[picks].sum(1)
    assert found["saved"]["value"] == pytest.approx(gain.sum() / tokens.sum())
    bounds = [found["saved"]["low"], found["saved"]["high"]]
    np.testing.assert_allclose(bounds, np.quantile(ratios, [0.025, 0.975]), atol=4e-3)


def test_a_constant_first_score_is_off():
    found = find_first_cut(held_out(np.zeros(5000), np.random.default_rng(0).normal(size=5000)), keep=0.1)
    assert found["threshold"] is None and "drop no row" in found["off"] and found["guarantee"].startswith("none")
    assert found["dropped"]["value"] == 0 and "off" in describe_first_cut(found)


def test_short_answers_are_off_since_the_prompt_is_paid_for_anyway():
    rows = held_out(*correlated(np.random.default_rng(0), 5000, 0.9), prompt=400, output=2)
    found = find_first_cut(rows, keep=0.1)
    assert found["threshold"] is None and "less than 5%" in found["off"] and found["limit"] is not None


def test_too_few_rows_are_off():
    rng = np.random.default_rng(0)
    found = find_first_cut(held_out(*correlated(rng, 750, 0.95)), keep=0.1)
    assert found["threshold"] is None and str(750) in found["off"] and "more rows (splits.source" in found["off"]
    none = find_first_cut(held_out(np.arange(9), np.full(9, np.nan)), keep=0.1)
    assert none["threshold"] is None


def test_a_row_without_a_first_score_is_never_dropped():
    first, full = correlated(np.random.default_rng(0), 5000, 0.95)
    first[full < 0] = np.nan
    found = find_first_cut(held_out(first, full), keep=0.1)
    assert found["dropped"]["value"] == np.mean(first < found["threshold"])


def test_wrong_settings_are_refused():
    rows = held_out([0.0, 1.0], [0.0, 1.0])
    for wrong in ({}, {"keep": 0.1, "full_threshold": 1.0}, {"keep": 0.0}, {"keep": 0.1, "loss": 1.0}):
        with pytest.raises(ConfigError, match="first cut"):
            find_first_cut(rows, **wrong)
    with pytest.raises(UserError, match="columns"):
        held = rows.__dict__ | {"full_M": np.zeros(3)}
        HeldOut(**held)
