"""Option scoring against a plain computation: one forward per prompt and option, no cache, no padding, float32."""

import string
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from curation.config import DecodingConfig, ModelConfig, TeacherConfig
from curation.models import create, load_model, load_tokenizer
from curation.teachers import Request, load_teacher, options
from curation.teachers.prompts import tokenise
from curation.teachers.trie import Trie

ALL_STATES = ("prompt_last", "output_first", "output_last", "output_mean")
SUM, MEAN = DecodingConfig(), DecodingConfig(normalise_options=True)
QWEN = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,  # logits that differ enough for the choices to vary
}
# Mistral's window is shorter than the prompts; GPT-2 has learned positions, none beyond the last; Gemma 2 caps logits.
SHAPES = {
    "qwen3": QWEN,
    "mistral": QWEN | {"sliding_window": 12},
    "gemma2": QWEN | {"final_logit_softcapping": 1.0},
    "gpt2": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 128,
        "initializer_range": 0.1,
    },
}
QUESTIONS = (
    "What do plants breathe in?",
    "Which of these is a metal?",
    "Why?",
    "How many legs has a spider, and how many has an ant that lost one?",
    "Water boils at",
    "The capital of a country is most often",
    "Who wrote the play, and when was it first on a stage?",
)
TEXTS = (" a gas", " iron and tin", " no", " it depends", " 7")


def char_model(path, family):
    """A random model with a token per character."""
    words = tuple(string.ascii_letters + string.digits + " ?,.:\n'")
    return create(path, family=family, shape=SHAPES[family], words=words, pattern=r"[\s\S]", seed=3)


@pytest.fixture(scope="module", params=SHAPES)
def any_model(request, tmp_path_factory):
    return char_model(tmp_path_factory.mktemp("models") / "m", request.param)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return char_model(tmp_path_factory.mktemp("models") / "m", "qwen3")


def make(ref, **settings):
    settings = {"states": ALL_STATES, "state_dtype": "float32", "batch_tokens": 400} | settings
    return load_teacher(TeacherConfig(model=ModelConfig(path=ref.base), **settings), ref)


def rows_of(batches):
    rows = {}
    for batch in batches:
        for row in batch.to_pylist():
            assert row["row_id"] not in rows
            rows[row["row_id"]] = row
    return rows


def mcqa_requests(style):
    """Questions of unequal length with 2 to 5 options: one token each, or texts of unequal length."""
    given = []
    for place, question in enumerate(QUESTIONS):
        number = 2 + place % 4
        if style == "letters":
            given.append((f"{question}\nAnswer: ", tuple("ABCDEFGH"[:number])))
        else:
            given.append((f"{question}\nAnswer:", tuple(np.roll(TEXTS, place)[:number].tolist())))
    return [Request(row_id=5 * place + 2, prompt=prompt, options=few) for place, (prompt, few) in enumerate(given)]


def reference(model, tokenizer, prompt, option):
    """Log-probabilities of the option's tokens and the states of the whole row, from one plain forward."""
    prompt_ids, ids = tokenizer(prompt)["input_ids"], tokenizer(prompt + option)["input_ids"]
    with torch.inference_mode():
        full = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    logprob_TV = full.logits[0].log_softmax(-1)
    chosen = [float(logprob_TV[place - 1, ids[place]]) for place in range(len(prompt_ids), len(ids))]
    return chosen, full.hidden_states[-1][0].numpy(), len(prompt_ids)


