"""Trust read from a column: closed forms, nulls, and what is outside the scale."""

import warnings

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import expit

from curation.arms import ARMS, FREE, REFERENCE_ARM, TRUST, Column, Configured, Fitted, Signal
from curation.errors import SourceError
from curation.tables.schemas import NUMBERS
from curation.trust import get_trust

COLUMN_TRUST = {name: get_trust(name, 0) for name, trust in TRUST.items() if isinstance(trust, Column | Signal)}
FITTED = [name for name, trust in TRUST.items() if isinstance(trust, Fitted)]
LOGPROBS = ("internal_confidence", "icl_confidence", "min_logprob", "last_logprob")
SHARES = ("verbalized_confidence", "ensemble", "self_consistency")


def labels(name: str, values: list[float | None]) -> pa.RecordBatch:
    return pa.record_batch({COLUMN_TRUST[name].column: pa.array(values, pa.float32())})


@pytest.mark.parametrize("name", LOGPROBS)
def test_a_mean_logprob_becomes_the_geometric_mean_probability(name: str) -> None:
    batch = labels(name, [0.0, np.log(0.25), None, 1e-7, -300.0])
    raw_N, trust_N = COLUMN_TRUST[name].raw_score(batch), COLUMN_TRUST[name].score(batch)
    assert raw_N.dtype == trust_N.dtype == np.float32
    np.testing.assert_allclose(trust_N, [1, 0.25, np.nan, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(raw_N, np.float32([0, np.log(0.25), np.nan, 1e-7, -300]))


@pytest.mark.parametrize("name", SHARES)
def test_a_share_is_its_own_trust_within_the_scale(name: str) -> None:
    trust_N = COLUMN_TRUST[name].score(labels(name, [0.0, 0.3, 1.0, None, 1.0000001, -0.1]))
    assert trust_N.dtype == np.float32
    np.testing.assert_array_equal(trust_N, np.float32([0, 0.3, 1, np.nan, 1, 0]))


def test_a_reward_becomes_its_sigmoid_and_ranks_where_that_saturates() -> None:
    batch = labels("reward", [0.0, -3.5, None, 40.0, 41.0, -200.0, 1e30, -1e30])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        raw_N, trust_N = COLUMN_TRUST["reward"].raw_score(batch), COLUMN_TRUST["reward"].score(batch)
    assert trust_N.dtype == np.float32 and raw_N[4] > raw_N[3]
    np.testing.assert_allclose(trust_N, expit(raw_N), rtol=1e-6, atol=1e-38)


def test_a_margin_of_two_options_becomes_the_probability_of_the_likelier() -> None:
    trust_N = COLUMN_TRUST["margin"].score(labels("margin", [0.0, np.log(3), None, 200.0]))
    assert trust_N.dtype == np.float32
    np.testing.assert_allclose(trust_N, [0.5, 0.75, np.nan, 1], rtol=1e-6)


def test_an_entropy_becomes_one_over_the_number_of_equally_likely_words() -> None:
    batch = labels("entropy", [0.0, -np.log(4), None, 1e-7, -300.0])
    raw_N, trust_N = COLUMN_TRUST["entropy"].raw_score(batch), COLUMN_TRUST["entropy"].score(batch)
    assert raw_N.dtype == trust_N.dtype == np.float32
    np.testing.assert_allclose(trust_N, [1, 0.25, np.nan, 1, 0], rtol=1e-6)


def test_the_free_signals_read_columns_that_every_pass_fills() -> None:
    assert [trust for trust in FREE if not isinstance(TRUST[trust], Column)] == []
    assert {COLUMN_TRUST[trust].column for trust in FREE} <= {*NUMBERS}


def test_each_trust_function_is_an_arm_and_reads_its_columns() -> None:
    assert {arm.trust for arm in ARMS.values()} == {"naive", REFERENCE_ARM, *COLUMN_TRUST, *FITTED} == set(TRUST)
    assert [name for name, trust in TRUST.items() if isinstance(trust, Configured)] == [REFERENCE_ARM]
    for name, trust in TRUST.items():
        if name != "naive":
            arm = ARMS[name]
            assert arm.trust == name and arm.words == trust.words and arm.ranked and arm.parsed and not arm.oracle
            assert (arm.signal is None) == (not isinstance(trust, Signal))
        if isinstance(trust, Column | Signal):
            assert get_trust(name, 0).features == (trust.column,)
    for name in (*FITTED, "trust"):
        assert get_trust(name, 0).features == (f"{name}_raw", f"{name}_trust")


@pytest.mark.parametrize("name", FITTED)
def test_a_fitted_function_is_read_from_its_two_columns(name: str) -> None:
    batch = pa.record_batch({f"{name}_raw": pa.array([40.0, 41.0, None]), f"{name}_trust": pa.array([0.6, 0.6, None])})
    raw_N, trust_N = get_trust(name, 0).raw_score(batch), get_trust(name, 0).score(batch)
    assert raw_N.dtype == trust_N.dtype == np.float32 and raw_N[1] > raw_N[0]
    np.testing.assert_array_equal(trust_N, np.float32([0.6, 0.6, np.nan]))  # calibrated, not the raw score's sigmoid


def test_a_missing_column_is_refused() -> None:
    with pytest.raises(SourceError, match=r"column reward is missing; label with the arm reward selected"):
        COLUMN_TRUST["reward"].raw_score(labels("ensemble", [1.0]))
