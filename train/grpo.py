"""Group relative policy optimisation (GRPO; Shao et al. 2024, arXiv 2402.03300) on the selected prompts.

The engine is TRL's ``GRPOTrainer``; the paper's is VeRL. Our code draws the answers (``train.rollouts``,
``train.rollouts_vllm``), rewards them, orders the rows and monitors the training. Each batch of prompts gives one
optimizer step, so that answers never come from older weights and no checkpoint contains them. The reward is 1 if the
label of an answer is the row's selected label.
"""

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from transformers import set_seed
from transformers.utils.logging import disable_progress_bar

from curation.config import DomainConfig
from curation.config.models import GrpoConfig
from curation.domains import Domain, get_domain
from curation.errors import ConfigError
from curation.escaping import get_logger
from curation.json_types import JsonView
from curation.models import check_tokens, fetch_model, load_tokenizer
from curation.models.dtypes import resolve_compute_dtype
from curation.models.own_code import get_hub_revision
from curation.refs import ModelRef, TableRef
from curation.tables import io
from train.callbacks import Checkpointing, Partial, Progress, StoredCheckpoints
from train.models import (
    TrainingRecord,
    TrainingResult,
    count_warm_up_steps,
    load_base,
    make_adapter_config,
    make_trainable,
)
from train.rollouts import Rollout, Rollouts, RolloutTask, TransformersRollouts, Wanted, grade, make_seeds
from train.rollouts_vllm import VllmRollouts, is_vllm_backend
from train.tokens import prompt_ids
from train.trainer import Guarded, check_lengths, make_arguments, train_student

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # its rollout_func is pinned by constraints.txt
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
with warnings.catch_warnings(action="ignore"):  # of versions of vLLM: draws are ours
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

log = get_logger(__name__)

CHECKPOINT_SHARE = 0.1  # share of the steps between two checkpoints; a killed worker loses at most this much
LOGGING_SHARE = 0.005
"""The share of the steps between two points of a curve. A point is the mean over these steps; for ``grad_norm`` and
``learning_rate`` it is the last value. After a kill, the first point is that of the steps since the checkpoint."""
CURVES = {
    **{name: name for name in ("step", "reward", "parsed", "kl", "entropy", "truncated")},
    **{name: name for name in ("grad_norm", "gap", "learning_rate", "reward_errors")},
    "equal_groups": "frac_reward_zero_std",
    "length": "completions/mean_length",
}
"""The measure of TRL or :class:`Game` for each curve of the record, by the curve's name."""
MAX_WEIGHT = 2.0  # maximum importance weight of a token: its probability under the trained model over that of its draw


def train_grpo(base: ModelRef, rows: TableRef, config: GrpoConfig, **how: Any) -> TrainingResult:
    """Train ``base`` on the ``prompt`` and ``label`` columns of ``rows``, else as :func:`train.sft.train_sft`.

    ``how`` also has ``examples``, the rows of the pool, which its ``domain`` reads to grade an answer. Raise
    ``ConfigError``, too, if FSDP is requested without GPUs.
    """
    if config.sharding == "fsdp" and not config.gpus_per_worker:
        raise ConfigError(
            "sharding: fsdp needs GPUs where students learn by grpo; set gpus_per_worker, or sharding: ddp"
        )
    return train_student(_learn, base, rows, config, **how)


class Questions(NamedTuple):
    """The rows to learn from."""

    prompts: Sequence[str]
    labels: Sequence[str | None]
    """The answers that are rewarded; rows without one are kept, so that all arms have equally many rows."""
    examples: Sequence[JsonView]  # rows of the pool, with their ``row_id``


def _learn(
    base: ModelRef, rows: TableRef, config: GrpoConfig, *, domain: DomainConfig, examples: TableRef, **how: Any
) -> TrainingRecord:
    made = get_domain(domain)
    table = io.read(rows, columns=["row_id", "prompt", "label"]).sort_by("row_id")
    row_ids_N = table["row_id"].to_numpy()
    found = io.take(examples, row_ids_N, ["row_id", *made.columns.names]).to_pylist()
    questions = Questions(table["prompt"].to_pylist(), table["label"].to_pylist(), found)
    return reinforce(base, questions, made, config, **how)


