"""What rollouts by vLLM are given, and where they are used; vLLM itself is in tests/with_vllm/test_vllm_training.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

from curation.config.models import GrpoConfig
from curation.errors import ConfigError, ModelError
from curation.models import create, load_model
from curation.refs import ModelRef
from train.rollouts_vllm import is_vllm_backend, iter_whole_weights

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
QWEN3 = "Qwen3ForCausalLM"
SHAPE |= {"head_dim": 16, "intermediate_size": 64, "max_position_embeddings": 128}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    directory = tmp_path_factory.mktemp("rollouts") / "base"
    return create(directory, family="qwen3", shape=SHAPE, words=tuple("0123456789"), pattern="[0-9]", seed=0)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", world_size=1, rank=0)
    yield
    dist.destroy_process_group()


def adapted(base: ModelRef, dtype: str, **settings: object) -> torch.nn.Module:
    """The model with an adapter that changes it."""
    torch.manual_seed(0)
    model = get_peft_model(
        load_model(base, dtype=dtype), LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", **settings)
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.2)
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_push_leaves_trained_weights_as_they_are(base: ModelRef, dtype: str) -> None:
    """Many pushes, bit by bit; what is pushed are the base's names with peft's merged weights."""
    model = adapted(base, dtype)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for _ in range(5):
        pushed = dict(iter_whole_weights(model))
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    wanted = dict(load_model(base, dtype=dtype).named_parameters())
    assert pushed.keys() == wanted.keys()
    exact = dict(adapted(base, "float32").merge_and_unload().named_parameters())
    for name, weight in pushed.items():
        assert weight.dtype == getattr(torch, dtype)
        # beyond the base's own rounding: bfloat16 keeps 8 bits of the sum
        torch.testing.assert_close(weight.float(), exact[name], rtol=2**-7 if dtype == "bfloat16" else 1e-6, atol=1e-3)
    changed = {name for name, weight in pushed.items() if not torch.equal(weight, wanted[name])}
    assert len(changed) == 2 * 7 and not any("embed" in name or "norm" in name for name in changed)


def test_all_weights_are_pushed_as_they_are(base: ModelRef) -> None:
    model = load_model(base)
    pushed = dict(iter_whole_weights(model))
    assert {name: weight.data_ptr() for name, weight in pushed.items()} == {
        name: weight.data_ptr() for name, weight in model.named_parameters()
    }
    assert not any(weight.requires_grad for weight in pushed.values())


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_shards_are_gathered(base: ModelRef, lora: bool) -> None:
    model = adapted(base, "float32") if lora else load_model(base)
    wanted = {name: weight.clone() for name, weight in iter_whole_weights(model)}
    mesh = init_device_mesh("cpu", (1,))
    for module in list(model.modules()):
        for name, weight in list(module.named_parameters(recurse=False)):
            sharded = torch.nn.Parameter(distribute_tensor(weight.detach(), mesh), requires_grad=weight.requires_grad)
            module.register_parameter(name, sharded)
    assert all(isinstance(weight, DTensor) for weight in model.parameters())
    pushed = dict(iter_whole_weights(model))
    assert pushed.keys() == wanted.keys()
    assert all(torch.equal(weight, wanted[name]) and not isinstance(weight, DTensor) for name, weight in pushed.items())


def test_what_has_no_place_in_the_base_is_refused(base: ModelRef) -> None:
    model = adapted(base, "float32", modules_to_save=["lm_head"])
    with pytest.raises(ModelError, match=r"lm_head.*trained beside the adapter"):
        dict(iter_whole_weights(model))


def test_vllm_is_used_where_it_is_asked_for_or_shares_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def config(backend: str, gpus: float) -> GrpoConfig:
        return GrpoConfig(rollouts={"backend": backend}, gpus_per_worker=gpus)

    monkeypatch.setattr("train.rollouts_vllm.is_installed", lambda: False)
    assert not any(
        is_vllm_backend(config(backend, gpus), QWEN3) for backend in ("auto", "transformers") for gpus in (0, 1)
    )
    with pytest.raises(ConfigError, match="vLLM is not installed"):
        is_vllm_backend(config("vllm", 1), QWEN3)
