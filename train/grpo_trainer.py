"""TRL's GRPO trainer with our draws and rewards, and what stops it."""

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from curation.config.grpo import GrpoConfig
from curation.domains import Domain
from curation.errors import RunFailedError
from train.curves import steps_of, without_signal
from train.rewards import Task, grade
from train.rollouts import Rollout, Rollouts, Wanted, seeds

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # its rollout_func is pinned by constraints.txt
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
with warnings.catch_warnings(action="ignore"):  # of versions of vLLM: draws are ours
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

__all__ = ["GRPOConfig", "Game", "Trainer", "Watch"]

MAX_WEIGHT = 2.0
"""The largest importance weight of a token: the probability of the trained model over that of its draw."""
SHOWN_ROWS = 20
"""Row ids in a message."""


class Game:
    """Answers drawn for a batch and rewarded; each worker has its share of both."""

    def __init__(
        self,
        tasks: Sequence[Task],
        order: Sequence[int],
        domain: Domain,
        config: GrpoConfig,
        rollouts: Rollouts,
        *,
        seed: int,
    ) -> None:
        self._tasks, self._order, self._domain, self._config = tasks, order, domain, config
        self._rollouts, self._seed = rollouts, seed
        self._played: list[tuple[Task, Rollout]] = []

    @property
    def row_ids(self) -> list[int]:
        """The rows of the current batch."""
        return sorted({task.row_id for task, _ in self._played})

    def play(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """Draw answers: TRL's ``rollout_func``. ``prompts`` are places of the training, each ``group_size`` times."""
        places = [int(place) for place in prompts]
        tasks = [self._tasks[self._order[place]] for place in places]
        start = trainer.accelerator.process_index * len(prompts)
        drawn = seeds(self._seed, places, self._config.group_size, start)
        wanted = [Wanted(task.prompt, seed) for task, seed in zip(tasks, drawn, strict=True)]
        found = self._rollouts.draw(wanted, trainer)
        self._played = list(zip(tasks, found, strict=True))
        return {
            "prompt_ids": [task.prompt for task in tasks],
            "completion_ids": [rollout.tokens for rollout in found],
            "logprobs": [rollout.logprobs for rollout in found],
        }

    def reward(self, *, log_metric: Callable[[str, float], None], **kwargs: Any) -> list[float | None]:
        """The rewards of the answers just drawn: TRL's reward function."""
        tasks, texts = [task for task, _ in self._played], [rollout.text for _, rollout in self._played]
        graded = grade(self._domain, tasks, texts, format_reward=self._config.format_reward)
        log_metric("right", float(np.mean([item.right for item in graded])))
        log_metric("parsed", float(np.mean([item.parsed for item in graded])))
        log_metric("truncated", float(np.mean([rollout.truncated for _, rollout in self._played])))
        log_metric("reward_errors", float(np.mean([item.problem is not None for item in graded])))
        return [item.reward for item in graded]


class Trainer(GRPOTrainer):
    """TRL's trainer, which stops at a loss that is not finite and measures how far draws are from the model.

    Tokens weigh by their importance (Yao et al. 2025, truncated importance sampling): a draw's backend computes its
    probabilities a little differently. TRL's own weights cost a further forward pass; here the loss's own pass has the
    log-probabilities, before the advantages are read, as a batch gives one step. KL has no weights, as in TRL.
    """

    game: Game
    _inputs: dict[str, Any] | None = None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """One micro-batch."""
        loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[no-untyped-call]
        if not torch.isfinite(loss):
            raise not_finite("the loss", float(loss), self.state.global_step + 1, self.game.row_ids)
        return loss

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a micro-batch, while its inputs are at hand to be weighted."""
        self._inputs = dict(inputs)
        return super().compute_loss(model, self._inputs, return_outputs, num_items_in_batch)

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int, **kwargs: Any
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
        """TRL's log of a step, with the share of groups that have both outcomes."""
        flat = self._metrics["train"].pop("frac_reward_zero_std", None)
        if flat:
            logs["mixed_groups"] = 1 - sum(flat) / len(flat)
        super().log(logs, start_time)


def not_finite(what: str, value: float, step: int, row_ids: Sequence[int]) -> RunFailedError:
    """The error of a training whose numbers have broken."""
    more = f" and {len(row_ids) - SHOWN_ROWS} more" if len(row_ids) > SHOWN_ROWS else ""
    return RunFailedError(
        f"step {step}: {what} is {value} on rows {', '.join(map(str, row_ids[:SHOWN_ROWS]))}{more}; the last "
        "checkpoint is kept; lower student.learning_rate, or look at these rows with `curate inspect`"
    )


class Watch(TrainerCallback):
    """Stops a training whose gradient is not finite, or whose rewards teach nothing."""

    def __init__(self, game: Game, config: GrpoConfig) -> None:
        self._game, self._config = game, config

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Look at the gradient; clipping has spread a number that is not finite to all of it."""
        gradient = next((weight.grad for weight in kwargs["model"].parameters() if weight.grad is not None), None)
        if gradient is not None and not torch.isfinite(gradient).all():
            raise not_finite("the gradient's norm", float("nan"), state.global_step + 1, self._game.row_ids)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Look at the rewards."""
        if without_signal(steps_of(state.log_history), self._config):
            control.should_training_stop = True
