"""GRPO: a step against one written by hand, what is drawn, what is rewarded, and what stops a training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from curation.config.grpo import GrpoConfig, RolloutsConfig
from curation.models import create, load_model
from curation.refs import ModelRef
from train import grpo_trainer
from train.grpo import reinforce
from train.models import TrainingRecord, trainable
from train.rewards import Task
from train.rollouts import Rollout

SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 32,
    "max_position_embeddings": 128,
}
DIGITS = tuple("0123456789")
SMALL = GrpoConfig(
    preset="scratch",
    global_batch_size=4,
    group_size=4,
    micro_batch_size=16,
    epochs=2,
    learning_rate=1e-2,
    warmup_steps=0,
    rollouts=RolloutsConfig(max_tokens=3),
)


class Echo:
    """The label is the answer's first digit; right is the same digit."""

    def parse(self, completion: str, example: Mapping[str, Any]) -> str | None:
        return completion[:1] or None

    def is_correct(self, label: str | None, gold: str) -> bool:
        if gold == "9":
            raise ValueError("nines cannot be compared")
        return label == gold


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    directory = tmp_path_factory.mktemp("grpo") / "base"
    return create(directory, family="qwen3", shape=SHAPE, words=DIGITS, pattern="[0-9]", seed=0)


def trained(
    base: ModelRef, output: Path, config: GrpoConfig, labels: str = "01230123", domain: Any = None, **how: Any
) -> TrainingRecord:
    prompts = [str(number) * (1 + number % 3) for number in range(len(labels))]
    examples = [{"row_id": 100 + number} for number in range(len(labels))]
    return reinforce(base, prompts, list(labels), examples, domain or Echo(), config, seed=1, output=output, **how)


def weights(ref: ModelRef) -> dict[str, torch.Tensor]:
    return dict(load_model(ref).state_dict())


class Seen:
    """What a training drew, and its weights and gradients before each step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.played: list[list[tuple[Task, Rollout]]] = []
        self.advantages: list[torch.Tensor] = []
        self.steps: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]] = []
        play, watch = grpo_trainer.Game.play, grpo_trainer.Watch.on_pre_optimizer_step
        score = grpo_trainer.Trainer._generate_and_score_completions

        def playing(game: Any, *args: Any) -> Any:
            found = play(game, *args)
            self.played.append(list(game._played))
            return found

        def scoring(trainer: Any, inputs: Any) -> Any:
            found = score(trainer, inputs)
            self.advantages.append(found["advantages"].clone())
            return found

        def watching(watcher: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watch(watcher, args, state, control, **kwargs)
            named = {name: weight for name, weight in kwargs["model"].named_parameters() if weight.requires_grad}
            self.steps.append(
                (
                    {name: weight.detach().clone() for name, weight in named.items()},
                    {name: weight.grad.clone() for name, weight in named.items() if weight.grad is not None},
                )
            )

        monkeypatch.setattr(grpo_trainer.Game, "play", playing)
        monkeypatch.setattr(grpo_trainer.Trainer, "_generate_and_score_completions", scoring)
        monkeypatch.setattr(grpo_trainer.Watch, "on_pre_optimizer_step", watching)


def logprobs(model: Any, task: Task, rollout: Rollout, temperature: float) -> torch.Tensor:
    """Of each token of an answer, by a plain forward pass of it alone."""
    ids = torch.tensor([[*task.prompt, *rollout.tokens]])
    logits = model(ids).logits[0, len(task.prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(rollout.tokens)[:, None])[:, 0]


@pytest.mark.parametrize(
    ("lora", "micro"),
    [(None, 16), (None, 4), ({"rank": 4, "alpha": 8}, 16)],
    ids=["full weights", "full weights, accumulated", "LoRA"],
)
def test_a_step_equals_one_written_by_hand(
    base: ModelRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: Any, micro: int
) -> None:
    """Loss, gradients, advantages and KL of the second step, where policy and reference differ."""
    seen = Seen(monkeypatch)
    config = GrpoConfig.model_validate(
        SMALL.model_dump()
        | {"lora": lora, "kl": 0.1, "max_grad_norm": 1e9, "micro_batch_size": micro, "epochs": 1}
        | {"rollouts": {"max_tokens": 4, "temperature": 0.7}}
    )
    record = trained(base, tmp_path / "out", config)
    played, (before, gradients) = seen.played[1], seen.steps[1]
    assert len(seen.steps) == 2 and len(played) == 16

    policy, reference = trainable(load_model(base), config.lora), load_model(base)
    policy.load_state_dict(before, strict=False)
    rewards = np.array([float(rollout.text[:1] == task.label) for task, rollout in played]).reshape(4, 4)
    assert 0 < rewards.mean() < 1, "a step that teaches something"
    advantage_GS = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-4)
    np.testing.assert_allclose(seen.advantages[1].numpy(), advantage_GS.ravel(), atol=1e-6)
    total, divergence = torch.zeros(()), 0.0
    num_tokens = sum(len(rollout.tokens) for _, rollout in played)
    for (task, rollout), advantage in zip(played, advantage_GS.ravel(), strict=True):
        own_T = logprobs(policy, task, rollout, 0.7)
        with torch.no_grad():
            difference_T = logprobs(reference, task, rollout, 0.7) - own_T.detach()
            np.testing.assert_allclose(rollout.logprobs, own_T.detach().numpy(), atol=1e-5)
        ratio_T = (own_T - own_T.detach()).exp()
        kl_T = (difference_T + own_T.detach() - own_T).exp() - (difference_T + own_T.detach() - own_T) - 1
        total = total + (-ratio_T * advantage + 0.1 * kl_T).sum() / num_tokens
        divergence += kl_T.sum().item() / num_tokens
    total.backward()
    assert record.losses[1] == pytest.approx(total.item(), abs=1e-6)
    kl, gap = record.curves["kl"][1], record.curves["gap"][1]
    assert kl is not None and divergence > 1e-4
    if micro == 16:  # else the curve is the mean over micro-batches, whatever their number of tokens
        assert kl == pytest.approx(divergence, abs=1e-6)
    assert gap is not None and gap < 1e-5
    by_hand = {name: weight.grad for name, weight in policy.named_parameters() if weight.grad is not None}
    assert by_hand.keys() == gradients.keys() and by_hand
    for name, gradient in by_hand.items():
        np.testing.assert_allclose(gradients[name].numpy(), gradient.numpy(), atol=1e-6, err_msg=name)
