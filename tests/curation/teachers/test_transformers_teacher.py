"""The transformers teacher against transformers itself: ``generate`` for text, ``output_hidden_states`` for states."""

import numpy as np
import pytest
import torch

from curation.config import DecodingConfig, DomainConfig, ModelConfig, TeacherConfig
from curation.domains import get_domain
from curation.models import load_model, load_tokenizer
from curation.teachers import Request, load_teacher

ALL_STATES = ("prompt_last", "output_first", "output_last", "output_mean")


def make(ref, **settings):
    settings = {"states": ALL_STATES, "state_dtype": "float32", "batch_tokens": 900} | settings
    return load_teacher(TeacherConfig(model=ModelConfig(path=ref.base), **settings), ref)


def rows_of(batches):
    rows = {}
    for batch in batches:
        for row in batch.to_pylist():
            assert row["row_id"] not in rows
            rows[row["row_id"]] = row
    return rows


@pytest.fixture(scope="module")
def requests(puzzles):
    domain = get_domain(DomainConfig(name="chess"))
    return [Request(row_id=7 * i, prompt=domain.prompt(domain.read(raw))) for i, raw in enumerate(puzzles[:60])]


def reference(model, tokenizer, prompt, max_tokens):
    """Tokens, mean log-probability and states of one prompt alone, from transformers' own functions."""
    ids = tokenizer(prompt)["input_ids"]
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=max_tokens + 1, do_sample=False
        )[0].tolist()
        drawn = out[len(ids) :]
        stopped = tokenizer.eos_token_id in drawn  # an end token right after the cap is an end, too
        answer = drawn[: drawn.index(tokenizer.eos_token_id)] if stopped else drawn[:max_tokens]
        full = model(torch.tensor([ids + answer]), output_hidden_states=True)
    hidden = full.hidden_states[-1][0].numpy()
    logprobs = full.logits[0].log_softmax(-1)
    chosen = [float(logprobs[len(ids) - 1 + k, token]) for k, token in enumerate(answer)]
    text = tokenizer.decode(answer, skip_special_tokens=True)
    return text, answer, stopped, hidden, len(ids), chosen


@pytest.mark.long
def test_completions_states_and_logprobs_equal_transformers(tiny_model, requests):
    rows = rows_of(make(tiny_model).label(requests, DecodingConfig(max_tokens=5), seed=0))
    assert set(rows) == {request.row_id for request in requests}
    model, tokenizer = load_model(tiny_model), load_tokenizer(tiny_model)
    lengths = set()
    for request in requests:
        text, answer, stopped, hidden, num_prompt, chosen = reference(model, tokenizer, request.prompt, 5)
        row = rows[request.row_id]
        lengths.add(num_prompt)
        assert row["completion"] == text
        assert row["num_prompt_tokens"] == num_prompt
        assert row["num_output_tokens"] == len(answer)
        assert row["truncated"] is not stopped
        positions = {
            "prompt_last": hidden[num_prompt - 1],
            "output_first": hidden[num_prompt] if answer else hidden[-1],
            "output_last": hidden[-1],
            "output_mean": hidden[num_prompt:].mean(axis=0) if answer else hidden[-1],
        }
        for name, expected in positions.items():
            np.testing.assert_allclose(row[f"state_{name}"], expected, atol=1e-4)
        if answer:
            assert row["mean_logprob"] == pytest.approx(np.mean(chosen), abs=1e-4)
    assert len(lengths) > 5  # padded batches of mixed lengths were among them


def test_rows_end_by_stop_token_and_by_length(tiny_model, requests):
    """A model whose end token is likely ends some rows early: both ways to end occur and agree with transformers."""
    teacher = make(tiny_model)
    with torch.no_grad():
        teacher._model.get_output_embeddings().weight[teacher._tokenizer.eos_token_id] *= 6
    rows = rows_of(teacher.label(requests, DecodingConfig(max_tokens=6), seed=0))
    counts = {row["num_output_tokens"] for row in rows.values()}
    assert {row["truncated"] for row in rows.values()} == {True, False}
    assert len(counts) > 2
    model = teacher._model
    for request in requests[:20]:
        row = rows[request.row_id]
        ids = teacher._tokenizer(request.prompt)["input_ids"]
        out = model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=6, do_sample=False
        )
        answer = [token for token in out[0].tolist()[len(ids) :] if token != teacher._tokenizer.eos_token_id]
        assert row["num_output_tokens"] == len(answer)
        with torch.inference_mode():
            hidden = model(torch.tensor([ids + answer]), output_hidden_states=True).hidden_states[-1][0]
        np.testing.assert_allclose(row["state_output_last"], hidden[-1].numpy(), atol=1e-4)


