"""States of other layers than the last from vLLM, against the transformers teacher, row by row, in float32."""

import pytest

from curation.config import DecodingConfig
from curation.errors import ModelError
from curation.models import create, load_model, resolve
from curation.teachers import Request, load_teacher
from curation.teachers import vllm as vllm_teacher
from tests.with_vllm.conftest import SHAPE, start, teacher_config
from tests.with_vllm.engines import close_all
from tests.with_vllm.test_vllm_teacher import LETTERS, TEXTS, both, rows_of, spy, with_options

pytestmark = pytest.mark.whole_run

MANY = (
    "layer3_output_last",
    "output_last",
    "layer1_output_mean",
    "layer1_prompt_last",
    "prompt_last",
    "layer3_output_first",
)


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """A random Qwen3 of four layers, whose end token is drawn now and then."""
    return deep_model(tmp_path_factory, "qwen3", **SHAPE | {"num_hidden_layers": 4})


def deep_model(tmp_path_factory, family, **shape):
    import torch

    from curation.config import DomainConfig
    from curation.domains import get_domain

    vocabulary = get_domain(DomainConfig(name="chess")).vocabulary()
    path = tmp_path_factory.mktemp("models") / family
    ref = create(path, family=family, shape=shape, words=vocabulary.words, pattern=vocabulary.pattern, seed=1)
    weights = load_model(ref)
    with torch.no_grad():
        weights.get_output_embeddings().weight[weights.config.eos_token_id] *= 1.5
    weights.save_pretrained(path)
    return resolve(str(path))


@pytest.fixture(scope="module", params=[MANY, ("layer2_output_last",)], ids=["many", "one"])
def pair(request, deep):
    """Both teachers: steps that take fewer tokens than prompts have, and a prefix cache of small blocks."""
    reference = load_teacher(teacher_config(deep, states=request.param), deep)
    arguments = {"max_num_batched_tokens": 32, "block_size": 32, "enforce_eager": False}
    teacher = start(deep, states=request.param, **arguments)
    return teacher, reference


def test_layers_of_answers_equal_transformers(pair, requests):
    """By stop token and by length; then from the prefix cache, with a stop string inside a token."""
    teacher, reference = pair
    rows = both(teacher, reference, requests[:100], DecodingConfig(max_tokens=7))
    assert {row["truncated"] for row in rows.values()} == {True, False}
    assert 0 in {row["num_output_tokens"] for row in rows.values()}
    again = [Request(row_id=10_000 + request.row_id, prompt=request.prompt) for request in requests[:60]]
    both(teacher, reference, again, DecodingConfig(max_tokens=12, stop=("ishop", "ook")))
    without = rows_of(teacher.label(requests[:60], DecodingConfig(max_tokens=7), seed=0, states=False))
    assert not any(name.startswith("state_") for row in without.values() for name in row)
    assert all(row["completion"] == rows[row_id]["completion"] for row_id, row in without.items())
    assert teacher.engine.num_held() == 0


def test_layers_of_options_equal_transformers(pair, requests, monkeypatch):
    """Scored from the head's own layer, whatever layers are kept; the second time from the prefix cache."""
    teacher, reference = pair
    asked = with_options(requests[:60], *LETTERS, *TEXTS)
    scored = spy(monkeypatch, vllm_teacher._Stream, "_score")
    for _ in range(2):
        both(teacher, reference, asked, DecodingConfig(max_tokens=4))
    assert any(part.tries for _, _, part in scored)


def test_layers_that_vllm_does_not_give_are_refused(tmp_path_factory):
    """GPT-2 is a model of vLLM's that lacks the interface."""
    ref = deep_model(tmp_path_factory, "gpt2", n_embd=64, n_layer=3, n_head=2, n_positions=96)
    states = ("layer1_output_last",)
    with pytest.raises(ModelError, match="which vLLM's GPT2LMHeadModel does not give; set "):
        start(ref, states=states)


def test_a_layer_that_the_model_lacks_is_refused_before_the_engine_starts(deep):
    with pytest.raises(ModelError, match="'layer4_output_last' asks for layer 4 of a model that has 4"):
        start(deep, states=("layer4_output_last",))


def test_layers_of_two_tensor_parallel_ranks(deep, requests, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    reference = load_teacher(teacher_config(deep, states=MANY), deep)
    close_all()
    teacher = start(deep, states=MANY, tensor_parallel_size=2, max_num_batched_tokens=64)
    both(teacher, reference, requests[:40] + with_options(requests[:40], *LETTERS, *TEXTS), DecodingConfig())
    assert teacher.engine._call_workers("tap_rows") == [0, 0]
