"""Answers that came with the rows, read: against one plain forward over prompt and answer, no cache, no padding."""

import string
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from curation.config import DecodingConfig, ModelConfig, TeacherConfig
from curation.models import create, load_model, load_tokenizer
from curation.refs import ModelRef
from curation.teachers import Request, Teacher, load_teacher, options

QWEN = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 96,
    "initializer_range": 0.1,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3": QWEN,
    "mistral": QWEN | {"sliding_window": 12},  # shorter than most rows
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 2, "n_positions": 96, "initializer_range": 0.1},
}
STATES = ("prompt_last", "output_first", "output_last", "output_mean", "layer2_output_last", "layer1_output_mean")
TEXTS = {
    3: ("Seven and four are", " eleven"),
    1: ("Why?", " nobody knows, and few have asked"),
    8: ("Which metal is it, of all those that the tray holds?", " i"),
    5: ("A short one:", " iron, or tin; 7"),
}
OPTIONS = (" a gas", " iron and tin", " no", " it depends")
SUM = DecodingConfig()


@pytest.fixture(scope="module", params=SHAPES)
def ref(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    """A random model with a token a character."""
    words = tuple(string.ascii_letters + string.digits + " ?,.:;\n'")
    folder = tmp_path_factory.mktemp("models") / "m"
    return create(folder, family=request.param, shape=SHAPES[request.param], words=words, pattern=r"[\s\S]", seed=3)


def reader(ref: ModelRef, **settings: Any) -> Teacher:
    settings = {"states": STATES, "state_dtype": "float32", "batch_tokens": 400, "token_logprobs": 4} | settings
    teacher = TeacherConfig(model=ModelConfig(path=ref.base), **settings)
    return load_teacher(teacher.ask.model_copy(update={"reads_given": True}), ref)


def rows_of(teacher: Teacher, requests: list[Request], decoding: DecodingConfig = SUM) -> dict[int, dict[str, Any]]:
    rows = [row for batch in teacher.label(requests, decoding, seed=0) for row in batch.to_pylist()]
    assert sorted(row["row_id"] for row in rows) == sorted(request.row_id for request in requests)
    return {row["row_id"]: row for row in rows}


def plain(ref: ModelRef, prompt: str, answer: str) -> tuple[dict[str, float], dict[str, Any], list[float]]:
    """Numbers, states and log-probabilities of an answer's tokens by one forward over the whole text."""
    model, tokenizer = load_model(ref), load_tokenizer(ref)
    begin, ids = len(tokenizer(prompt)["input_ids"]), tokenizer(prompt + answer)["input_ids"]
    with torch.inference_mode():
        found = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    logits_TV = found.logits[0, begin - 1 : -1].double().numpy()
    logprob_TV = logits_TV - logsumexp(logits_TV, axis=1, keepdims=True)
    logprobs = [float(logprob_TV[place, token]) for place, token in enumerate(ids[begin:])]
    best_T2 = np.sort(logits_TV, axis=1)[:, -2:]
    margin_T, negentropy_T = best_T2[:, 1] - best_T2[:, 0], (np.exp(logprob_TV) * logprob_TV).sum(axis=1)
    numbers = {"mean_logprob": np.mean(logprobs), "min_logprob": min(logprobs)}
    numbers |= {"first_logprob": logprobs[0], "last_logprob": logprobs[-1]}
    for name, value_T in (("margin", margin_T), ("negentropy", negentropy_T)):
        numbers |= {name: value_T.mean(), f"min_{name}": value_T.min()}
        numbers |= {f"first_{name}": value_T[0], f"last_{name}": value_T[-1]}
    by_layer = {"": -1, "layer2_": 2, "layer1_": 1}
    states = {}
    for name in STATES:
        layer, position = next(
            (by_layer[start], name.removeprefix(start)) for start in reversed(by_layer) if start in name
        )
        hidden_TD = found.hidden_states[layer][0].numpy()
        states[name] = {
            "prompt_last": hidden_TD[begin - 1],
            "output_first": hidden_TD[begin],
            "output_last": hidden_TD[-1],
            "output_mean": hidden_TD[begin:].mean(axis=0),
        }[position]
    return numbers, states, logprobs


def check(row: dict[str, Any], ref: ModelRef, prompt: str, answer: str, *, but: tuple[str, ...] = ()) -> None:
    numbers, states, logprobs = plain(ref, prompt, answer)
    assert row["completion"] == answer and row["error"] is None and row["truncated"] is False
    assert (row["num_prompt_tokens"], row["num_output_tokens"]) == (len(prompt), len(answer))
    for name in numbers.keys() - set(but):
        assert row[name] == pytest.approx(numbers[name], abs=2e-5), name
    kept = [*logprobs[:4], *[0.0] * (4 - len(logprobs))]
    np.testing.assert_allclose(row["token_logprobs"], kept, atol=4e-3)  # stored in float16
    for name, expected_D in states.items():
        np.testing.assert_allclose(row[f"state_{name}"], expected_D, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("piece", [None, 3])
def test_a_free_answer_is_read_as_one_plain_forward(
    ref: ModelRef, piece: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if piece is not None:  # four rows of so many tokens
        vocabulary = load_model(ref).config.vocab_size
        monkeypatch.setattr(options, "MAX_LOGITS", 4 * piece * vocabulary)
    requests = [Request(row_id=row_id, prompt=prompt, given=given) for row_id, (prompt, given) in TEXTS.items()]
    rows = rows_of(reader(ref), requests)
    for row_id, (prompt, given) in TEXTS.items():
        check(rows[row_id], ref, prompt, given)
        assert rows[row_id]["option_logprobs"] is None and rows[row_id]["num_options"] is None


def test_a_given_option_is_read_among_the_others(ref: ModelRef) -> None:
    states = (*STATES, "option2_output_last")
    requests = [
        Request(row_id=place, prompt="What is it?", options=OPTIONS, given=given) for place, given in enumerate(OPTIONS)
    ]
    rows = rows_of(reader(ref, states=states), requests)
    sums = [sum(plain(ref, "What is it?", option)[2]) for option in OPTIONS]
    shares = np.exp(np.array(sums) - logsumexp(sums))
    of_tokens = tuple(f"{part}{name}" for part in ("", "min_", "first_", "last_") for name in ("margin", "negentropy"))
    for place, row in rows.items():
        check(row, ref, "What is it?", OPTIONS[place], but=of_tokens)
        others = [score for at, score in enumerate(sums) if at != place]
        np.testing.assert_allclose(row["option_logprobs"], sums, atol=2e-5)
        assert row["margin"] == pytest.approx(sums[place] - max(others), abs=5e-5)
        assert row["option_share"] == pytest.approx(shares[place], abs=1e-5)
        assert row["option_lead"] == pytest.approx(sums[place] - np.mean(sums), abs=5e-5)
        assert row["negentropy"] == pytest.approx((shares * np.log(shares)).sum(), abs=2e-5)
        assert row["num_options"] == 4 and row["first_margin"] is None
        rival = OPTIONS[sums.index(max(others))]
        expected_D = plain(ref, "What is it?", rival)[1]["output_last"]
        np.testing.assert_allclose(row["state_option2_output_last"], expected_D, atol=1e-4)
    assert sum(row["margin"] > 0 for row in rows.values()) == 1


def test_an_answer_that_is_no_option_is_read_as_a_text(ref: ModelRef) -> None:
    states = (*STATES, "option2_output_last")
    request = Request(row_id=1, prompt="What is it?", options=OPTIONS, given=" something else")
    row = rows_of(reader(ref, states=states), [request])[1]
    check(row, ref, "What is it?", " something else")
    assert row["num_options"] is None and set(row["state_option2_output_last"]) == {0.0}


def test_answers_that_cannot_be_read_are_error_rows(ref: ModelRef) -> None:
    requests = [
        Request(row_id=1, prompt="Why?", given=""),
        Request(row_id=2, prompt="Why?"),
        Request(row_id=3, prompt="Why?", given="b" * 93),
        Request(row_id=4, prompt="Why?", given="b" * 92),
    ]
    rows = rows_of(reader(ref), requests, DecodingConfig(max_tokens=90))
    assert [rows[row_id]["error"] for row_id in (1, 2, 3, 4)] == [
        "no_completion: no answer with tokens came with the row",
        "no_completion: no answer with tokens came with the row",
        "prompt_length: 4 tokens and 93 of answer; the model takes 96",
        None,
    ]
    assert rows[4]["num_output_tokens"] == 92
    assert all(rows[row_id]["state_output_last"] is rows[row_id]["completion"] is None for row_id in (1, 2, 3))


def test_a_model_that_answers_does_not_look_at_given_answers(ref: ModelRef) -> None:
    teacher = load_teacher(TeacherConfig(model=ModelConfig(path=ref.base), states=STATES), ref)
    both = [Request(row_id=1, prompt="Why?", given=given) for given in (None, " because it is so")]
    first, second = (rows_of(teacher, [request])[1] for request in both)
    assert first == second and first["completion"] != " because it is so"
