"""States of the options that were not chosen, against one plain forward of each prompt and option, float32."""

import numpy as np
import pytest
import torch

from curation.config import DecodingConfig, DomainConfig, ModelConfig, TeacherConfig
from curation.errors import ConfigError
from curation.models import load_model, load_tokenizer
from curation.stages.label_chunks import LabelJob, label_rows
from curation.teachers import Request, load_teacher
from tests.curation.teachers.test_options import MEAN, SUM, char_model, mcqa_requests, reference, rows_of

# In no order: a name, the layer as an index into transformers' hidden states, the rank.
NAMED = [
    ("option3_output_last", -1, 3),
    ("output_last", -1, 1),
    ("layer1_option2_output_last", 1, 2),
    ("option2_output_last", -1, 2),
    ("layer1_output_last", 1, 1),
    ("option9_output_last", -1, 9),
]


@pytest.fixture(scope="module", params=["qwen3", "gpt2"])
def any_model(request, tmp_path_factory):
    return char_model(tmp_path_factory.mktemp("models") / "m", request.param)


def make(ref, states, **settings):
    settings = {"states": states, "state_dtype": "float32", "batch_tokens": 400} | settings
    return load_teacher(TeacherConfig(model=ModelConfig(path=ref.base), **settings), ref)


@torch.inference_mode()
def last_states(model, tokenizer, prompt, option):
    """The states [layer, D] of the option's last token, from one plain forward."""
    full = model(torch.tensor([tokenizer(prompt + option)["input_ids"]]), use_cache=False, output_hidden_states=True)
    return torch.cat(full.hidden_states)[:, -1].numpy()


@pytest.mark.parametrize(("style", "decoding"), [("letters", SUM), ("texts", SUM), ("texts", MEAN)])
def test_states_of_ranked_options_equal_plain_transformers(any_model, style, decoding):
    """Options of one token and of several, rows of two to five options; the last name's rank none has."""
    requests = mcqa_requests(style)
    rows = rows_of(make(any_model, tuple(name for name, *_ in NAMED)).label(requests, decoding, seed=0))
    model, tokenizer = load_model(any_model), load_tokenizer(any_model)
    orders = set()
    for request in requests:
        logprobs = [reference(model, tokenizer, request.prompt, option)[0] for option in request.options]
        scores = [np.mean(each) if decoding.normalise_options else sum(each) for each in logprobs]
        order = np.argsort(-np.array(scores), kind="stable").tolist()
        orders.add(tuple(order))
        assert rows[request.row_id]["completion"] == request.options[order[0]]
        for name, layer, rank in NAMED:
            found = rows[request.row_id][f"state_{name}"]
            if rank > len(order):
                assert found == [0.0] * 32
                continue
            expected_D = last_states(model, tokenizer, request.prompt, request.options[order[rank - 1]])[layer]
            np.testing.assert_allclose(found, expected_D, rtol=1e-5, atol=1e-5, err_msg=name)
    assert len(orders) > 4


def test_of_equal_options_the_first_comes_first(any_model):
    """Two characters that the tokenizer does not know are the same token."""
    request = Request(row_id=1, prompt="Which?", options=("é", "a", "ü"))
    row = rows_of(make(any_model, ("output_last", "option2_output_last")).label([request], SUM, seed=0))[1]
    alike = row["state_output_last"] == row["state_option2_output_last"]
    assert alike == (row["option_logprobs"][0] > row["option_logprobs"][1]) and row["completion"] in ("é", "a")


@pytest.mark.parametrize(
    ("states", "num_fed"),
    [
        (("prompt_last",), 0),
        (("output_last",), 1),
        (("option2_output_last",), 1),
        (("output_last", "option2_output_last", "layer1_option2_output_last"), 2),
    ],
)
def test_of_options_of_one_token_those_are_fed_that_are_asked_for(any_model, states, num_fed):
    teacher = make(any_model, states, batch_tokens=100_000)
    fed = []
    teacher._model.register_forward_pre_hook(
        lambda module, args, kwargs: fed.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    requests = mcqa_requests("letters")
    list(teacher.label(requests, SUM, seed=0))
    assert fed[1:] == ([(num_fed * len(requests), 1)] if num_fed else [])


def test_a_row_without_options_is_refused_before_any_is_labelled():
    teacher = TeacherConfig(backend="scripted", states=("output_last", "option2_output_last"))
    job = LabelJob(
        examples=None,
        labels_uri="",
        domain=DomainConfig(name="chess"),
        teacher=teacher,
        model=None,
        decoding=DecodingConfig(),
        seed=0,
    )
    rows = [
        {"row_id": k, "question": f"{k}?", "choices": ["one", "two", "three"][: 2 + k], "error": None} for k in (0, 1)
    ]
    from curation.domains import get_domain

    told = (
        r"teacher\.states: 'option2_output_last' is the state of an answer option, but row 0 has no options to choose "
        r"from \(its answer is generated\); leave it out of teacher\.states and trust\.states"
    )
    with pytest.raises(ConfigError, match=told):
        list(label_rows(job, get_domain(DomainConfig(name="mcqa", generative=True)), None, rows))
    (batch,) = label_rows(job, get_domain(DomainConfig(name="mcqa")), load_teacher(teacher, None), rows)
    assert batch.num_rows == 2


def test_the_scripted_teacher_has_no_state_of_an_option_that_a_row_lacks():
    teacher = load_teacher(TeacherConfig(backend="scripted", states=("output_last", "option3_output_last")), None)
    requests = [Request(row_id=k, prompt="Which?", options=(" A", " B", " C")[: 2 + k]) for k in (0, 1)]
    rows = rows_of(teacher.label(requests, SUM, seed=0))
    assert [any(rows[k]["state_option3_output_last"]) for k in (0, 1)] == [False, True]