def reinforce(
    base: ModelRef,
    questions: Questions,
    domain: Domain,
    config: GrpoConfig,
    *,
    seed: int,
    output: Path,
    progress: Callable[[int, int, str], None] | None = None,
    kept: StoredCheckpoints | None = None,
) -> TrainingRecord:
    """Train ``base`` and save the result, as :meth:`train.sft.RowTrainer.train_on`; over-long prompts are dropped."""
    start, config = time.monotonic(), resolve_compute_dtype(config, base)
    set_seed(seed)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = load_tokenizer(base)
    tasks = _make_tasks(tokenizer, questions, config, name=output.name)
    num_steps = config.num_steps(len(tasks))
    num_places = num_steps * config.global_batch_size
    shuffles = (np.random.default_rng([seed, epoch]) for epoch in range(-(-num_places // len(tasks))))
    order = np.concatenate([rng.permutation(len(tasks)) for rng in shuffles])[:num_places].tolist()  # anew each epoch
    work = output.with_name(f"{output.name}.partial") / "checkpoints"
    args = _make_arguments(config, base, num_steps=num_steps, seed=seed, work=work)
    learnt = [(task.row_id, task.label) for task in tasks]
    recipe = config.without(config.RESOURCES).model_dump(mode="json")
    unfinished = Partial.open(output, [base.to_json(), recipe, seed, learnt, bool(args.fsdp)], kept, args)
    model = make_trainable(load_base(fetch_model(base), config), None)  # TRL adds an adapter itself
    check_tokens(base, tokenizer, model)
    rollouts = _make_rollouts(tokenizer, model, base, config, tasks)
    set_seed(seed)  # again, since an engine sets it
    game = Game(tasks=tasks, order=order, domain=domain, config=config, rollouts=rollouts, seed=seed)
    trainer = Trainer(
        model=model,
        reward_funcs=[game.reward],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [str(place) for place in range(len(order))]}),
        processing_class=tokenizer,
        rollout_func=game.play,
        peft_config=None if config.lora is None else make_adapter_config(config.lora),
        callbacks=[Progress(len(order), progress), Checkpointing(unfinished, kept)],
    )
    try:
        trainer.complete(unfinished)
    finally:
        rollouts.close()
    # The last entry may summarise steps after the last point; it has no loss.
    history = [entry for entry in trainer.state.log_history if {"reward", "loss"} <= entry.keys()]
    record = TrainingRecord(
        num_rows=len(tasks),
        num_dropped=len(questions.prompts) - len(tasks),
        num_epochs=config.epochs,
        losses=[entry["loss"] for entry in history],
        seconds=time.monotonic() - start,
        curves={name: [entry.get(key) for entry in history] for name, key in CURVES.items() if key in history[0]},
        dropped=sorted({example["row_id"] for example in questions.examples} - {task.row_id for task in tasks}),
    )
    trainer.finish(unfinished, tokenizer, config.lora, record)
    return record


def _make_tasks(tokenizer: Any, questions: Questions, config: GrpoConfig, *, name: str) -> list[RolloutTask]:
    """Return the rows whose prompts are short enough as tasks."""
    prompts = questions.prompts
    ids = prompt_ids(tokenizer, prompts, chat_template=config.chat_template)
    tasks = [
        RolloutTask(row_id=example["row_id"], prompt=prompt, example=example, label=label)
        for prompt, label, example in zip(ids, questions.labels, questions.examples, strict=True)
        if len(prompt) <= config.max_length
    ]
    check_lengths(name, "prompts", num=len(prompts), num_kept=len(tasks), max_length=config.max_length)
    if num_without := sum(task.label is None for task in tasks):
        log.warning("%s: %d of %d rows have no label; their rewards are all 0", name, num_without, len(tasks))
    return tasks


def _make_arguments(config: GrpoConfig, base: ModelRef, *, num_steps: int, seed: int, work: Path) -> GRPOConfig:
    """Return all settings for TRL. Its own defaults differ from the paper and change with its versions."""
    shared = make_arguments(config, seed=seed, work=work)
    return GRPOConfig(
        **shared,
        # the objective
        loss_type="dapo",  # the mean over all tokens of the batch
        num_generations=config.group_size,
        num_iterations=1,
        scale_rewards="group",
        importance_sampling_level="token",
        beta=config.kl,
        use_bias_correction_kl=False,
        epsilon=0.2,  # without effect, as each batch gives one step
        epsilon_high=0.2,
        entropy_coef=0.0,
        top_entropy_quantile=1.0,
        mask_truncated_completions=False,
        disable_dropout=True,
        # answers and their importance weights (Trainer) are ours with either backend
        use_vllm=False,
        temperature=config.rollouts.temperature,
        top_p=1.0,
        top_k=0,
        max_completion_length=config.rollouts.max_tokens,
        # the batches, of which each gives one step
        steps_per_generation=shared["gradient_accumulation_steps"],
        shuffle_dataset=False,
        max_steps=num_steps,
        lr_scheduler_type="constant_with_warmup" if config.schedule == "constant" else config.schedule,
        warmup_steps=count_warm_up_steps(config.warmup_steps, num_steps),
        # the reference of KL is loaded anew from the files of the base, as a whole by each worker: FSDP divides it
        model_init_kwargs={
            "revision": get_hub_revision(base),
            "use_safetensors": True,
            "device_map": None,
            "dtype": config.compute_dtype,
        },
        trust_remote_code=base.code is not None,
        # checkpoints and logs
        save_steps=CHECKPOINT_SHARE,
        logging_steps=LOGGING_SHARE,
        log_completions=False,
    )


def _make_rollouts(
    tokenizer: Any, model: Any, base: ModelRef, config: GrpoConfig, tasks: Sequence[RolloutTask]
) -> Rollouts:
    own = model.generation_config.eos_token_id
    ends = sorted({tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])} - {None})
    if not is_vllm_backend(config, type(model).__name__):
        return TransformersRollouts(tokenizer, config.rollouts, ends)
    return VllmRollouts(
        tokenizer,
        config,
        ends,
        model=replace(base, base=model.config.name_or_path),  # its files here
        dtype=config.compute_dtype,
        longest_prompt=max(len(task.prompt) for task in tasks),
    )


