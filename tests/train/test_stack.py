"""The cross-fitted stack: against free signals, honest scores of its own rows, probabilities, what is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from curation.config import TrustConfig
from curation.errors import ConfigError, DegenerateSourceError, SourceError
from curation.hashing import hash_unit
from curation.metrics import auc
from curation.stages.fit import check_settings
from curation.trust import load_fitted
from curation.trust.combining import Candidate, assign_folds, choose_candidate, fit_rising_line
from curation.trust.parts import FIT, REPEAT, UNUSED, VALIDATION, assign_parts
from curation.trust.stacked import NETWORKS, Combination, Logistic, PiecewiseLinearCalibrator, StackedTrust, Trees
from train import stack
from train.stack import NETWORK, fit_stacked
from train.trust import fit_rows
from train.trust_loop import LabelledRows

pytestmark = pytest.mark.long

STATES = ("prompt_last", "output_last")
CONFIG = TrustConfig(states=STATES)
"""Networks take seconds each, so that only tests of them have them."""
NUMBERS = ("mean_logprob", "margin", "num_output_tokens")
FREE_OF = {"internal_confidence": "mean_logprob", "margin": "margin"}


class Drawn(NamedTuple):
    """Rows with the logit that their labels were drawn from."""

    rows: LabelledRows
    logit_N: np.ndarray


def drawn(
    num_rows: int,
    *,
    seed: int = 0,
    width: int = 12,
    of_states: float = 0.0,
    of_numbers: Sequence[float] = (1.0, 0.5, 0.0),
    noise: float = 1.0,
) -> Drawn:
    """Rows of two states and three numbers whose labels come from a logistic model of both."""
    rng = np.random.default_rng(seed)
    hidden_ND = rng.standard_normal((num_rows, width)).astype(np.float16)
    numbers_NK = rng.standard_normal((num_rows, len(NUMBERS))) * (0.5, 2.0, 30.0) + (-1.0, 3.0, 80.0)
    unit_NK = (numbers_NK - (-1.0, 3.0, 80.0)) / (0.5, 2.0, 30.0)
    logit_N = unit_NK @ np.asarray(of_numbers)
    logit_N += of_states * (hidden_ND[:, 0].astype(float) - hidden_ND[:, -1].astype(float))
    correct_N = rng.random(num_rows) < expit(logit_N / noise)
    return Drawn(rows_of(hidden_ND, correct_N, numbers_NK), logit_N)


def rows_of(
    hidden_ND: np.ndarray,
    correct_N: np.ndarray,
    numbers_NK: np.ndarray,
    *,
    numbers: tuple[str, ...] = NUMBERS,
    part_N: np.ndarray | None = None,
) -> LabelledRows:
    num_rows, width = hidden_ND.shape
    ids_N = 5 * np.arange(num_rows, dtype=np.int64) + 2
    part_N = assign_parts(ids_N, CONFIG, 0) if part_N is None else part_N
    return LabelledRows(hidden_ND, correct_N, part_N, (width // 2, width - width // 2), ids_N, numbers_NK, numbers)


def batch_of(rows: LabelledRows) -> pa.RecordBatch:
    columns: dict[str, Any] = {"row_id": pa.array(rows.row_ids_N)}
    for name, part_ND in zip(STATES, np.split(np.asarray(rows.hidden_ND), [rows.sizes[0]], axis=1), strict=True):
        columns[f"state_{name}"] = pa.FixedSizeListArray.from_arrays(pa.array(part_ND.ravel()), part_ND.shape[1])
    for name, number_N in zip(rows.numbers, rows.numbers_NK.T, strict=True):
        columns[name] = pa.array(number_N, from_pandas=True)  # NaN is null
    return pa.record_batch(columns)


def fit(rows: LabelledRows, *, network_rows: int = 10_000, **constants: Any) -> StackedTrust:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in constants.items():
            patch.setattr(stack, name, value)
        return fit_stacked(rows, CONFIG, seed=3, origin={"from": "a test"}, network_rows=network_rows)


def auc_of(trust: StackedTrust, fresh: LabelledRows) -> float:
    return float(roc_auc_score(fresh.correct_N, trust.raw_score(batch_of(fresh))))


def best_free(fresh: LabelledRows) -> float:
    places = [fresh.numbers.index(column) for column in FREE_OF.values()]
    return max(float(roc_auc_score(fresh.correct_N, fresh.numbers_NK[:, place])) for place in places)


def held_out_auc(trust: StackedTrust, rows: LabelledRows) -> tuple[float, float, float]:
    """Of the rows that have a held-out score."""
    assert trust.held_out is not None
    known_N = ~np.isnan(trust.held_out.raw_N)
    places_M = np.searchsorted(rows.row_ids_N, trust.held_out.row_ids_N[known_N])
    found = auc(trust.held_out.raw_N[known_N], rows.correct_N[places_M])
    return found.value, found.low, found.high


# What it is worth.


@pytest.mark.parametrize("num_rows", [400, 1500])
def test_it_beats_every_free_signal_where_the_states_say_more(num_rows: int) -> None:
    train, fresh = (drawn(n, seed=seed, of_states=1.0).rows for n, seed in ((num_rows, 0), (4_000, 1)))
    trust = fit(train)
    assert trust.fit["choice"]["taken"] == "stacked" and trust.probes is not None
    assert auc_of(trust, fresh) > best_free(fresh) + 0.05
    assert auc_of(trust, fresh) == pytest.approx(held_out_auc(trust, train)[0], abs=0.05)


@pytest.mark.parametrize("width", [12, 900])
@pytest.mark.parametrize("num_rows", [150, 600])
def test_it_is_not_below_the_best_free_signal_where_the_states_say_nothing(num_rows: int, width: int) -> None:
    fresh = drawn(4_000, seed=1, width=width, of_numbers=(1.5, 0.0, 0.0)).rows
    for seed in (2, 3):
        trust = fit(drawn(num_rows, seed=seed, width=width, of_numbers=(1.5, 0.0, 0.0)).rows)
        assert auc_of(trust, fresh) > best_free(fresh) - 0.02


def test_no_free_signal_counts_against_a_row_while_other_numbers_may() -> None:
    rows = drawn(300, of_numbers=(1.0, -0.5, -0.5)).rows
    model = fit(rows, PROBE_ROWS=1_000).combination.model
    assert isinstance(model, Logistic)
    weights = dict(zip(NUMBERS, model.weight_K, strict=True))
    assert weights["mean_logprob"] > 0 and weights["margin"] == 0 and weights["num_output_tokens"] < 0


def test_it_joins_free_signals_where_both_say_something() -> None:
    train, fresh = (drawn(n, seed=seed, of_numbers=(1.0, 1.0, 0.0)).rows for n, seed in ((800, 0), (4_000, 1)))
    assert auc_of(fit(train), fresh) > best_free(fresh) + 0.03


# Scores of its own rows.


@pytest.mark.parametrize("num_rows", [120, 400])
def test_scores_of_its_own_rows_are_honest_where_labels_are_random_and_numbers_many(num_rows: int) -> None:
    values, outside = [], 0
    for seed in range(10):
        rows = drawn(num_rows, seed=seed, width=2 * num_rows, of_numbers=(0.0, 0.0, 0.0)).rows
        trust = fit(rows)
        assert trust.held_out is not None and not np.isnan(trust.held_out.raw_N).any()
        value, low, high = held_out_auc(trust, rows)
        values.append(value)
        outside += not low < 0.5 < high
    # Which function is taken is chosen on the same scores, as is the signal that leads; that moves them a little.
    assert outside <= 2, values
    assert np.mean(values) == pytest.approx(0.5, abs=0.06) and max(values) < 0.7


def test_no_fold_stands_apart_where_the_states_say_nothing() -> None:
    """The weights of a fold with few right rows have seen more of them, which must not move its scores."""
    for seed in range(10):
        rows = drawn(110, seed=seed, width=400, of_numbers=(1.0, 0.0, 0.0)).rows
        trust = fit(rows)
        assert trust.held_out is not None
        raw_N, folds = trust.held_out.raw_N, trust.fit["folds"]
        fold_N = assign_folds(rows.row_ids_N, rows.correct_N, folds, 3)
        assert np.ptp([raw_N[fold_N == fold].mean() for fold in range(folds)]) < 1.2 * raw_N.std(), seed


@pytest.mark.parametrize("copies", [2, 5])
def test_copies_of_a_question_are_one_row(copies: int) -> None:
    one = drawn(200, width=600, of_numbers=(0.0, 0.0, 0.0)).rows
    order_N = np.random.default_rng(9).permutation(np.repeat(np.arange(200), copies))
    asked_N = hash_unit(order_N, 4).view(np.int64)
    rows = rows_of(
        one.hidden_ND[order_N], one.correct_N[order_N], one.numbers_NK[order_N], part_N=assign_parts(asked_N, CONFIG, 3)
    )
    trust = fit(rows)
    assert (trust.fit["num_fit"], trust.fit["num_repeats"]) == (200, 200 * (copies - 1))
    assert trust.held_out is not None
    np.testing.assert_array_equal(trust.held_out.row_ids_N, rows.row_ids_N)
    np.testing.assert_array_equal(np.isnan(trust.held_out.raw_N), rows.part_N == REPEAT)
    value, low, high = held_out_auc(trust, rows)
    assert low - 0.03 < 0.5 < high + 0.03 and value < 0.62
    # The score that is not held out has seen every label: it is what must not be read.
    assert roc_auc_score(rows.correct_N, trust.raw_score(batch_of(rows))) > value


def test_the_score_of_a_row_is_by_weights_that_have_not_seen_its_label() -> None:
    """Its label turned round moves its own score only through what comes after the folds: a penalty and a line."""
    rows = drawn(280, of_states=1.0).rows  # too few for a line
    whole = fit(rows)
    turned_N = rows.correct_N.copy()
    fold_N = assign_folds(rows.row_ids_N, rows.correct_N, 5, 3)
    one, other = (int(np.flatnonzero((fold_N == 2) & (rows.correct_N == right))[0]) for right in (True, False))
    turned_N[[one, other]] = turned_N[[other, one]]  # a pair of a fold, so that no class has another size
    own = fit(rows._replace(correct_N=turned_N))
    assert whole.held_out is not None and own.held_out is not None
    plain = [trust.raw_score(batch_of(rows))[one] for trust in (whole, own)]
    assert plain[0] > plain[1], "the weights of all rows have seen it"


def test_saved_and_loaded_it_scores_the_same_and_keeps_its_held_out_scores(tmp_path: Path) -> None:
    rows = drawn(500, of_states=1.0).rows
    part_N = rows.part_N.copy()
    part_N[[4, 11]], part_N[20:30] = REPEAT, UNUSED
    rows = rows._replace(part_N=part_N)
    trust = fit(rows)
    loaded = load_fitted(trust.save(tmp_path / "trust"))
    assert isinstance(loaded, StackedTrust) and loaded.inputs == trust.inputs
    assert loaded.inputs == (*STATES, *NUMBERS)
    for seed in (0, 5):
        batch = batch_of(drawn(700, seed=seed, of_states=1.0).rows)
        np.testing.assert_array_equal(loaded.raw_score(batch), trust.raw_score(batch))
        np.testing.assert_array_equal(loaded.score(batch), expit(trust.raw_score(batch).astype(float)).astype("f4"))
    batch = batch_of(rows)
    found_N, plain_N = loaded.source_score(batch), loaded.raw_score(batch)
    np.testing.assert_array_equal(found_N, trust.source_score(batch))
    assert trust.held_out is not None and len(trust.held_out.row_ids_N) == 490
    np.testing.assert_array_equal(np.isnan(found_N), rows.part_N == REPEAT)
    np.testing.assert_array_equal(found_N[20:30], plain_N[20:30])  # the fit has not read them
    used_N = rows.part_N >= 0
    np.testing.assert_array_equal(found_N[used_N], trust.held_out.raw_N[~np.isnan(trust.held_out.raw_N)])
    assert (found_N[used_N] != plain_N[used_N]).mean() > 0.99
    assert loaded.fit["choice"] == trust.fit["choice"] and loaded.fit["from"] == "a test"
    order_N = np.random.default_rng(0).permutation(len(found_N))
    np.testing.assert_array_equal(loaded.source_score(batch.take(pa.array(order_N))), found_N[order_N])


def test_rows_of_both_parts_are_fitted_on() -> None:
    rows = drawn(300).rows
    assert set(rows.part_N.tolist()) == {FIT, VALIDATION}
    trust = fit(rows)
    assert trust.fit["num_fit"] == 300 and trust.fit["share_right_fit"] == pytest.approx(rows.correct_N.mean())
    other = fit(rows._replace(part_N=np.full(300, FIT, dtype=np.int8)))
    np.testing.assert_array_equal(trust.raw_score(batch_of(rows)), other.raw_score(batch_of(rows)))


# What is taken.


def test_a_free_signal_that_is_better_is_taken_alone_and_the_reason_says_so(tmp_path: Path) -> None:
    """A line cannot follow a signal of which few rows hold nearly all the deviation; its order can."""
    rows = drawn(400, of_numbers=(3.0, 0.0, 0.0)).rows
    numbers_NK = rows.numbers_NK.copy()
    numbers_NK[:, 0] = -np.exp(-4 * (numbers_NK[:, 0] + 1) / 0.5)
    trust = fit(rows._replace(numbers_NK=numbers_NK), PROOF=1.0)
    choice = trust.fit["choice"]
    assert choice["taken"] == "internal_confidence" and trust.probes is None and trust.networks is None
    assert choice["reason"].startswith("trust is internal_confidence alone: in cross-validation on 400 labelled rows")
    assert "above that of stacked, more than 1 standard errors" in choice["reason"]
    assert trust.inputs == ("mean_logprob",)
    names = [item["name"] for item in choice["candidates"]]
    assert sorted(names) == ["fitted_confidence", "internal_confidence", "margin", "stacked"]
    batch = batch_of(rows._replace(numbers_NK=numbers_NK))
    raw_N = load_fitted(trust.save(tmp_path / "trust")).raw_score(batch)
    order_N = numbers_NK[:, 0].argsort()
    assert (np.diff(raw_N[order_N]) >= 0).all() and raw_N[order_N[-1]] > raw_N[order_N[0]]
    assert roc_auc_score(rows.correct_N, numbers_NK[:, 0]) == pytest.approx(held_out_auc(trust, rows)[0], abs=0.01)


def test_the_whole_stack_stays_unless_a_simpler_function_is_ahead_by_its_standard_error() -> None:
    rng = np.random.default_rng(0)
    correct_M = rng.random(500) < 0.5

    def candidate(name: str, signal: float) -> Candidate:
        combination = Combination(("x",), np.zeros(1), Logistic(np.ones(1), 0.0))
        return Candidate(name, combination, signal * correct_M + rng.standard_normal(500))

    whole, weak, strong = candidate("stacked", 1.0), candidate("margin", 0.2), candidate("internal_confidence", 2.0)
    taken, choice = choose_candidate([weak], whole, correct_M, 1.0)
    assert taken is whole and choice["taken"] == "stacked"
    assert "the best free signal, margin, has 0." in choice["reason"]
    taken, choice = choose_candidate([weak, strong], whole, correct_M, 1.0)
    assert taken is strong and choice["taken"] == "internal_confidence"
    ahead = next(item for item in choice["candidates"] if item["name"] == "internal_confidence")
    own = next(item for item in choice["candidates"] if item["name"] == "stacked")
    assert ahead["loses_by"] == pytest.approx(own["auc"] - ahead["auc"])
    assert choose_candidate([weak, strong], whole, correct_M, 100.0)[0] is whole, "it is not ahead by so much"


def test_few_rows_take_one_free_signal_and_say_how_many_are_needed() -> None:
    rows = drawn(20, of_numbers=(2.0, 0.0, 0.0)).rows
    rarer = min(int(rows.correct_N.sum()), 20 - int(rows.correct_N.sum()))
    assert 0 < rarer < 10
    trust = fit(rows)
    choice = trust.fit["choice"]
    assert choice["taken"] in FREE_OF and choice["candidates"] == []
    assert choice["reason"] == (
        f"trust is {choice['taken']} alone: of 20 labelled rows {rarer} have the rarer outcome, and 10 are needed to "
        "compare it with more; label more source rows"
    )
    assert trust.inputs == (FREE_OF[choice["taken"]],) and trust.held_out is not None
    assert not np.isnan(trust.held_out.raw_N).any()
    (place,) = [NUMBERS.index(name) for name in trust.inputs]
    raw_N = trust.raw_score(batch_of(rows))
    assert (np.diff(raw_N[rows.numbers_NK[:, place].argsort()]) >= 0).all()


def test_below_80_rows_no_probe_reads_the_states() -> None:
    trust = fit(drawn(79, of_states=2.0).rows)
    assert trust.probes is None and not {"prompt_last", "output_last"} & {*trust.read_by_members}
    assert fit(drawn(79, of_states=2.0).rows, PROBE_ROWS=79).probes is not None


# What is left out, and what is refused.


@pytest.mark.parametrize("right", [True, False])
def test_one_class_is_refused(right: bool) -> None:
    rows = drawn(300).rows
    words = (
        rf"trust: {300 if right else 0} of the 300 weak labels of the source that can be used are right, but both right"
    )
    for kind in ("stacked", "fitted_confidence"):
        with pytest.raises(DegenerateSourceError, match=words):
            fit_rows(kind, rows._replace(correct_N=np.full(300, right)), CONFIG, seed=3, origin={})


def test_columns_that_say_nothing_are_left_out_and_missing_numbers_stand_at_their_mean(tmp_path: Path) -> None:
    rows = drawn(600, of_states=1.0).rows
    plain = fit(rows)
    numbers_NK = np.column_stack([rows.numbers_NK, np.full(600, 0.25), np.full(600, np.nan)])
    more = rows._replace(numbers_NK=numbers_NK, numbers=(*NUMBERS, "truncated", "min_logprob"))
    trust = fit(more)
    assert trust.inputs == plain.inputs == (*STATES, *NUMBERS)
    np.testing.assert_array_equal(trust.raw_score(batch_of(more)), plain.raw_score(batch_of(rows)))

    missing_N = np.random.default_rng(6).random(600) < 0.3
    numbers_NK = np.where(missing_N[:, None] & [True, False, False], np.nan, rows.numbers_NK)
    some = rows._replace(numbers_NK=numbers_NK)
    trust = fit(some)
    assert trust.held_out is not None and np.isfinite(trust.held_out.raw_N).all()
    loaded = load_fitted(trust.save(tmp_path / "some"))
    raw_N = loaded.raw_score(batch_of(some))
    assert np.isfinite(raw_N).all()
    filled_NK = numbers_NK.copy()
    filled_NK[missing_N, 0] = np.nanmean(numbers_NK[:, 0])
    np.testing.assert_allclose(raw_N, loaded.raw_score(batch_of(rows._replace(numbers_NK=filled_NK))), atol=1e-5)
    assert held_out_auc(trust, rows)[0] > 0.7
    none_N = np.arange(600) == 7
    without = rows._replace(numbers_NK=np.where(none_N[:, None], np.nan, numbers_NK))
    np.testing.assert_array_equal(np.isnan(loaded.raw_score(batch_of(without))), none_N)


@pytest.mark.parametrize("numbers", [(), ("truncated",), ("truncated", "min_logprob")])
def test_labels_without_a_number_that_varies_are_refused(numbers: tuple[str, ...]) -> None:
    rows = drawn(300).rows
    numbers_NK = np.column_stack([np.ones(300), np.full(300, np.nan)])[:, : len(numbers)]
    words = rf"no number of the answers that differs between rows \({', '.join(numbers) or 'none is stored'}\); label"
    with pytest.raises(SourceError, match=words):
        fit(rows._replace(numbers_NK=numbers_NK, numbers=numbers))


def test_an_option_that_there_is_none_of_is_refused() -> None:
    words = r"trust\.options.*: fit_stacked takes network_rows.*, and not .*unexpected keyword argument 'num_folds'"
    config = CONFIG.model_copy(update={"options": {"stacked": {"num_folds": 3}}})
    with pytest.raises(ConfigError, match=words):
        fit_rows("stacked", drawn(300).rows, config, seed=3, origin={})
    with pytest.raises(ConfigError, match=words):
        check_settings(config)


@pytest.mark.parametrize("value", ["many", 1.5, None, True])
def test_an_option_of_another_type_is_refused_before_a_run(value: object) -> None:
    config = CONFIG.model_copy(update={"options": {"stacked": {"network_rows": value}}})
    with pytest.raises(ConfigError, match=r"trust\.options\.stacked: network_rows is .*, not an integer"):
        check_settings(config)


# Probabilities.


@pytest.mark.parametrize("seed", [0, 1])
def test_trust_is_the_chance_of_being_right(seed: int) -> None:
    train, fresh = (
        drawn(n, seed=own, width=40, of_states=1.2, of_numbers=(2.0, 0.7, 0.0)).rows
        for n, own in ((3_000, seed), (20_000, 10 + seed))
    )
    trust = fit(train, TREE_ROWS=10_000)
    assert trust.held_out is not None
    for rows, raw_N in ((train, trust.held_out.raw_N), (fresh, trust.raw_score(batch_of(fresh)))):
        trust_N = trust.to_trust(raw_N)
        sure_N = trust_N > 0.9
        assert sure_N.sum() > 200
        assert abs(trust_N[sure_N].mean() - rows.correct_N[sure_N].mean()) < 0.03
        share = rows.correct_N.mean()
        assert brier_score_loss(rows.correct_N, trust_N) < 0.8 * share * (1 - share)


def test_a_line_with_a_bend_makes_logits_those_of_a_probability() -> None:
    rng = np.random.default_rng(0)
    logit_N = 2 * rng.standard_normal(20_000)
    correct_N = rng.random(20_000) < expit(logit_N)
    shrunk_N = np.where(logit_N > 0.5, 0.2 * logit_N + 0.05, 0.3 * logit_N)
    found = fit_rising_line(shrunk_N, correct_N)
    knees = np.quantile(shrunk_N, [0.5, 0.75])
    assert found.knees == pytest.approx(knees)
    for low, high in ((-4.0, -2.0), (-1.0, 1.0), (2.0, 4.0)):
        of_N = (logit_N > low) & (logit_N < high)
        assert expit(found(shrunk_N[of_N])).mean() == pytest.approx(correct_N[of_N].mean(), abs=0.02)
    few = fit_rising_line(shrunk_N[:200], correct_N[:200])
    np.testing.assert_array_equal(few(shrunk_N), shrunk_N)  # too few rows for a line
    assert not fit_rising_line(shrunk_N[:400], correct_N[:400]).bends  # and too few for a bend
    turned = fit_rising_line(-shrunk_N, correct_N)
    np.testing.assert_array_equal(turned(shrunk_N), shrunk_N)  # none that falls


def test_lines_with_other_knees_are_averaged_by_their_likelihood() -> None:
    """Each line is scikit-learn's regression on the logit and the hinge, and weighs as its likelihood."""
    rng = np.random.default_rng(1)
    raw_N = rng.standard_normal(600)
    correct_N = rng.random(600) < expit(np.where(raw_N > 0.5, 2 * raw_N - 0.5, raw_N))
    logits, log_likelihoods = [], []
    for knee in np.quantile(raw_N, [0.5, 0.75]):
        columns_N2 = np.c_[raw_N, np.maximum(raw_N - knee, 0)]
        model = LogisticRegression().fit(columns_N2, correct_N)
        logits.append(model.decision_function(columns_N2))
        log_likelihoods.append(-log_loss(correct_N, model.predict_proba(columns_N2)[:, 1], normalize=False))
    share = expit(log_likelihoods[1] - log_likelihoods[0])
    assert 0.01 < share < 0.99
    found = fit_rising_line(raw_N, correct_N)
    np.testing.assert_allclose(found(raw_N), (1 - share) * logits[0] + share * logits[1], rtol=1e-4, atol=1e-4)
    assert PiecewiseLinearCalibrator.made(found.weights) == found


