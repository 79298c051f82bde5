"""Log-probabilities of an answer's first tokens, against one plain forward of prompt and answer, float32."""

import numpy as np
import pytest
import torch

from curation.config import DecodingConfig, ModelConfig, TeacherConfig
from curation.models import load_model, load_tokenizer
from curation.tables.schemas import LOGPROBS, OF_TOKENS
from curation.teachers import Request, load_teacher
from curation.teachers.completions import completion_batch
from tests.curation.teachers.test_options import MEAN, SUM, char_model, mcqa_requests, reference, rows_of

K = 5


@pytest.fixture(scope="module", params=["qwen3", "gpt2"])
def model_ref(request, tmp_path_factory):
    """A random model with a token per character, whose end token is drawn now and then."""
    path = tmp_path_factory.mktemp("models") / "m"
    model = load_model(char_model(path, request.param))
    with torch.no_grad():
        model.get_output_embeddings().weight[model.config.eos_token_id] *= 2
    model.save_pretrained(path)
    from curation.models import resolve

    return resolve(str(path))


def make(ref, **settings):
    settings = {"state_dtype": "float32", "batch_tokens": 400, "token_logprobs": K} | settings
    return load_teacher(TeacherConfig(model=ModelConfig(path=ref.base), **settings), ref)


def check(row, expected):
    """The first K, then zeros; float16 holds them to 2e-3 (below 8 in size, to 4e-3 above)."""
    assert len(row["token_logprobs"]) == K
    ends = [min(expected), expected[0], expected[-1]] if len(expected) else [None] * 3
    assert [row[name] for name in LOGPROBS] == [None if end is None else pytest.approx(end, abs=1e-4) for end in ends]
    padded = (list(expected) + [0.0] * K)[:K]
    np.testing.assert_allclose(row["token_logprobs"], padded, rtol=5e-4, atol=1e-4)
    if 0 < len(expected) <= K:
        assert np.mean(row["token_logprobs"][: len(expected)]) == pytest.approx(row["mean_logprob"], abs=2e-3)


@pytest.mark.parametrize("stop", [(), ("e",)])
def test_of_answers_equal_plain_transformers(model_ref, stop):
    """Answers that end by the end token, by a stop string and by length, shorter and longer than K."""
    prompts = [request.prompt + more for request in mcqa_requests("texts") for more in ("", " or", " a", " the")]
    requests = [Request(row_id=place, prompt=prompt) for place, prompt in enumerate(prompts)]
    rows = rows_of(make(model_ref).label(requests, DecodingConfig(max_tokens=8, stop=stop), seed=0))
    model, tokenizer = load_model(model_ref), load_tokenizer(model_ref)
    lengths = set()
    for request in requests:
        prompt, answer = tokenizer(request.prompt)["input_ids"], []
        with torch.inference_mode():
            for _ in range(rows[request.row_id]["num_output_tokens"]):
                answer.append(int(model(torch.tensor([prompt + answer])).logits[0, -1].argmax()))
            logprob_TV = model(torch.tensor([prompt + answer]), use_cache=False).logits[0].log_softmax(-1)
        expected = [float(logprob_TV[len(prompt) + place - 1, token]) for place, token in enumerate(answer)]
        check(rows[request.row_id], expected)
        lengths.add(len(answer))
    assert 0 < min(lengths - {0}) < K < max(lengths) or stop


@pytest.mark.parametrize(("style", "decoding"), [("letters", SUM), ("texts", SUM), ("texts", MEAN)])
def test_of_the_chosen_option_equal_plain_transformers(model_ref, style, decoding):
    requests = mcqa_requests(style)
    rows = rows_of(make(model_ref, states=("prompt_last",)).label(requests, decoding, seed=0))
    model, tokenizer = load_model(model_ref), load_tokenizer(model_ref)
    for request in requests:
        row = rows[request.row_id]
        check(row, reference(model, tokenizer, request.prompt, row["completion"])[0])


def test_error_rows_have_none_and_nobody_else_pays(model_ref):
    requests = [*mcqa_requests("letters"), Request(row_id=-1, prompt="", options=("a", "b"))]
    requests += [Request(row_id=1000, prompt="Why?")]
    rows = rows_of(make(model_ref).label(requests, DecodingConfig(max_tokens=3), seed=0))
    assert rows[-1]["error"] is not None
    assert [rows[-1][name] for name in OF_TOKENS] == [None] * 4 and rows[1000]["min_logprob"] < 0
    for teacher, how in ((make(model_ref), {"states": False}), (make(model_ref, token_logprobs=0), {})):
        for batch in teacher.label(requests, DecodingConfig(max_tokens=3), seed=0, **how):
            assert not {*OF_TOKENS} & {*batch.schema.names}


def test_the_scripted_teacher_gives_its_mean_for_each_word():
    teacher = load_teacher(TeacherConfig(backend="scripted", token_logprobs=3), None)
    rows = rows_of(teacher.label([Request(row_id=1, prompt="Which?", options=(" a b",) * 2)], SUM, seed=0))
    mean = rows[1]["mean_logprob"]
    np.testing.assert_allclose(rows[1]["token_logprobs"], [mean, mean, 0], rtol=1e-3)
    assert [rows[1][name] for name in LOGPROBS] == [mean] * 3


def test_tokens_in_the_middle_may_be_left_out_but_for_the_least():
    def batch(rows):
        return completion_batch(
            row_ids=[1, 2, 3],
            completions=["a", "", None],
            mean_logprobs=[-1.0, None, None],
            token_logprobs=rows,
            num_token_logprobs=2,
            num_prompt_tokens=[1, 1, None],
            num_output_tokens=[5, 0, None],
            truncated=[False, False, None],
            states={},
            state_dtype="float16",
            errors=[None, None, "bad: x"],
        )

    found = batch([[-1.0, -2.0, -4.0, -0.5], [], []])
    assert found.equals(batch([[-1.0, -2.0, -3.0, -4.0, -0.5], [], []]))
    assert [found.column(name).to_pylist() for name in LOGPROBS] == [
        [-4.0, None, None],
        [-1.0, None, None],
        [-0.5, None, None],
    ]
    assert batch([]).column("min_logprob").null_count == 3
