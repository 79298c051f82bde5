"""Min-p and presence penalty against direct formulas."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from curation.config import DecodingConfig, DomainConfig, ModelConfig, TeacherConfig
from curation.domains import get_domain
from curation.teachers import Request, load_teacher
from curation.teachers.options import compute_position_states
from curation.teachers.transformers import _AnswerStates, compute_distribution


@pytest.fixture(scope="module")
def requests(puzzles):
    domain = get_domain(DomainConfig(name="chess"))
    return [Request(row_id=3 * i, prompt=domain.prompt(domain.read(raw))) for i, raw in enumerate(puzzles[:24])]


def make(ref, **settings):
    settings = {"state_dtype": "float32", "batch_tokens": 900} | settings
    return load_teacher(TeacherConfig(model=ModelConfig(path=ref.base), **settings), ref)


def rows_of(batches):
    return {row["row_id"]: row for batch in batches for row in batch.to_pylist()}


def test_limits_equal_a_direct_formula():
    """Each limit over the probabilities that the one before it left: top-k, then top-p, then min-p."""
    rng = np.random.default_rng(0)
    logits_BV = rng.normal(scale=2.0, size=(50, 30)).astype(np.float32)
    decoding = DecodingConfig(temperature=0.7, top_k=12, top_p=0.95, min_p=0.08)
    probs_BV = compute_distribution(torch.from_numpy(logits_BV), decoding).numpy()
    cut = 0
    for logits_V, probs_V in zip(logits_BV, probs_BV, strict=True):
        share_V = np.exp(logits_V.astype(np.float64) / 0.7)
        order = np.argsort(-share_V)[:12]
        share_V = share_V[order] / share_V[order].sum()
        share_V = share_V[: 1 + int((np.cumsum(share_V)[:-1] < 0.95).sum())]
        kept = share_V >= 0.08 * share_V[0]
        cut += int((~kept).sum())
        expected_V = np.zeros(30)
        expected_V[order[: len(share_V)][kept]] = share_V[kept] / share_V[kept].sum()
        np.testing.assert_allclose(probs_V, expected_V, atol=1e-6)
    assert cut > 0
    free = compute_distribution(torch.from_numpy(logits_BV), DecodingConfig(temperature=1.0))
    np.testing.assert_allclose(free.numpy(), torch.from_numpy(logits_BV).softmax(-1).numpy(), atol=1e-7)


def test_states_of_answers_are_held_of_the_newest_tokens_alone():
    """Ends become known when their token is drawn or, by a stop string, up to five tokens later."""
    lengths, late, stop = [0, 1, 9, 37, 60], [0, 0, 5, 3, 0], ("abc",)
    hidden_BTD, prompt_BD = torch.randn(5, 60, 4), torch.randn(5, 4)
    rows = [SimpleNamespace(num_content=None) for _ in lengths]
    states = _AnswerStates(rows, prompt_BD, stop)
    for place in range(60):
        for row, length, after in zip(rows, lengths, late, strict=True):
            row.num_content = length if place >= length + after else None
        states.add(hidden_BTD[:, place])
        assert len(states._newest) <= 5
    rows[-1].num_content = 60
    found, length_B1 = states.compute(), torch.tensor(lengths)[:, None]
    for position, expected_BD in compute_position_states(hidden_BTD, length_B1.clamp(min=1)).items():
        expected_BD[0] = prompt_BD[0]
        torch.testing.assert_close(found[position], expected_BD)


def test_presence_penalty_counts_each_token_of_the_answer_once(tiny_model, requests):
    """Greedy, step by step over whole rows without a cache; log-probabilities stay the model's own."""
    penalty = 1.5
    decoding = DecodingConfig(max_tokens=8, stop=(), presence_penalty=penalty)
    teacher = make(tiny_model)
    rows = rows_of(teacher.label(requests, decoding, seed=0))
    plain = rows_of(teacher.label(requests, DecodingConfig(max_tokens=8, stop=()), seed=0))
    for request in requests:
        prompt = teacher._tokenizer(request.prompt)["input_ids"]
        answer, logprobs = [], []
        while len(answer) < 8:
            with torch.inference_mode():
                logits_V = teacher._model(torch.tensor([prompt + answer])).logits[0, -1]
            penalised_V = logits_V.clone()
            penalised_V[list(set(answer))] -= penalty
            token = int(penalised_V.argmax())
            if token == teacher._tokenizer.eos_token_id:
                break
            answer.append(token)
            logprobs.append(float(logits_V.log_softmax(-1)[token]))
        row = rows[request.row_id]
        assert row["num_output_tokens"] == len(answer)
        assert row["completion"] == teacher._tokenizer.decode(answer, skip_special_tokens=True)
        assert row["mean_logprob"] == pytest.approx(np.mean(logprobs), abs=1e-4)
    assert any(plain[row_id]["completion"] != row["completion"] for row_id, row in rows.items())


def test_sampling_with_penalty_and_min_p_depends_on_seed_and_row_alone(tiny_model, requests):
    decoding = DecodingConfig(max_tokens=6, temperature=1.0, min_p=0.3, presence_penalty=1.5)
    together = rows_of(make(tiny_model).label(requests, decoding, seed=3))
    alone = rows_of(make(tiny_model, batch_tokens=1).label(requests[::-1], decoding, seed=3))
    without = rows_of(make(tiny_model).label(requests, DecodingConfig(max_tokens=6, temperature=1.0), seed=3))
    assert {i: row["completion"] for i, row in together.items()} == {i: row["completion"] for i, row in alone.items()}
    assert {i: row["completion"] for i, row in together.items()} != {i: row["completion"] for i, row in without.items()}