# Of many rows.


def test_networks_and_trees_join_in_of_many_rows(tmp_path: Path) -> None:
    """A product of two numbers and one of two states, which no line of either follows."""
    rng = np.random.default_rng(0)
    network = NETWORK | {"width": 16, "depth": 1, "max_steps": 60, "learning_rate": 3e-3}
    small: dict[str, Any] = {"network_rows": 200, "TREE_ROWS": 200, "NETWORK": network}

    def product(seed: int, num_rows: int) -> LabelledRows:
        rows, _ = drawn(num_rows, seed=seed)
        unit_NK = (rows.numbers_NK - (-1.0, 3.0, 80.0)) / (0.5, 2.0, 30.0)
        of_N = unit_NK[:, 0] * unit_NK[:, 1] + 0.5 * rows.hidden_ND[:, 0].astype(float)
        return rows._replace(correct_N=of_N + 0.3 * rng.standard_normal(num_rows) > 0)

    rows, fresh = product(0, 900), product(1, 2_000)
    trust = fit(rows, **small)
    assert trust.fit["combined_by"] == "trees" and isinstance(trust.combination.model, Trees)
    assert trust.networks is not None and trust.probes is not None
    assert trust.combination.names == (*NUMBERS, "probe of all", *(f"probe of {name}" for name in STATES), NETWORKS)
    assert auc_of(trust, fresh) > max(best_free(fresh), auc_of(fit(rows), fresh)) + 0.1
    assert abs(held_out_auc(trust, rows)[0] - auc_of(trust, fresh)) < 0.06
    loaded = load_fitted(trust.save(tmp_path / "trust"))
    assert isinstance(loaded, StackedTrust) and loaded.networks is not None
    np.testing.assert_array_equal(loaded.raw_score(batch_of(fresh)), trust.raw_score(batch_of(fresh)))
    np.testing.assert_array_equal(loaded.source_score(batch_of(rows)), trust.source_score(batch_of(rows)))
    again = fit(rows, **small)
    np.testing.assert_allclose(again.raw_score(batch_of(fresh)), trust.raw_score(batch_of(fresh)), atol=1e-4)