def check(row, request, scored, *, normalise=False):
    """One row against the reference of each of its options."""
    sums = [sum(logprobs) for logprobs, _, _ in scored]
    ranks = [sum(logprobs) / len(logprobs) for logprobs, _, _ in scored] if normalise else sums
    best = int(np.argmax(ranks))
    logprobs, hidden_TD, num_prompt = scored[best]
    np.testing.assert_allclose(row["option_logprobs"], sums, rtol=0, atol=1e-5)
    assert row["completion"] == request.options[best]
    assert row["mean_logprob"] == pytest.approx(np.mean(logprobs), abs=1e-5)
    assert (row["num_prompt_tokens"], row["num_output_tokens"]) == (num_prompt, len(logprobs))
    assert row["truncated"] is False and row["error"] is None
    expected = {
        "prompt_last": hidden_TD[num_prompt - 1],
        "output_first": hidden_TD[num_prompt],
        "output_last": hidden_TD[-1],
        "output_mean": hidden_TD[num_prompt:].mean(axis=0),
    }
    for name, expected_D in expected.items():
        np.testing.assert_allclose(row[f"state_{name}"], expected_D, atol=1e-4)


@pytest.mark.parametrize("style", ["letters", "texts"])
def test_mcqa_scores_and_states_equal_plain_transformers(any_model, style):
    requests = mcqa_requests(style)
    rows = rows_of(make(any_model).label(requests, SUM, seed=0))
    model, tokenizer = load_model(any_model), load_tokenizer(any_model)
    assert set(rows) == {request.row_id for request in requests}
    for request in requests:
        scored = [reference(model, tokenizer, request.prompt, option) for option in request.options]
        check(rows[request.row_id], request, scored)


def test_mcqa_choice_by_sums_and_by_means(qwen):
    requests = mcqa_requests("texts")
    by_sum, by_mean = (rows_of(make(qwen).label(requests, decoding, seed=0)) for decoding in (SUM, MEAN))
    model, tokenizer = load_model(qwen), load_tokenizer(qwen)
    for request in requests:
        scored = [reference(model, tokenizer, request.prompt, option) for option in request.options]
        check(by_mean[request.row_id], request, scored, normalise=True)
        assert by_sum[request.row_id]["option_logprobs"] == by_mean[request.row_id]["option_logprobs"]
    assert any(by_sum[i]["completion"] != by_mean[i]["completion"] for i in by_sum)


def test_mcqa_the_first_of_equal_options_is_chosen(qwen):
    """Two characters that the tokenizer does not know are the same token."""
    request = Request(row_id=1, prompt="Which?", options=("é", "ü"))
    row = rows_of(make(qwen).label([request], SUM, seed=0))[1]
    assert row["option_logprobs"][0] == row["option_logprobs"][1]
    assert row["completion"] == "é"


@pytest.mark.long
def test_mcqa_results_do_not_depend_on_the_batch(qwen, monkeypatch):
    """All at once, one row at a time, options one at a time, and an option's tokens one at a time."""
    many = tuple(f" {k} or {k * k}" for k in range(60))
    requests = [*mcqa_requests("texts"), Request(row_id=-1, prompt="Pick one of many:", options=many)]
    whole = rows_of(make(qwen, batch_tokens=100_000).label(requests, SUM, seed=0))
    small = rows_of(make(qwen, batch_tokens=1).label(requests, SUM, seed=0))
    monkeypatch.setattr(options, "MAX_LOGITS", 1)
    pieces = rows_of(make(qwen, batch_tokens=2000).label(requests[::-1], SUM, seed=0))
    assert set(whole) == set(small) == set(pieces)
    for row_id, row in whole.items():
        for other in (small[row_id], pieces[row_id]):
            assert other["completion"] == row["completion"]
            np.testing.assert_allclose(other["option_logprobs"], row["option_logprobs"], rtol=0, atol=1e-5)
            for name in ALL_STATES:
                np.testing.assert_allclose(other[f"state_{name}"], row[f"state_{name}"], atol=1e-4)


