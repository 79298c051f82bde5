"""States of other layers than the last, against a bare loop over transformers' ``output_hidden_states``, float32."""

import string

import numpy as np
import pytest
import torch

from curation.config import DecodingConfig, ModelConfig, TeacherConfig
from curation.errors import ModelError
from curation.models import create, load_model, load_tokenizer, resolve
from curation.teachers import Request, load_teacher
from tests.curation.teachers.test_options import QWEN, SHAPES, mcqa_requests, rows_of

SHAPES = {
    "qwen3": QWEN | {"num_hidden_layers": 4},
    "mistral": SHAPES["mistral"] | {"num_hidden_layers": 4},
    "gpt2": SHAPES["gpt2"] | {"n_layer": 4},
}
# Name, the index into transformers' hidden states, the position; in no order.
NAMED = [
    ("layer3_output_last", 3, "output_last"),
    ("output_mean", -1, "output_mean"),
    ("layer1_output_mean", 1, "output_mean"),
    ("layer2_prompt_last", 2, "prompt_last"),
    ("output_last", -1, "output_last"),
    ("layer3_output_first", 3, "output_first"),
]
NAMES = tuple(name for name, _, _ in NAMED)


@pytest.fixture(scope="module", params=SHAPES)
def deep(request, tmp_path_factory):
    """A random model of four layers with a token per character, whose end token is drawn now and then."""
    path = tmp_path_factory.mktemp("models") / "m"
    words = tuple(string.ascii_letters + string.digits + " ?,.:\n'")
    ref = create(path, family=request.param, shape=SHAPES[request.param], words=words, pattern=r"[\s\S]", seed=3)
    model = load_model(ref)
    with torch.no_grad():
        model.get_output_embeddings().weight[model.config.eos_token_id] *= 2
    model.save_pretrained(path)
    return resolve(str(path))


def make(ref, states=NAMES, **settings):
    settings = {"state_dtype": "float32", "batch_tokens": 400} | settings
    return load_teacher(TeacherConfig(model=ModelConfig(path=ref.base), states=states, **settings), ref)


@torch.inference_mode()
def plain(model, ids):
    """Logits of the last token, and the hidden states [layer, T, D] of all, without a cache."""
    full = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    return full.logits[0, -1], torch.cat(full.hidden_states).numpy()


def greedy(model, ids, ends, max_tokens):
    """The answer's tokens, and whether one of ``ends`` ended it."""
    answer = []
    while True:
        token = int(plain(model, ids + answer)[0].argmax())
        if token in ends or len(answer) == max_tokens:
            return answer, token in ends
        answer.append(token)


def check(row, model, prompt, answer):
    hidden_LTD = plain(model, prompt + answer)[1]
    for name, layer, position in NAMED:
        hidden_TD = hidden_LTD[layer]
        expected = {
            "prompt_last": hidden_TD[len(prompt) - 1],
            "output_first": hidden_TD[len(prompt)] if answer else hidden_TD[-1],
            "output_last": hidden_TD[-1],
            "output_mean": hidden_TD[len(prompt) :].mean(axis=0) if answer else hidden_TD[-1],
        }
        np.testing.assert_allclose(row[f"state_{name}"], expected[position], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.long
def test_layers_of_answers_equal_plain_transformers(deep):
    """Answers that end by the end token, by a stop string and by length."""
    requests = [
        Request(row_id=r.row_id, prompt=r.prompt + more) for more in ("", " or") for r in mcqa_requests("texts")
    ]
    requests = [Request(row_id=place, prompt=request.prompt) for place, request in enumerate(requests)]
    model, tokenizer = load_model(deep), load_tokenizer(deep)
    prompts = {request.row_id: tokenizer(request.prompt)["input_ids"] for request in requests}
    free = [greedy(model, prompt, {tokenizer.eos_token_id}, 8) for prompt in prompts.values()]
    stop = next(tokenizer.decode(answer[3:4]) for answer, _ in free if len(answer) > 4)
    ends = {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(stop)}
    rows = rows_of(make(deep).label(requests, DecodingConfig(max_tokens=8, stop=(stop,)), seed=0))
    lengths, cut = set(), 0
    for row_id, prompt in prompts.items():
        answer, ended = greedy(model, prompt, ends, 8)
        assert (rows[row_id]["num_output_tokens"], rows[row_id]["truncated"]) == (len(answer), not ended)
        check(rows[row_id], model, prompt, answer)
        lengths.add(len(answer))
        cut += answer != free[row_id][0]
    assert {row["truncated"] for row in rows.values()} == {True, False}
    assert len(lengths) > 2 and cut


@pytest.mark.parametrize("style", ["letters", "texts"])
def test_layers_of_options_equal_plain_transformers(deep, style):
    requests = mcqa_requests(style)
    rows = rows_of(make(deep).label(requests, DecodingConfig(), seed=0))
    model, tokenizer = load_model(deep), load_tokenizer(deep)
    for request in requests:
        row, prompt = rows[request.row_id], tokenizer(request.prompt)["input_ids"]
        check(row, model, prompt, tokenizer(request.prompt + row["completion"])["input_ids"][len(prompt) :])


@pytest.mark.parametrize("states", [(), ("output_last", "prompt_last"), ("layer2_output_last",)])
def test_the_model_is_asked_for_other_layers_only_where_they_are_named(deep, states):
    config = TeacherConfig(model=ModelConfig(path=deep.base), state_dtype="float32")
    teacher = load_teacher(config.model_copy(update={"states": states}), deep)  # none: as students are tested
    asked = set()
    teacher._model.register_forward_pre_hook(
        lambda module, args, kwargs: asked.add(kwargs["output_hidden_states"]), with_kwargs=True
    )
    requests = mcqa_requests("letters")
    requests += [Request(row_id=1000 + request.row_id, prompt=request.prompt) for request in requests]
    rows = rows_of(teacher.label(requests, DecodingConfig(max_tokens=3), seed=0))
    assert asked == {states == ("layer2_output_last",)}
    named = {name for row in rows.values() for name in row if name.startswith("state_")}
    assert named == {f"state_{state}" for state in states}
    asked.clear()
    without = rows_of(teacher.label(requests, DecodingConfig(max_tokens=3), seed=0, states=False))
    assert asked == {False}
    assert without == {i: {k: v for k, v in row.items() if k not in named} for i, row in rows.items()}


def test_one_layer_alone_is_the_one_among_many(deep):
    requests = mcqa_requests("texts")
    many, one = (rows_of(make(deep, states).label(requests, DecodingConfig(), seed=0)) for states in (NAMES, NAMES[:1]))
    for row_id, row in one.items():
        assert row["state_layer3_output_last"] == many[row_id]["state_layer3_output_last"]


@pytest.mark.parametrize("layer", [4, 28])
def test_a_layer_that_the_model_lacks_is_refused_as_it_is_loaded(deep, layer):
    with pytest.raises(ModelError, match=f"'layer{layer}_output_mean' asks for layer {layer} of a model that has 4; "):
        make(deep, ("output_last", f"layer{layer}_output_mean"))


def test_the_scripted_teacher_has_states_of_other_layers_too():
    config = TeacherConfig(backend="scripted", states=NAMES)
    (batch,) = load_teacher(config, None).label([Request(row_id=1, prompt="a")], DecodingConfig(), seed=0)
    assert {name for name in batch.schema.names if name.startswith("state_")} == {f"state_{name}" for name in NAMES}
    assert len({str(batch.column(f"state_{name}").to_pylist()) for name in NAMES}) == len(NAMES)
