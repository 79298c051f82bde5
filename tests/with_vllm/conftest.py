"""Engines that the tests share: each takes seconds to start."""

import importlib.util
import os

import pytest

from tests.with_vllm.engines import STARTED, close_all

STATES = ("prompt_last", "output_first", "output_last", "output_mean")
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "max_position_embeddings": 96,
    "initializer_range": 0.1,  # logits that differ enough for the answers to vary
}


@pytest.fixture(scope="session", autouse=True)
def vllm():
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:  # this folder is found by that name, too
        pytest.skip("vLLM is not installed; make test-vllm has an environment with its CPU build")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A random Qwen3 with the chess vocabulary, whose end token is drawn now and then."""
    import torch

    from curation.config import DomainConfig
    from curation.domains import get_domain
    from curation.models import create, load_model, resolve

    vocabulary = get_domain(DomainConfig(name="chess")).vocabulary()
    path = tmp_path_factory.mktemp("models") / "tiny"
    ref = create(path, family="qwen3", shape=SHAPE, words=vocabulary.words, pattern=vocabulary.pattern, seed=1)
    weights = load_model(ref)
    with torch.no_grad():
        weights.get_output_embeddings().weight[weights.config.eos_token_id] *= 1.5
    weights.save_pretrained(path)
    return resolve(str(path))


@pytest.fixture(scope="session")
def adapter(model, tmp_path_factory):
    """The model with a LoRA adapter that changes its answers."""
    import torch
    from peft import LoraConfig, get_peft_model

    from curation.models import load_model, resolve

    path = tmp_path_factory.mktemp("models") / "adapter"
    torch.manual_seed(0)
    wrapped = get_peft_model(load_model(model), LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    with torch.no_grad():
        for name, weight in wrapped.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.2)
    wrapped.save_pretrained(path)
    return resolve(model.base, adapter=str(path))


@pytest.fixture(scope="session")
def requests(puzzles):
    """220 positions: prompts of mixed lengths."""
    from curation.config import DomainConfig
    from curation.domains import get_domain
    from curation.teachers import Request

    domain = get_domain(DomainConfig(name="chess"))
    return [Request(row_id=3 * k, prompt=domain.prompt(domain.read(raw))) for k, raw in enumerate(puzzles[:220])]


def teacher_config(ref, **settings):
    from curation.config import ModelConfig, TeacherConfig

    settings = {"states": STATES, "state_dtype": "float32"} | settings
    return TeacherConfig(model=ModelConfig(path=ref.base, adapter=ref.adapter), **settings)


def start(ref, *, hang_seconds=300, states=STATES, token_logprobs=0, chat_template=False, **engine):
    """A vLLM teacher."""
    from curation.teachers import load_teacher

    arguments = {"enforce_eager": True, "max_num_seqs": 24, "kv_cache_memory_bytes": 32 << 20} | engine
    settings = {"engine": arguments, "hang_seconds": hang_seconds}
    asked = {"token_logprobs": token_logprobs, "chat_template": chat_template}
    config = teacher_config(ref, backend="vllm", vllm=settings, **asked)
    STARTED.append(load_teacher(config.model_copy(update={"states": states}), ref))  # no states: as students are tested
    return STARTED[-1]


@pytest.fixture(scope="module", autouse=True)
def engines():
    """The engines of a file end with it."""
    yield
    close_all()


@pytest.fixture(scope="session")
def reference(model):
    """The transformers teacher of the same model."""
    from curation.teachers import load_teacher

    return load_teacher(teacher_config(model), model)


@pytest.fixture(scope="module")
def teacher(model):
    """An engine whose steps take fewer tokens than prompts have, and whose prefix cache has small blocks."""
    return start(model, max_num_batched_tokens=32, block_size=32)