@pytest.mark.parametrize(
    ("style", "states", "expected"),
    [
        ("letters", ("prompt_last",), ["prompts"]),
        ("letters", ("output_last",), ["prompts", "chosen"]),
        ("texts", ("output_last",), ["prompts", "branches", "texts"]),
    ],
)
def test_mcqa_prompts_are_fed_once(qwen, style, states, expected):
    """No second pass over the prompts; options of one token cost one more step, and none without states."""
    teacher = make(qwen, states=states, batch_tokens=100_000)
    assert teacher._forward.takes_branches and teacher._forward.head_is_linear  # tried before the passes are counted
    fed = []
    teacher._model.register_forward_pre_hook(
        lambda module, args, kwargs: fed.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    requests = mcqa_requests(style)
    rows = rows_of(teacher.label(requests, SUM, seed=0))
    inner = [len({few[:k] for few in request.options for k in range(1, len(few))}) for request in requests]
    shapes = {
        "prompts": (len(requests), max(len(request.prompt) for request in requests)),
        "chosen": (len(requests), 1),
        "branches": (len(requests), max(inner)),
        "texts": (len(requests), max(len(row["completion"]) for row in rows.values())),
    }
    assert fed == [shapes[name] for name in expected]


def test_mcqa_the_heads_module_computes_one_position_a_pass(qwen):
    """Branches are scored from what the head reads; of the chosen options the states alone are kept."""
    teacher = make(qwen, states=("output_mean",), batch_tokens=100_000)
    assert teacher._forward.takes_branches and teacher._forward.head_is_linear
    computed = []
    head = teacher._model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, logits: computed.append(logits.shape[1]))
    rows_of(teacher.label(mcqa_requests("texts"), SUM, seed=0))
    assert computed == [1, 1, 1]


def test_mcqa_forced_scoring_of_a_generated_answer(qwen):
    """An answer given as the only option has the log-probability and the states that it had when it was drawn."""
    prompts = {request.row_id: request.prompt for request in mcqa_requests("texts")}
    drawn = rows_of(
        make(qwen).label(
            [Request(row_id=row_id, prompt=prompt) for row_id, prompt in prompts.items()],
            DecodingConfig(max_tokens=12, stop=(), temperature=1.0),
            seed=1,
        )
    )
    full = {i: row for i, row in drawn.items() if len(row["completion"]) == row["num_output_tokens"] > 0}
    assert len(full) >= 4  # the others drew a special token, which the text does not show
    forced = rows_of(
        make(qwen).label(
            [Request(row_id=i, prompt=prompts[i], options=(row["completion"],)) for i, row in full.items()],
            DecodingConfig(temperature=1.0),
            seed=9,
        )
    )
    for row_id, row in forced.items():
        assert row["completion"] == full[row_id]["completion"]
        assert row["mean_logprob"] == pytest.approx(full[row_id]["mean_logprob"], abs=1e-5)
        assert row["option_logprobs"] == [pytest.approx(row["mean_logprob"] * row["num_output_tokens"], abs=1e-4)]
        for name in ALL_STATES:
            np.testing.assert_allclose(row[f"state_{name}"], full[row_id][f"state_{name}"], atol=1e-4)


def test_mcqa_mixed_with_generation_in_one_stream(qwen):
    scored = mcqa_requests("letters") + [
        Request(row_id=request.row_id + 1, prompt=request.prompt, options=request.options)
        for request in mcqa_requests("texts")
    ]
    generated = [Request(row_id=1000 + k, prompt=request.prompt) for k, request in enumerate(scored)]
    decoding = DecodingConfig(max_tokens=4)
    alternating = [request for pair in zip(scored, generated, strict=True) for request in pair]
    mixed = rows_of(make(qwen).label(alternating, decoding, seed=0))
    apart = rows_of(make(qwen).label(scored, decoding, seed=0)) | rows_of(make(qwen).label(generated, decoding, seed=0))
    assert mixed.keys() == apart.keys()
    for row_id, row in mixed.items():
        assert row["completion"] == apart[row_id]["completion"]
        assert (row["option_logprobs"] is None) == (row_id >= 1000)


