"""GRPO with rollouts by vLLM: a training learns from them, and they are the trained model's own.

A training ends its engine, and with it vLLM's groups in this process, which the engines of other files share: so this
file is the last one by its name, and of each process of the tests.
"""

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from curation.config import DomainConfig, LoraConfig
from curation.config.models import GrpoConfig
from curation.domains import Domain, get_domain
from curation.errors import ConfigError
from curation.models import create, load_model, load_tokenizer
from curation.refs import ModelRef
from curation.tables import io
from tests.families import FAMILIES, make_model
from train.grpo import Questions, reinforce, train_grpo
from train.models import TrainingRecord, make_trainable, read_saved
from train.rollouts import Wanted
from train.rollouts_vllm import VllmRollouts, is_vllm_backend

pytestmark = pytest.mark.whole_run

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
SHAPE |= {"head_dim": 32, "intermediate_size": 64, "max_position_embeddings": 128, "initializer_range": 0.1}
SETTINGS: dict[str, Any] = {
    "preset": "scratch",
    "global_batch_size": 8,
    "group_size": 4,
    "micro_batch_size": 16,
    "epochs": 15,
    "learning_rate": 1e-2,
    "warmup_steps": 0,
    "rollouts": {"backend": "vllm", "max_tokens": 3},
}
LORA = {"lora": {"rank": 4, "alpha": 8}, "learning_rate": 5e-2}


class Echo:
    """The label is the answer's first digit; right is the same digit."""

    check = Domain.check

    def __init__(self, *, dies_after: int | None = None) -> None:
        self.left = dies_after

    def parse(self, completion: str, example: Mapping[str, Any]) -> str | None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt  # the only kind that a domain cannot have caught
        return completion[:1] or None

    def is_correct(self, label: str | None, gold: str) -> bool:
        return label == gold


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    directory = tmp_path_factory.mktemp("grpo") / "base"
    return create(directory, family="qwen3", shape=SHAPE, words=tuple("0123456789"), pattern="[0-9]", seed=0)


def trained(base: ModelRef, output: Path, domain: Any = None, **changed: Any) -> TrainingRecord:
    config = GrpoConfig.model_validate(SETTINGS | changed)
    prompts = [str(number) * (1 + number % 3) for number in range(8)]
    examples = [{"row_id": 100 + number} for number in range(8)]
    questions = Questions(prompts, ["3"] * 8, examples)
    return reinforce(base, questions, domain or Echo(), config, seed=1, output=output)


@pytest.mark.parametrize("changed", [{}, LORA], ids=["full", "lora"])
def test_it_learns_and_draws_from_the_weights_of_each_step(base: ModelRef, tmp_path: Path, changed: Any) -> None:
    threads, has_group = torch.set_num_threads, torch.distributed.is_initialized()  # an engine before may leave one
    ranks = {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    record = trained(base, tmp_path / "out", **changed)
    rewards, gaps = record.curves["reward"], record.curves["gap"]
    assert len(rewards) == 15 and np.mean(rewards[-3:]) > 0.3 + np.mean(rewards[:3])
    assert max(gaps) < 1e-4, gaps
    assert torch.set_num_threads is threads and torch.distributed.is_initialized() == has_group
    assert ranks == {name: os.environ.get(name) for name in ranks}, "what starts from here would join a group"
    assert load_model(read_saved(base, LoraConfig() if changed else None, tmp_path / "out").model)


def test_a_killed_training_goes_on_bit_by_bit(base: ModelRef, tmp_path: Path) -> None:
    changed = LORA | {"kl": 0.05}
    straight = trained(base, tmp_path / "straight", **changed)
    with pytest.raises(KeyboardInterrupt):
        trained(base, tmp_path / "killed", Echo(dies_after=300), **changed)
    assert list((tmp_path / "killed.partial" / "checkpoints").glob("checkpoint-*"))
    resumed = trained(base, tmp_path / "killed", **changed)
    assert resumed.losses == straight.losses and resumed.curves == straight.curves


class Engine:
    """Rollouts of a model outside a training."""

    def __init__(self, ref: ModelRef, prompts: list[list[int]], **rollouts: Any) -> None:
        tokenizer, self.prompts = load_tokenizer(ref), prompts
        self.model = load_model(ref)
        own = self.model.generation_config.eos_token_id
        self.ends = {tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])}
        config = GrpoConfig.model_validate(SETTINGS | {"rollouts": {"backend": "vllm", **rollouts}})
        self.rollouts = VllmRollouts(
            tokenizer,
            config,
            sorted(self.ends),
            model=ref,
            dtype="float32",
            longest_prompt=max(map(len, prompts)),
        )

    def draw(self, wanted: list[Wanted], model: Any = None) -> Any:
        accelerator = SimpleNamespace(unwrap_model=lambda model: model)
        return self.rollouts.draw(wanted, SimpleNamespace(accelerator=accelerator, model=model or self.model))


def logprobs(model: Any, item: Wanted, tokens: list[int], temperature: float) -> np.ndarray:
    """Of each token of an answer, by a plain forward pass of it alone."""
    with torch.no_grad():
        logits_TV = model(torch.tensor([[*item.prompt, *tokens]])).logits[0, len(item.prompt) - 1 : -1] / temperature
    return logits_TV.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()


