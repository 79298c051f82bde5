"""A gate in front of vLLM: a request of one token a prompt, then the answers of those that pass, as without it."""

import numpy as np
import pytest

from curation.config import DecodingConfig
from tests.with_vllm.conftest import STATES
from tests.with_vllm.test_vllm_teacher import rows_of, spy


class Gate:
    """Passes rows whose prompt's state is on one side of a plane."""

    states = ("prompt_last",)

    def __init__(self, share):
        self._share, self.scores = share, {}
        self._direction_D = np.random.default_rng(0).normal(size=64)

    def __call__(self, prompts):
        states_ND = np.stack(prompts.column("state_prompt_last").to_pylist())
        raw_N = states_ND @ self._direction_D
        self.scores.update(zip(prompts.column("row_id").to_pylist(), raw_N.tolist(), strict=True))
        return np.array([hash(row) % 10 < 10 * self._share for row in prompts.column("row_id").to_pylist()])


@pytest.mark.parametrize("decoding", [DecodingConfig(max_tokens=6), DecodingConfig(max_tokens=6, temperature=0.8)])
def test_rows_that_pass_are_answered_as_without_a_gate(teacher, requests, decoding, monkeypatch):
    expected = rows_of(teacher.label(requests, decoding, seed=3))
    gate, calls = Gate(0.4), spy(monkeypatch, type(teacher.engine), "submit")
    rows = rows_of(teacher.label(requests, decoding, seed=3, gate=gate))
    assert set(rows) == set(expected) == set(gate.scores)
    passed = {row_id for row_id in rows if hash(row_id) % 10 < 4}
    asked = [params for _, _, params, *_ in calls]
    assert sum(params.max_tokens == 1 for params in asked) >= len(rows)
    assert sum(params.max_tokens == 7 for params in asked) == len(passed)
    ties = 0
    for row_id, row in rows.items():
        other = expected[row_id]
        if row_id not in passed:
            assert row["completion"] is None and row["error"] is None and row["state_output_last"] is None
            assert (row["num_prompt_tokens"], row["num_output_tokens"]) == (other["num_prompt_tokens"], 0)
            continue
        if row["completion"] != other["completion"]:  # two tokens tie, and rounding differs with the rows of a step
            ties += 1
            continue
        np.testing.assert_allclose(row["mean_logprob"] or 0, other["mean_logprob"] or 0, atol=1e-4)
        for name in STATES:
            np.testing.assert_allclose(row[f"state_{name}"], other[f"state_{name}"], atol=1e-4)
        state_D = np.array(other["state_prompt_last"])
        assert gate.scores[row_id] == pytest.approx(state_D @ gate._direction_D, abs=1e-3)
    assert ties <= 2 and teacher.engine.num_held() == 0


def test_a_gate_that_stops_all_rows_asks_for_no_answer(teacher, requests):
    rows = rows_of(teacher.label(requests[:40], DecodingConfig(max_tokens=6), seed=0, gate=Gate(0.0)))
    assert len(rows) == 40 and all(row["completion"] is None for row in rows.values())
    assert teacher.engine.num_held() == 0 and teacher.engine.num_unfinished == 0