def test_mcqa_requests_that_cannot_be_scored_are_error_rows(qwen):
    fine = mcqa_requests("texts")
    room = QWEN["max_position_embeddings"]
    requests = [
        *fine,
        Request(row_id=-1, prompt="Which?", options=()),
        Request(row_id=-2, prompt="Which?", options=(" a", "")),
        Request(row_id=-3, prompt="", options=(" a", " b")),
        Request(row_id=-4, prompt="x" * (room - 3), options=("a", "abcd")),
        Request(row_id=-5, prompt="x" * (room - 4), options=("a", "abcd")),
    ]
    rows = rows_of(make(qwen).label(requests, SUM, seed=0))
    assert rows[-1]["error"].startswith("bad_options: none given")
    assert rows[-2]["error"] == "bad_options: option 2 of 2, '', has no tokens"
    assert rows[-3]["error"].startswith("prompt_length: ")
    assert rows[-4]["error"] == f"prompt_length: {room - 3} tokens and 4 of answer; the model takes {room}"
    for row_id in (-1, -2, -3, -4):
        assert all(rows[row_id][name] is None for name in rows[row_id] if name not in ("row_id", "error"))
    assert all(row["error"] is None for row_id, row in rows.items() if row_id not in (-1, -2, -3, -4))


def test_mcqa_option_tokens_at_the_boundary(tmp_path):
    """What the whole text has beyond the prompt; the option by itself where its first word merges with the last."""
    words = ("the", "b", "ad", "bad", "end", " ")
    ref = create(tmp_path / "m", family="qwen3", shape=QWEN, words=words, pattern=r"[a-z]+|[^a-z]", seed=0)
    tokenizer = load_tokenizer(ref)
    requests = [
        Request(row_id=0, prompt="the b", options=(" end", "ad")),
        Request(row_id=1, prompt="the", options=(" bad end",)),
    ]
    first, second = tokenise(tokenizer, requests, chat_template=False)
    token = dict(zip(words, tokenizer.convert_tokens_to_ids(list(words)), strict=True))
    assert first.prompt == [token["the"], token[" "], token["b"]]
    assert first.options == [[token[" "], token["end"]], [token["ad"]]]
    assert second.options == [[token[" "], token["bad"], token[" "], token["end"]]]


def test_mcqa_scripted_teacher_chooses_among_the_options():
    teacher = load_teacher(TeacherConfig(backend="scripted", states=("output_last",)), None)
    requests = [Request(row_id=k, prompt="Which?", options=(" A", " B b", " C")) for k in range(300)]
    requests += [
        Request(row_id=300, prompt="Which?"),
        Request(row_id=301, prompt="Which?", options=()),
        Request(row_id=302, prompt="Which?", options=(" A", "")),
    ]
    rows = rows_of(teacher.label(requests, SUM, seed=4))
    again = rows_of(load_teacher(TeacherConfig(backend="scripted"), None).label(requests[::-1], SUM, seed=4))
    assert {i: row["completion"] for i, row in rows.items()} == {i: row["completion"] for i, row in again.items()}
    assert {rows[k]["completion"] for k in range(300)} == set(requests[0].options)
    for k in range(300):
        row = rows[k]
        assert requests[0].options[int(np.argmax(row["option_logprobs"]))] == row["completion"]
        assert max(row["option_logprobs"]) == pytest.approx(row["mean_logprob"] * row["num_output_tokens"], rel=1e-5)
    assert rows[300]["completion"] == " e2e4" and rows[300]["option_logprobs"] is None
    assert rows[301]["error"].startswith("bad_options: ") and rows[302]["error"].startswith("bad_options: ")


def test_a_node_that_paths_share_is_read_once():
    trie = Trie([[1, 2, 3], [1, 2, 4, 5], [1, 2, 4, 6], [1, 2, 7, 8]])
    forward = SimpleNamespace(pad=0, head_is_linear=True, tensor=torch.tensor, extend=lambda *_, **__: None)
    prefix = SimpleNamespace(width=3, select=lambda _: SimpleNamespace())
    [(_, fed)] = options._iter_paths(forward, prefix, [trie, trie], 1000)
    assert sorted((place, node) for _, _, place, node in fed) == [(place, of) for place in (0, 1) for of in trie.inner]
