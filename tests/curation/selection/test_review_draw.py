"""The draw of a review: whom it may draw, its probabilities, and by simulation what its estimates and cuts keep."""

import numpy as np
import pytest

from curation.errors import ReviewError, UserError
from curation.extras.review.result import estimate_share_right
from curation.selection.review import FEWEST, REACH, UNIFORM_SHARE, Drawn, ScoredRows, draw
from curation.selection.risk import calibrate

N = 1_000


def scored(num_selected: int, *, seed: int = 1, ties: bool = False) -> tuple[ScoredRows, np.ndarray]:
    """Rows of which the best are selected, and the probability that each is right; trust is optimistic."""
    rng = np.random.default_rng(seed)
    raw_N = rng.normal(size=N).astype(np.float32)
    raw_N = raw_N.round(1) if ties else raw_N
    right_N = 1 / (1 + np.exp(-(2 * raw_N + 0.5)))
    selected_N = np.zeros(N, dtype=bool)
    selected_N[np.argsort(-raw_N, kind="stable")[:num_selected]] = True
    rows = ScoredRows(
        row_ids_N=rng.permutation(N) * 3 + 5, raw_N=raw_N, trust_N=np.sqrt(right_N), selected_N=selected_N
    )
    return rows, right_N


def weigh(drawn: Drawn) -> np.ndarray:
    """Return the number of rows that each drawn row stands for: one by the probability with which it was drawn."""
    return np.array([item.num_rows / item.num_drawn for item in drawn.strata])[drawn.stratum_M]


def counts(drawn: Drawn, correct_N: np.ndarray) -> list[dict[str, int]]:
    """The answers by stratum, if every row is judged truly."""
    right_M = correct_N[drawn.place_M]
    num_right = np.bincount(drawn.stratum_M, right_M, minlength=len(drawn.strata)).astype(int)
    return [
        dict(right=int(right), wrong=item.num_drawn - int(right), unsure=0, none=0)
        for right, item in zip(num_right, drawn.strata, strict=True)
    ]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("num", [10, 50, 200])
def test_a_draw_is_of_the_region_and_says_its_probabilities(num: int, ties: bool):
    rows, _ = scored(200, ties=ties)
    drawn = draw(rows, num=num, seed=3, ranked=True)
    assert len(set(drawn.place_M.tolist())) == num == sum(item.num_drawn for item in drawn.strata)
    floor = np.sort(rows.raw_N)[::-1][REACH * 200 - 1]
    assert drawn.floor == floor and (rows.raw_N[drawn.place_M] >= floor).all()
    assert sum(item.num_rows for item in drawn.strata) == (rows.raw_N >= floor).sum()
    assert sum(item.num_rows for item in drawn.strata if item.selected) == 200
    for index, item in enumerate(drawn.strata):
        of_M = drawn.stratum_M == index
        assert of_M.sum() == item.num_drawn >= FEWEST
        assert set(rows.selected_N[drawn.place_M[of_M]]) == {item.selected}
        raw_M = rows.raw_N[drawn.place_M[of_M]]
        assert item.least <= raw_M.min() and raw_M.max() <= item.most
    if num >= 50:
        assert drawn.uniform_M.sum() == round(UNIFORM_SHARE * num)
    sides = [item.selected for item in drawn.strata]
    assert sides == sorted(sides, reverse=True) and {True, False} == set(sides)


def test_a_draw_depends_on_rows_and_seed_not_on_their_order():
    rows, _ = scored(150, ties=True)
    ids_M = rows.row_ids_N[draw(rows, num=60, seed=3, ranked=True).place_M]
    order = np.random.default_rng(0).permutation(N)
    other = ScoredRows(**{name: getattr(rows, name)[order] for name in ("row_ids_N", "raw_N", "trust_N", "selected_N")})
    assert other.row_ids_N[draw(other, num=60, seed=3, ranked=True).place_M].tolist() == ids_M.tolist()
    assert set(rows.row_ids_N[draw(rows, num=60, seed=4, ranked=True).place_M].tolist()) != set(ids_M.tolist())


def test_a_region_smaller_than_the_draw_is_drawn_whole():
    rows, _ = scored(20)
    drawn = draw(rows, num=500, seed=0, ranked=True)
    assert len(drawn.place_M) == 40 and drawn.uniform_M.all()


def test_an_arm_that_draws_is_one_stratum_of_its_selection():
    rows, _ = scored(120)
    unknown_N = np.full(N, np.nan)
    rows = ScoredRows(row_ids_N=rows.row_ids_N, raw_N=unknown_N, trust_N=unknown_N, selected_N=rows.selected_N)
    drawn = draw(rows, num=50, seed=0, ranked=False)
    assert rows.selected_N[drawn.place_M].all() and drawn.uniform_M.all() and drawn.floor is None
    (stratum,) = drawn.strata
    assert (stratum.num_rows, stratum.num_drawn, stratum.least) == (120, 50, None)