@dataclass(kw_only=True, eq=False)
class Game:
    """The answers drawn for a batch and their rewards; each worker has its share of both."""

    tasks: Sequence[RolloutTask]
    order: Sequence[int]  # indices of the tasks by place in the training
    domain: Domain
    config: GrpoConfig
    rollouts: Rollouts
    seed: int
    played: list[RolloutTask] = field(default_factory=list)  # tasks of the last draw
    drawn: list[Rollout] = field(default_factory=list)

    def play(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """Draw answers (TRL's ``rollout_func``). ``prompts`` are places of the training, each ``group_size`` times."""
        places = [int(place) for place in prompts]
        self.played = [self.tasks[self.order[place]] for place in places]
        start = trainer.accelerator.process_index * len(prompts)
        seeds = make_seeds(self.seed, places, self.config.group_size, start)
        wanted = [Wanted(task.prompt, seed) for task, seed in zip(self.played, seeds, strict=True)]
        self.drawn = self.rollouts.draw(wanted, trainer)
        return {
            "prompt_ids": [task.prompt for task in self.played],
            "completion_ids": [rollout.tokens for rollout in self.drawn],
            "logprobs": [rollout.logprobs for rollout in self.drawn],
        }

    def reward(self, *, log_metric: Callable[[str, float], None], **kwargs: object) -> list[float | None]:
        """Return the rewards of the answers just drawn, as TRL's reward function."""
        graded = grade(self.domain, self.played, [rollout.text for rollout in self.drawn])
        log_metric("parsed", float(np.mean([item.parsed for item in graded])))
        log_metric("truncated", float(np.mean([rollout.truncated for rollout in self.drawn])))
        log_metric("reward_errors", float(np.mean([item.problem is not None for item in graded])))
        return [float(item.right) for item in graded]


class Trainer(Guarded, GRPOTrainer):
    """TRL's trainer, guarded, which measures how far the draws' probabilities are from the model's.

    Tokens have importance weights (truncated importance sampling, Yao et al. 2025), since the backend of the draws
    computes slightly different probabilities. TRL's own weights cost a further forward pass; here the loss's own pass
    gives the log-probabilities before the advantages are read, as a batch is one step. KL has no weights, as in TRL.
    """

    _inputs: dict[str, Any] | None = None

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of a micro-batch, and keep its inputs at hand for the importance weights."""
        self._inputs = dict(inputs)
        return super().compute_loss(model, self._inputs, return_outputs, num_items_in_batch)

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