def test_networks_are_honest_of_their_own_rows_too() -> None:
    rows = drawn(400, width=300, of_numbers=(0.0, 0.0, 0.0)).rows
    network = NETWORK | {"width": 16, "depth": 1, "max_steps": 60}
    trust = fit(rows, network_rows=200, TREE_ROWS=200, NETWORK=network)
    value, low, high = held_out_auc(trust, rows)
    assert low - 0.03 < 0.5 < high + 0.03 and value < 0.62


def test_components_stand_before_probes_and_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, fresh = (drawn(n, seed=seed, of_states=1.0).rows for n, seed in ((600, 0), (4_000, 1)))
    monkeypatch.setattr(stack, "NETWORK", NETWORK | {"width": 16, "max_steps": 40})
    trust = fit_stacked(rows, CONFIG.model_copy(update={"pca": 6}), seed=3, origin={}, network_rows=200)
    assert trust.probes is not None and trust.probes.names == ("probe of all",) and trust.networks is not None
    loaded = load_fitted(trust.save(tmp_path / "trust"))
    np.testing.assert_array_equal(loaded.raw_score(batch_of(fresh)), trust.raw_score(batch_of(fresh)))
    whole = fit_stacked(rows, CONFIG.model_copy(update={"pca": 12}), seed=3, origin={}, network_rows=10_000)
    assert auc_of(whole, fresh) > best_free(fresh) + 0.05, "all components are all that the states say"