def test_where_nothing_is_selected_the_region_is_every_row_with_a_score():
    rows, _ = scored(0)
    drawn = draw(rows, num=100, seed=0, ranked=True)
    assert drawn.floor == rows.raw_N.min() and not any(item.selected for item in drawn.strata)


def test_what_cannot_be_drawn_is_refused():
    rows, _ = scored(0)
    with pytest.raises(ReviewError, match="nothing is selected"):
        draw(rows, num=50, seed=0, ranked=False)
    with pytest.raises(ReviewError, match="--num: 9 rows are too few"):
        draw(rows, num=9, seed=0, ranked=True)


def test_inclusion_probabilities_are_how_often_rows_are_drawn():
    """Rows of the uniform part all equally often; weighted by 1 / inclusion, every stratum counts as it should."""
    rows, _ = scored(100)
    times_N, uniform_N, weight_N = np.zeros(N), np.zeros(N), np.zeros(N)
    runs = 600
    for seed in range(runs):
        drawn = draw(rows, num=40, seed=seed, ranked=True)
        times_N[drawn.place_M] += 1
        uniform_N[drawn.place_M[drawn.uniform_M]] += 1
        weight_N[drawn.place_M] += weigh(drawn)
    region_N = times_N > 0
    assert region_N.sum() == 200
    share = 30 / 200
    assert abs(uniform_N[region_N] / runs - share).max() < 5 * np.sqrt(share * (1 - share) / runs)
    assert weight_N[region_N].mean() / runs == pytest.approx(1, abs=1e-9)
    # of each row the weights average 1: Horvitz and Thompson's estimator has no bias
    assert abs(weight_N[region_N] / runs - 1).max() < 5 * np.sqrt(10 / runs)


@pytest.mark.long
@pytest.mark.parametrize("ties", [False, True])
def test_purity_has_no_bias_and_its_interval_covers(ties: bool):
    rows, right_N = scored(300, ties=ties)
    rng, runs = np.random.default_rng(8), 150
    errors, covered = [], 0
    for seed in range(runs):
        correct_N = rng.random(N) < right_N
        truth = correct_N[rows.selected_N].mean()
        drawn = draw(rows, num=120, seed=seed, ranked=True)
        found = estimate_share_right(drawn.strata, counts(drawn, correct_N), selected=True)
        place_M = drawn.place_M[rows.selected_N[drawn.place_M]]
        weight_M = weigh(drawn)[rows.selected_N[drawn.place_M]]
        assert found["value"] == pytest.approx(weight_M @ correct_N[place_M] / 300)  # Horvitz and Thompson
        errors.append(found["value"] - truth)
        covered += found["low"] <= truth <= found["high"]
    assert abs(np.mean(errors)) < 4 * np.std(errors) / np.sqrt(runs)
    assert covered / runs >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / runs)


def test_a_cut_certified_on_the_uniform_part_fails_at_most_delta_of_the_time():
    """The noise of the selection itself, not of a distribution: labels are fixed, only the draw is random."""
    rows, right_N = scored(300)
    correct_N = np.random.default_rng(2).random(N) < right_N
    alpha, delta, runs = 0.15, 0.2, 250
    failed = certified = 0
    for seed in range(runs):
        drawn = draw(rows, num=200, seed=seed, ranked=True)
        place_M = drawn.place_M[drawn.uniform_M]
        cut = calibrate(
            rows.raw_N[place_M],
            correct_N[place_M],
            rows.raw_N,
            alpha=alpha,
            delta=delta,
            floor=drawn.floor,
        )
        if cut.threshold is not None:
            certified += 1
            failed += (~correct_N[rows.raw_N >= cut.threshold]).mean() > alpha
    assert certified > runs / 2
    assert failed / runs <= delta + 3 * np.sqrt(delta * (1 - delta) / runs)


def test_a_floor_takes_the_rows_below_it_out_of_the_problem():
    rows, right_N = scored(300)
    correct_N = np.random.default_rng(2).random(N) < right_N
    drawn = draw(rows, num=200, seed=0, ranked=True)
    place_M = drawn.place_M[drawn.uniform_M]
    given = {"alpha": 0.15, "delta": 0.2}
    found = calibrate(rows.raw_N[place_M], correct_N[place_M], rows.raw_N, floor=drawn.floor, **given)
    region_N = rows.raw_N[rows.raw_N >= drawn.floor]
    alone = calibrate(rows.raw_N[place_M], correct_N[place_M], region_N, **given)
    assert (found.threshold, found.num_kept, found.bound) == (alone.threshold, alone.num_kept, alone.bound)
    assert f"the pool's that score at least {drawn.floor:g}" in found.guarantee
    with pytest.raises(UserError, match="1 score less than their floor"):
        calibrate(
            np.append(rows.raw_N[place_M], -9),
            np.append(correct_N[place_M], True),
            rows.raw_N,
            floor=drawn.floor,
            **given,
        )