def test_stored_states_are_the_float16_of_what_was_computed(tiny_model, requests):
    exact = rows_of(make(tiny_model).label(requests[:10], DecodingConfig(max_tokens=3), seed=0))
    stored = rows_of(make(tiny_model, state_dtype="float16").label(requests[:10], DecodingConfig(max_tokens=3), seed=0))
    for row_id, row in stored.items():
        expected = np.array(exact[row_id]["state_output_last"], dtype=np.float32).astype(np.float16)
        assert np.array(row["state_output_last"], dtype=np.float16).tobytes() == expected.tobytes()


def scaled(teacher, factor):
    with torch.no_grad():
        teacher._model.model.norm.weight *= factor
    return teacher


def test_numbers_beyond_float16_are_stored_as_its_largest_ones(tiny_model, requests):
    few, decoding = requests[:3], DecodingConfig(max_tokens=3)
    exact = rows_of(scaled(make(tiny_model), 1e6).label(few, decoding, seed=0))
    stored = rows_of(scaled(make(tiny_model, state_dtype="float16"), 1e6).label(few, decoding, seed=0))
    num_beyond = 0
    for row_id, row in stored.items():
        assert row["error"] is exact[row_id]["error"] is None
        for name in ALL_STATES:
            wide_D = np.array(exact[row_id][f"state_{name}"])
            expected_D = np.sign(wide_D) * np.minimum(np.abs(wide_D), 65504)
            np.testing.assert_array_equal(row[f"state_{name}"], expected_D.astype(np.float16))
            num_beyond += int((np.abs(wide_D) > 65504).sum())
    assert num_beyond > 0


@pytest.mark.parametrize("state_dtype", ["float16", "float32"])
def test_a_state_that_is_not_finite_is_an_error_row(tiny_model, requests, state_dtype):
    teacher = scaled(make(tiny_model, state_dtype=state_dtype), float("inf"))
    for row in rows_of(teacher.label(requests[:3], DecodingConfig(max_tokens=3), seed=0)).values():
        assert row["error"].startswith("state_overflow: ")
        assert "teacher.dtype" in row["error"]
        assert row["state_output_last"] is None


def test_stop_strings_end_the_answer_before_them(tiny_model, requests):
    """The text before the stop string, its tokens only, and the state at the last of them."""
    free = rows_of(make(tiny_model).label(requests, DecodingConfig(max_tokens=6, stop=()), seed=0))
    row_id, words = next(
        (row_id, row["completion"])
        for row_id, row in free.items()
        if row["num_output_tokens"] == 6 and row["completion"]
    )
    request = next(request for request in requests if request.row_id == row_id)
    teacher = make(tiny_model)
    ids = teacher._tokenizer(request.prompt)["input_ids"]
    pieces = teacher._tokenizer.convert_ids_to_tokens(teacher._tokenizer(words)["input_ids"])
    stop = pieces[2]
    rows = rows_of(teacher.label([request], DecodingConfig(max_tokens=6, stop=(stop,)), seed=0))
    row = rows[row_id]
    assert row["completion"] == words.split(stop)[0]
    kept = teacher._tokenizer(row["completion"])["input_ids"]
    assert row["num_output_tokens"] == len(kept)
    with torch.inference_mode():
        hidden = teacher._model(torch.tensor([ids + kept]), output_hidden_states=True).hidden_states[-1][0].numpy()
    np.testing.assert_allclose(row["state_output_last"], hidden[-1], atol=1e-4)
    if kept:
        np.testing.assert_allclose(row["state_output_mean"], hidden[len(ids) :].mean(axis=0), atol=1e-4)


def test_sampling_depends_on_seed_and_row_alone(tiny_model, requests):
    decoding = DecodingConfig(max_tokens=4, temperature=1.0, top_k=50, top_p=0.9)
    together = rows_of(make(tiny_model).label(requests, decoding, seed=3))
    alone = rows_of(make(tiny_model, batch_tokens=1).label(requests[::-1], decoding, seed=3))
    other = rows_of(make(tiny_model).label(requests, decoding, seed=4))
    assert {i: row["completion"] for i, row in together.items()} == {i: row["completion"] for i, row in alone.items()}
    assert [row["completion"] for row in together.values()] != [row["completion"] for row in other.values()]


def test_prompts_beyond_the_context_are_error_rows(tiny_model, requests):
    long = Request(row_id=-1, prompt=requests[0].prompt * 10)
    rows = rows_of(make(tiny_model).label([*requests[:3], long], DecodingConfig(max_tokens=3), seed=0))
    assert rows[-1]["error"].startswith("prompt_length: ")
    assert sum(row["error"] is None for row in rows.values()) == 3
