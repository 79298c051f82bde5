"""Group relative policy optimisation (GRPO; Shao et al. 2024, arXiv 2402.03300) on the selected prompts.

The engine is TRL's ``GRPOTrainer``; the paper's is VeRL. Ours are the draws (``train.rollouts``), the reward, the order
of the rows and what is watched. A batch of prompts gives one optimizer step, so answers never come from older weights,
and a checkpoint needs none of them. The reward is 1 where the label of an answer is the row's selected label.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.utils.logging import disable_progress_bar

from curation.config import DomainConfig
from curation.config.grpo import GrpoConfig
from curation.domains import Domain, get_domain
from curation.errors import ConfigError, RunFailedError, SourceError
from curation.models import here, hub_revision, load_model, load_tokenizer
from curation.refs import ModelRef, TableRef, fingerprint
from curation.storage.paths import Place
from curation.tables import io
from curation.telemetry.standing import Update
from train.callbacks import Keeping, Kept, Progress
from train.models import TrainingRecord, TrainingResult, save, trainable
from train.partial import Partial
from train.rewards import Task, grade
from train.rollouts import Rollout, Rollouts, TransformersRollouts, Wanted, seeds
from train.student import train_student
from train.tokens import prompt_ids

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # its rollout_func is pinned by constraints.txt
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

log = logging.getLogger(__name__)

CHECKPOINT_SHARE = 0.1
"""The share of the steps between two checkpoints; a killed worker loses at most this much."""
NUM_POINTS = 200
"""Points of a curve in the record; those of more steps are averaged."""
SHOWN_ROWS = 20
"""Row ids in a message."""
CURVES = {
    "reward": "reward",
    "right": "right",
    "parsed": "parsed",
    "mixed_groups": "mixed_groups",
    "kl": "kl",
    "entropy": "entropy",
    "length": "completions/mean_length",
    "truncated": "truncated",
    "grad_norm": "grad_norm",
    "gap": "gap",
    "learning_rate": "learning_rate",
    "reward_errors": "reward_errors",
}
"""Curves of the record, and the measures of TRL and of :class:`_Game` that they are."""


def train_grpo(
    base: ModelRef,
    rows: TableRef,
    config: GrpoConfig,
    *,
    seed: int,
    output: Place,
    name: str,
    update: Update = lambda standing: None,
    domain: DomainConfig,
    examples: TableRef,
) -> TrainingResult:
    """Train ``base`` on the ``prompt`` and ``label`` columns of ``rows``, and save the student to ``output``.

    ``examples`` are the rows of the pool, which the domain reads to grade an answer.

    Raises:
        ConfigError: the batch sizes do not divide.
        SourceError, RunFailedError: as :func:`train.student.train_student`.
    """
    accumulation_steps(config, config.num_workers)
    read = {"domain": domain, "examples": examples}
    return train_student(_learn, base, rows, config, seed=seed, output=output, name=name, update=update, **read)


def _learn(
    base: ModelRef, rows: TableRef, config: GrpoConfig, *, domain: DomainConfig, examples: TableRef, **how: Any
) -> TrainingRecord:
    made = get_domain(domain)
    table = io.read(rows, columns=["row_id", "prompt", "label"]).sort_by("row_id")
    row_ids_N = table["row_id"].to_numpy()
    found = io.take(examples, row_ids_N, ["row_id", *made.columns.names]).to_pylist()
    return reinforce(base, table["prompt"].to_pylist(), table["label"].to_pylist(), found, made, config, **how)


def accumulation_steps(config: GrpoConfig, num_workers: int) -> int:
    """How many micro-batches of each worker make up the answers to a batch of prompts.

    Raises:
        ConfigError: the answers are not a multiple of micro-batch times workers.
    """
    num_answers, together = config.global_batch_size * config.group_size, config.micro_batch_size * num_workers
    if num_answers % together:
        raise ConfigError(
            f"global_batch_size: {config.global_batch_size} prompts x group_size {config.group_size} = {num_answers} "
            f"answers are not a multiple of micro_batch_size {config.micro_batch_size} x num_workers {num_workers}; "
            "change one of the four"
        )
    return num_answers // together


def reinforce(
    base: ModelRef,
    prompts: Sequence[str],
    labels: Sequence[str | None],
    examples: Sequence[Mapping[str, Any]],
    domain: Domain,
    config: GrpoConfig,
    *,
    seed: int,
    output: Path,
    progress: Callable[[int, int], None] | None = None,
    kept: Kept | None = None,
) -> TrainingRecord:
    """Train ``base`` and save an adapter or a full model to ``output`` atomically (:func:`train.models.save`).

    Rows without a label and with over-long prompts are dropped and counted. Workers, resumption, ``progress`` and
    ``kept`` are as for :func:`train.sft.fine_tune`.

    Raises:
        SourceError: no row is left.
        ConfigError: the batch sizes do not divide.
        ModelError: the base does not load.
        RunFailedError: the loss or a gradient is no longer finite.
    """
    start = time.monotonic()
    set_seed(seed)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = load_tokenizer(base)
    tasks = _tasks(tokenizer, prompts, labels, examples, config, name=output.name)
    num_steps = -(-len(tasks) * config.epochs // config.global_batch_size)
    order = _order(len(tasks), num_steps * config.global_batch_size, seed)
    told = [base.to_json(), config.model_dump(mode="json"), seed, [(task.row_id, task.label) for task in tasks]]
    partial_ = Partial(output, fingerprint(told))
    args = _arguments(config, base, num_steps=num_steps, seed=seed, work=partial_.checkpoints)
    if kept is not None:
        kept.restore(partial_.folder)
    if args.process_index == 0 or kept is not None:
        partial_.prepare()
    model = _policy(base, config, partial_.folder)
    game = _Game(tasks, order, domain, config, _rollouts(tokenizer, model, config), seed=seed)
    trainer = _Trainer(
        model=model,
        reward_funcs=[game.reward],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [str(place) for place in range(len(order))]}),
        processing_class=tokenizer,
        rollout_func=game.play,
        callbacks=[_Watch(game, config), Progress(output.name, len(order), progress)],
    )
    trainer.game = game
    if kept is not None:
        trainer.add_callback(Keeping(kept, partial_.folder))
    trainer.remove_callback(PrinterCallback)
    trainer.accelerator.wait_for_everyone()
    trainer.train(resume_from_checkpoint=partial_.last_checkpoint)
    history = [entry for entry in trainer.state.log_history if "reward" in entry]
    record = TrainingRecord(
        num_rows=len(tasks),
        num_dropped=len(prompts) - len(tasks),
        num_epochs=config.epochs,
        losses=[entry["loss"] for entry in history],
        seconds=time.monotonic() - start,
        curves=_curves(history),
        stopped=_without_signal(history, config),
    )
    if trainer.is_world_process_zero():
        trained = trainer.accelerator.unwrap_model(trainer.model)
        partial_.finish(partial(save, trained, tokenizer, base, config.lora, record))
    trainer.accelerator.wait_for_everyone()
    return record


def _tasks(
    tokenizer: Any,
    prompts: Sequence[str],
    labels: Sequence[str | None],
    examples: Sequence[Mapping[str, Any]],
    config: GrpoConfig,
    *,
    name: str,
) -> list[Task]:
    """The rows that can be learnt from."""
    if not prompts:
        raise SourceError(f"{name}: no rows to train on; a selection of at least one row is needed")
    ids = prompt_ids(tokenizer, prompts, chat_template=config.chat_template)
    tasks = [
        Task(row_id=example["row_id"], prompt=prompt, example=example, label=label)
        for prompt, label, example in zip(ids, labels, examples, strict=True)
        if label is not None and len(prompt) <= config.max_length
    ]
    num_unlabelled = sum(label is None for label in labels)
    num_long = len(prompts) - num_unlabelled - len(tasks)
    if num_unlabelled or num_long:
        log.warning(
            "%s: %d of %d rows have no label that an answer could agree with, and %d prompts more than %d tokens",
            name,
            num_unlabelled,
            len(prompts),
            num_long,
            config.max_length,
        )
    if not tasks:
        raise SourceError(
            f"{name}: of {len(prompts)} rows {num_unlabelled} have no label and {num_long} prompts exceed max_length "
            f"{config.max_length}, so none is left; raise max_length or select other rows"
        )
    return tasks


def _order(num_rows: int, num_places: int, seed: int) -> list[int]:
    """The row at each place of the training: shuffled anew for each epoch, one epoch after the other."""
    epochs = -(-num_places // num_rows)
    rows = np.concatenate([np.random.default_rng([seed, epoch]).permutation(num_rows) for epoch in range(epochs)])
    order: list[int] = rows[:num_places].tolist()
    return order


def _arguments(config: GrpoConfig, base: ModelRef, *, num_steps: int, seed: int, work: Path) -> GRPOConfig:
    """Everything that TRL is told. Its own defaults differ from the paper and change with its versions."""
    use_gpu = config.gpus_per_worker > 0
    num_workers = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    accumulation = accumulation_steps(config, num_workers)
    return GRPOConfig(
        output_dir=str(work),
        use_cpu=not use_gpu,
        bf16=False,
        # the objective
        loss_type="dapo",  # the mean over all tokens of the batch
        num_generations=config.group_size,
        num_iterations=1,
        scale_rewards="group",
        importance_sampling_level="token",
        beta=config.kl,
        use_bias_correction_kl=False,
        epsilon=config.clip,
        epsilon_high=config.clip,
        entropy_coef=config.entropy,
        top_entropy_quantile=1.0,
        mask_truncated_completions=False,
        disable_dropout=True,
        # the draws
        temperature=config.rollouts.temperature,
        top_p=1.0,
        top_k=0,
        max_completion_length=config.rollouts.max_tokens,
        # the batches, counted in answers
        per_device_train_batch_size=config.micro_batch_size,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=accumulation,
        shuffle_dataset=False,
        max_steps=num_steps,
        remove_unused_columns=False,
        # the optimizer
        learning_rate=config.learning_rate,
        adam_beta1=config.adam_betas[0],
        adam_beta2=config.adam_betas[1],
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        lr_scheduler_type="constant_with_warmup" if config.schedule == "constant" else config.schedule,
        warmup_steps=config.warmup_steps,
        gradient_checkpointing=config.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=use_gpu,
        # the reference of KL is loaded anew from the files of the base
        model_init_kwargs=None if (revision := hub_revision(base)) is None else {"revision": revision},
        # what is kept and told
        save_strategy="steps",
        save_steps=CHECKPOINT_SHARE,
        save_total_limit=1,
        logging_steps=1,
        log_completions=False,
        report_to="none",
        disable_tqdm=True,
        log_level="error",
        seed=seed,
        data_seed=seed,
    )


def _policy(base: ModelRef, config: GrpoConfig, folder: Path) -> Any:
    """The model to train. TRL loads the reference from the path of its files, so a merged base is written first."""
    if base.adapter is not None:
        merged = folder / "base"
        if int(os.environ.get("LOCAL_RANK", "0")) == 0 and not (merged / "config.json").is_file():
            load_model(base).save_pretrained(merged)
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        base = ModelRef(base=str(merged))
    return trainable(load_model(here(base)), config.lora)


def _rollouts(tokenizer: Any, model: Any, config: GrpoConfig) -> Rollouts:
    own = model.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])} - {None}
    return TransformersRollouts(tokenizer, config.rollouts, sorted(ends))


class _Game:
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

    def reward(self, *, log_metric: Callable[[str, float], None], **kwargs: Any) -> list[float]:
        """The rewards of the answers just drawn: TRL's reward function."""
        tasks, texts = [task for task, _ in self._played], [rollout.text for _, rollout in self._played]
        graded = grade(self._domain, tasks, texts, format_reward=self._config.format_reward)
        log_metric("right", float(np.mean([item.right for item in graded])))
        log_metric("parsed", float(np.mean([item.parsed for item in graded])))
        log_metric("truncated", float(np.mean([rollout.truncated for _, rollout in self._played])))
        log_metric("reward_errors", float(np.mean([item.problem is not None for item in graded])))
        return [item.reward for item in graded]