def test_folds_are_dealt_by_class_and_by_a_seeded_hash_of_the_id() -> None:
    rng = np.random.default_rng(0)
    ids_N, correct_N = rng.permutation(100_000)[:997], rng.random(997) < 0.13
    fold_N = assign_folds(ids_N, correct_N, 5, 3)
    for of_class_N in (correct_N, ~correct_N):
        counts = np.bincount(fold_N[of_class_N], minlength=5)
        assert counts.max() - counts.min() <= 1 and counts.sum() == of_class_N.sum()
    np.testing.assert_array_equal(assign_folds(ids_N, correct_N, 5, 3), fold_N)
    order_N = rng.permutation(997)
    np.testing.assert_array_equal(assign_folds(ids_N[order_N], correct_N[order_N], 5, 3), fold_N[order_N])
    assert (assign_folds(ids_N, correct_N, 5, 4) != fold_N).mean() > 0.6
    assert set(assign_folds(ids_N[:7], np.arange(7) < 3, 3, 0).tolist()) == {0, 1, 2}


def test_no_fold_divides_a_group_and_folds_are_about_as_large_and_as_right() -> None:
    rng = np.random.default_rng(1)
    ids_N, cluster_N = rng.permutation(100_000)[:1_500], rng.integers(-(2**60), 2**60, 90)[rng.integers(0, 90, 1_500)]
    correct_N = rng.random(1_500) < 0.3
    fold_N = assign_folds(ids_N, correct_N, 5, 3, cluster_M=cluster_N)
    assert all(len(set(fold_N[cluster_N == cluster])) == 1 for cluster in set(cluster_N.tolist()))
    assert np.abs(np.bincount(fold_N) - 300).max() < 45
    assert np.abs(np.bincount(fold_N, correct_N) / np.bincount(fold_N) - correct_N.mean()).max() < 0.05
    order_N = rng.permutation(1_500)
    again_N = assign_folds(ids_N[order_N], correct_N[order_N], 5, 3, cluster_M=cluster_N[order_N])
    np.testing.assert_array_equal(again_N, fold_N[order_N])
    with pytest.raises(DegenerateSourceError, match=r"of 4 groups \(splits\.group\), fewer than the 5 folds"):
        assign_folds(ids_N, correct_N, 5, 3, cluster_M=np.arange(1_500) % 4)


def test_out_of_fold_logits_of_groups_do_not_know_them() -> None:
    """Each group is right or wrong as a whole, by nothing that can be read: folds that divide groups would know it."""
    rng = np.random.default_rng(2)
    cluster_N = np.repeat(np.arange(60), 20)
    mark_CD = 3 * rng.standard_normal((60, 40))
    hidden_ND = (mark_CD[cluster_N] + rng.standard_normal((1_200, 40))).astype(np.float16)
    rows = rows_of(hidden_ND, (rng.random(60) < 0.5)[cluster_N], rng.standard_normal((1_200, len(NUMBERS))))
    kinds = {}
    for name, found in (("rows", rows), ("groups", rows._replace(cluster_N=cluster_N))):
        held_out = fit(found).held_out
        assert held_out is not None
        kinds[name] = roc_auc_score(found.correct_N, held_out.raw_N)
    assert kinds["rows"] > 0.9 and kinds["groups"] < 0.65