def test_answers_follow_from_their_seeds_and_end_as_they_are_told(base: ModelRef) -> None:
    prompts = [[3], [4, 5, 6], [7, 8, 3, 4, 5]] * 20
    engine = Engine(base, prompts, max_tokens=6, temperature=0.7)
    tokenizer = load_tokenizer(base)
    wanted = [Wanted(prompt, 2**62 + 7 * place) for place, prompt in enumerate(prompts)]
    with closing(engine.rollouts):
        together = engine.draw(wanted)
        few = engine.draw(wanted[7:30:3])  # as another number of workers would have it
    assert [rollout.tokens for rollout in few] == [rollout.tokens for rollout in together[7:30:3]]
    assert len({tuple(rollout.tokens) for rollout in together[::3]}) > 10
    fates = set()
    for item, (tokens, drawn, text, truncated) in zip(wanted, together, strict=True):
        np.testing.assert_allclose(drawn, logprobs(engine.model, item, tokens, 0.7), atol=1e-4)
        assert text == tokenizer.decode(tokens, skip_special_tokens=True)
        assert not engine.ends & set(tokens[:-1]), "an end token ends the answer"
        assert truncated == (tokens[-1] not in engine.ends)
        assert len(tokens) == 6 if truncated else len(tokens) <= 6
        fates.add(truncated)
    assert fates == {False, True}


@pytest.mark.parametrize("name", ["qwen3", "llama", "gemma3_text"])
def test_changed_weights_and_adapters_reach_the_engine_and_stay(name: str, tmp_path: Path) -> None:
    """Heads of their own and heads that are the embeddings."""
    ref = make_model(FAMILIES[name], tmp_path / name)
    tokenizer = load_tokenizer(ref)
    prompts = [tokenizer(f"Problem: {number}+{number * 7}=\nSolution:")["input_ids"] for number in range(20)]
    wanted = [Wanted(prompt, place) for place, prompt in enumerate(prompts)]
    engine, seen = Engine(ref, prompts, max_tokens=12), []
    random = torch.Generator().manual_seed(0)
    with closing(engine.rollouts):
        for change in ("none", "weights", "adapter"):
            model = make_trainable(engine.model, LoraConfig(rank=4, alpha=8)) if change == "adapter" else engine.model
            with torch.no_grad():
                for weight in [] if change == "none" else model.parameters():
                    weight.add_(torch.randn(weight.shape, generator=random), alpha=0.02)
            before = {name: weight.clone() for name, weight in model.state_dict().items()}
            drawn = engine.draw(wanted, model)
            assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
            for item, rollout in zip(wanted, drawn, strict=True):
                expected = logprobs(model, item, rollout.tokens, 1.0)
                np.testing.assert_allclose(rollout.logprobs, expected, atol=1e-4, err_msg=change)
            seen.append([rollout.tokens for rollout in drawn])
    assert seen[0] != seen[1] != seen[2]


def test_vllm_draws_where_it_has_the_model_itself() -> None:
    def config(backend: str, gpus: float) -> GrpoConfig:
        return GrpoConfig(rollouts={"backend": backend}, gpus_per_worker=gpus)

    assert is_vllm_backend(config("vllm", 0), "Qwen3ForCausalLM")
    with pytest.raises(ConfigError, match="it has no Olmo2ForCausalLM of its own"):
        is_vllm_backend(config("vllm", 0), "Olmo2ForCausalLM")
    with pytest.raises(ConfigError, match="built for cpu, and the training is on a GPU"):
        is_vllm_backend(config("vllm", 1), "Qwen3ForCausalLM")
    assert not is_vllm_backend(config("auto", 1), "Qwen3ForCausalLM") and not is_vllm_backend(
        config("auto", 0), "Qwen3ForCausalLM"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_number_of_workers_changes_nothing(base: ModelRef, tmp_path: Path, ranks: int) -> None:
    """Each with an engine of its own, or both with halves of one."""
    questions = [
        {"row_id": n, "question": "01"[n % 2] * (1 + n % 4), "choices": ["yes", "no"], "keys": ["0", "1"]}
        for n in range(4)
    ]
    examples = io.write(pa.Table.from_pylist(questions), str(tmp_path / "examples.lance"))
    rows = [{"row_id": row["row_id"], "prompt": row["question"], "label": "0"} for row in questions]
    selected = io.write(pa.Table.from_pylist(rows), str(tmp_path / "rows.lance"))

    config = GrpoConfig.model_validate(SETTINGS | {"global_batch_size": 4, "micro_batch_size": 8, "epochs": 4})
    domain, prompts = DomainConfig(name="mcqa"), [row["prompt"] for row in rows]
    how = {"seed": 3, "output": tmp_path / "one"}
    one = reinforce(base, Questions(prompts, ["0"] * 4, questions), get_domain(domain), config, **how)
    rollouts = config.rollouts.model_copy(update={"tensor_parallel": ranks})
    two = train_grpo(
        base,
        selected,
        config.model_copy(update={"num_workers": 2, "rollouts": rollouts}),
        seed=3,
        output=tmp_path / "two",
        name="two",
        domain=domain,
        examples=examples,
    ).record
    assert max(two.curves["gap"]) < 1e-4
    np.testing.assert_allclose(two.curves["reward"], one.curves["reward"], atol=1e-6)
    np.testing.assert_allclose(two.curves["length"], one.curves["length"], atol=1e-6)
    np.testing.assert_allclose(two.losses, one.losses, atol=1e-5)
