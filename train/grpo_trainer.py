"""TRL's GRPO trainer with our draws and rewards, the recorded curves, and an early stop if rewards teach nothing."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from curation.config.grpo import GrpoConfig
from curation.domains import Domain
from train.rollouts import Rollout, Rollouts, RolloutTask, Wanted, grade, make_seeds
from train.trainer import Guarded

NUM_POINTS = 200
"""Maximum number of points of a recorded curve; with more steps, blocks of steps are averaged."""
_REWARDS = ("reward", "right", "parsed", "mixed_groups", "kl", "entropy", "length", "truncated")
_STEPS = ("grad_norm", "gap", "learning_rate", "reward_errors")
CURVES = {name: name for name in (*_REWARDS, *_STEPS)} | {"length": "completions/mean_length"}
"""The measure of TRL or :class:`Game` for each curve of the record, by the curve's name."""


def find_dead_end(history: Sequence[Mapping[str, float]], config: GrpoConfig) -> str | None:
    """Return why the training ends early, or ``None`` if any of the last ``patience`` steps taught something."""
    last = history[-config.patience :]
    if len(last) < config.patience or any(entry["mixed_groups"] > 0 for entry in last):
        return None
    low, high = min(entry["reward"] for entry in last), max(entry["reward"] for entry in last)
    always = f"was always {low:.3g}" if low == high else f"was {low:.3g} to {high:.3g}, but equal within each group,"
    return (
        f"the reward {always} in the last {config.patience} steps (student.patience), so nothing was learnt: no group "
        "of answers had both outcomes; give a base that is right now and then, a larger group_size or other rows"
    )


def compute_curves(history: Sequence[Mapping[str, float]]) -> dict[str, list[float | None]]:
    """Return the measures of each step, or the means of equal blocks of steps if there are more than ``NUM_POINTS``."""
    size = max(1, -(-len(history) // NUM_POINTS))
    blocks = [history[start : start + size] for start in range(0, len(history), size)]
    found: dict[str, list[float | None]] = {"step": [float(block[-1]["step"]) for block in blocks]}
    for name, key in CURVES.items():
        values = [[entry[key] for entry in block if entry.get(key) is not None] for block in blocks]
        if any(values):
            found[name] = [float(np.mean(of_block)) if of_block else None for of_block in values]
    return found


os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # its rollout_func is pinned by constraints.txt
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
with warnings.catch_warnings(action="ignore"):  # of versions of vLLM: draws are ours
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

__all__ = ["GRPOConfig", "Game", "Trainer"]

MAX_WEIGHT = 2.0
"""Maximum importance weight of a token: its probability under the trained model over that of its draw."""


class Game:
    """The answers drawn for a batch and their rewards; each worker has its share of both."""

    def __init__(
        self,
        tasks: Sequence[RolloutTask],
        order: Sequence[int],
        domain: Domain,
        config: GrpoConfig,
        rollouts: Rollouts,
        *,
        seed: int,
    ) -> None:
        self._tasks, self._order, self._domain, self.config = tasks, order, domain, config
        self._rollouts, self._seed = rollouts, seed
        self._played: list[tuple[RolloutTask, Rollout]] = []

    @property
    def row_ids(self) -> list[int]:
        """The rows of the current batch."""
        return sorted({task.row_id for task, _ in self._played})

    def play(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """Draw answers (TRL's ``rollout_func``). ``prompts`` are places of the training, each ``group_size`` times."""
        places = [int(place) for place in prompts]
        tasks = [self._tasks[self._order[place]] for place in places]
        start = trainer.accelerator.process_index * len(prompts)
        drawn = make_seeds(self._seed, places, self.config.group_size, start)
        wanted = [Wanted(task.prompt, seed) for task, seed in zip(tasks, drawn, strict=True)]
        found = self._rollouts.draw(wanted, trainer)
        self._played = list(zip(tasks, found, strict=True))
        return {
            "prompt_ids": [task.prompt for task in tasks],
            "completion_ids": [rollout.tokens for rollout in found],
            "logprobs": [rollout.logprobs for rollout in found],
        }

    def reward(self, *, log_metric: Callable[[str, float], None], **kwargs: object) -> list[float | None]:
        """Return the rewards of the answers just drawn, as TRL's reward function."""
        tasks, texts = [task for task, _ in self._played], [rollout.text for _, rollout in self._played]
        graded = grade(self._domain, tasks, texts, format_reward=self.config.format_reward)
        log_metric("right", float(np.mean([item.right for item in graded])))
        log_metric("parsed", float(np.mean([item.parsed for item in graded])))
        log_metric("truncated", float(np.mean([rollout.truncated for _, rollout in self._played])))
        log_metric("reward_errors", float(np.mean([item.problem is not None for item in graded])))
        return [item.reward for item in graded]


class Trainer(Guarded, GRPOTrainer):
    """TRL's trainer, guarded, which measures how far the draws' probabilities are from the model's.

    Tokens have importance weights (truncated importance sampling, Yao et al. 2025), since the backend of the draws
    computes slightly different probabilities. TRL's own weights cost a further forward pass; here the loss's own pass
    gives the log-probabilities before the advantages are read, as a batch is one step. KL has no weights, as in TRL.
    """

    game: Game
    _inputs: dict[str, Any] | None = None

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of a micro-batch, and keep its inputs at hand for the importance weights."""
        self._inputs = dict(inputs)
        loss: torch.Tensor = super().compute_loss(model, self._inputs, return_outputs, num_items_in_batch)
        self.remember(self.game.row_ids, loss)
        return loss

    def _get_per_token_logps_and_entropies(
        self,
        model: object,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        **kwargs: object,
    ) -> Any:
        found = super()._get_per_token_logps_and_entropies(model, input_ids, attention_mask, logits_to_keep, **kwargs)
        if self._inputs is not None and torch.is_grad_enabled():
            inputs, self._inputs = self._inputs, None
            mask_BT = attention_mask[:, -logits_to_keep:].bool()
            difference_BT = (found[0].detach() - inputs["sampling_per_token_logps"]).masked_fill(~mask_BT, 0.0)
            inputs["advantages"] = inputs["advantages"][:, None] * difference_BT.exp().clamp(max=MAX_WEIGHT)
            gap = difference_BT.abs().sum() / mask_BT.sum()
            self._metrics["train"]["gap"].append(self.accelerator.gather(gap).mean().item())
        return found

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log a step as TRL does, with the share of groups that have both outcomes; stop if rewards teach nothing."""
        flat = self._metrics["train"].pop("frac_reward_zero_std", None)
        if flat:
            logs["mixed_groups"] = 1 - sum(flat) / len(flat)
        super().log(logs, start_time)
        if find_dead_end([entry for entry in self.state.log_history if "reward" in entry], self.game.config):
            self.control.should_training_stop = True