class _Trainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer, which stops at a loss that is not finite and measures how far draws are from the model."""

    game: _Game
    _sampled_BT: torch.Tensor | None = None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """One micro-batch."""
        loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        if not torch.isfinite(loss):
            raise not_finite("the loss", float(loss), self.state.global_step + 1, self.game.row_ids)
        return loss

    def compute_loss(self, model: Any, inputs: Any, **kwargs: Any) -> Any:
        """The loss of a micro-batch, while the log-probabilities of its draws are at hand."""
        self._sampled_BT = inputs.get("sampling_per_token_logps")
        return super().compute_loss(model, inputs, **kwargs)

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int, **kwargs: Any
    ) -> Any:
        found = super()._get_per_token_logps_and_entropies(model, input_ids, attention_mask, logits_to_keep, **kwargs)
        if self._sampled_BT is not None and torch.is_grad_enabled():
            mask_BT = attention_mask[:, -logits_to_keep:].bool()
            gap = (found[0].detach() - self._sampled_BT)[mask_BT].abs().mean()
            self._metrics["train"]["gap"].append(self.accelerator.gather(gap).mean().item())
            self._sampled_BT = None
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
        f"step {step}: {what} is {value} on rows {', '.join(map(str, row_ids[:SHOWN_ROWS]))}{more}; the last checkpoint "
        "is kept; lower student.learning_rate, or look at these rows with `curate inspect`"
    )


class _Watch(TrainerCallback):
    """Stops a training whose gradient is not finite, or whose rewards teach nothing."""

    def __init__(self, game: _Game, config: GrpoConfig) -> None:
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
        if _without_signal([entry for entry in state.log_history if "reward" in entry], self._config):
            control.should_training_stop = True


def _without_signal(history: Sequence[Mapping[str, float]], config: GrpoConfig) -> str | None:
    """Why the training ends early: the last ``patience`` steps taught nothing; ``None`` where they did."""
    last = history[-config.patience :]
    if len(last) < config.patience or any(entry["mixed_groups"] > 0 for entry in last):
        return None
    low, high = (find(entry["reward"] for entry in last) for find in (min, max))
    rewards = f"was always {low:.3g}" if low == high else f"was between {low:.3g} and {high:.3g} but equal in each group"
    return (
        f"the reward {rewards} in the last {config.patience} steps (student.patience), so nothing was learnt: no group "
        "of answers had both outcomes; give a base that is right now and then, a larger group_size or other rows"
    )


def _curves(history: Sequence[Mapping[str, float]]) -> dict[str, list[float | None]]:
    """What was measured at each step, or the means of equal blocks of steps where there are many."""
    size = max(1, -(-len(history) // NUM_POINTS))
    blocks = [history[start : start + size] for start in range(0, len(history), size)]
    curves: dict[str, list[float | None]] = {"step": [float(block[-1]["step"]) for block in blocks]}
    for name, key in CURVES.items():
        means: list[float | None] = []
        for block in blocks:
            values = [entry[key] for entry in block if entry.get(key) is not None]
            means.append(float(np.mean(values)) if values else None)
        if any(value is not None for value in means):
            curves[name] = means
    return curves
