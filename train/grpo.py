"""Group relative policy optimisation (GRPO; Shao et al. 2024, arXiv 2402.03300) on the selected prompts.

The engine is TRL's ``GRPOTrainer``; the paper's is VeRL. Our code draws the answers
(``train.rollouts``, ``train.rollouts_vllm``), rewards them, orders the rows and monitors the training. Each batch of
prompts gives one optimizer step, so that answers never come from older weights and no checkpoint contains them. The
reward is 1 if the label of an answer is the row's selected label.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from transformers import set_seed
from transformers.utils.logging import disable_progress_bar

from curation.config import DomainConfig
from curation.config.grpo import GrpoConfig
from curation.domains import Domain, get_domain
from curation.errors import ConfigError, SourceError
from curation.escaping import get_logger
from curation.json_types import JsonView
from curation.models import check_tokens, fetch_model, load_tokenizer
from curation.models.dtypes import settle_training
from curation.models.loading import make_saved_ref
from curation.models.own_code import get_hub_revision
from curation.refs import ModelRef, TableRef
from curation.tables import io
from train.callbacks import Checkpointing, Partial, Progress, StoredCheckpoints
from train.grpo_trainer import Game, GRPOConfig, Trainer, compute_curves, find_dead_end
from train.models import (
    TrainingRecord,
    TrainingResult,
    count_warm_up_steps,
    load_base,
    make_adapter_config,
    make_trainable,
)
from train.rollouts import Rollouts, RolloutTask, TransformersRollouts
from train.rollouts_vllm import VllmRollouts, is_vllm_backend
from train.student import train_student
from train.tokens import prompt_ids
from train.trainer import make_arguments

log = get_logger(__name__)

CHECKPOINT_SHARE = 0.1
"""The share of the steps between two checkpoints; a killed worker loses at most this much."""


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
    examples: Sequence[JsonView]
    """The rows of the pool, with their ``row_id``."""


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
    """Train ``base`` and save the result; all, errors too, is as for :meth:`train.sft.RowTrainer.train_on`.

    Over-long prompts are dropped and counted.
    """
    start, config = time.monotonic(), settle_training(config, base)
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
    model = _prepare_policy(base, config, unfinished.folder)
    check_tokens(base, tokenizer, model)
    rollouts = _make_rollouts(tokenizer, model, base, config, tasks)
    set_seed(seed)  # an engine sets it, too
    game = Game(tasks, order, domain, config, rollouts, seed=seed)
    trainer = Trainer(
        model=model,
        reward_funcs=[game.reward],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [str(place) for place in range(len(order))]}),
        processing_class=tokenizer,
        rollout_func=game.play,
        peft_config=None if config.lora is None else make_adapter_config(model, config.lora),
        callbacks=[Progress(len(order), progress), Checkpointing(unfinished, kept)],
    )
    trainer.game = game
    try:
        trainer.complete(unfinished)
    finally:
        rollouts.close()
    history = [entry for entry in trainer.state.log_history if "reward" in entry]
    record = TrainingRecord(
        num_rows=len(tasks),
        num_dropped=len(questions.prompts) - len(tasks),
        num_epochs=config.epochs,
        losses=[entry["loss"] for entry in history],
        seconds=time.monotonic() - start,
        curves=compute_curves(history),
        stopped=find_dead_end(history, config),
        dropped=sorted({example["row_id"] for example in questions.examples} - {task.row_id for task in tasks}),
    )
    trainer.finish(unfinished, tokenizer, base, config.lora, record)
    return record


def _make_tasks(tokenizer: Any, questions: Questions, config: GrpoConfig, *, name: str) -> list[RolloutTask]:
    """Return the rows whose prompts are short enough as tasks."""
    prompts = questions.prompts
    if not prompts:
        raise SourceError(f"{name}: no rows to train on; a selection of at least one row is needed")
    ids = prompt_ids(tokenizer, prompts, chat_template=config.chat_template)
    tasks = [
        RolloutTask(row_id=example["row_id"], prompt=prompt, example=example, label=label)
        for prompt, label, example in zip(ids, questions.labels, questions.examples, strict=True)
        if len(prompt) <= config.max_length
    ]
    if num_long := len(prompts) - len(tasks):
        log.warning("%s: %d of %d prompts exceed %d tokens", name, num_long, len(prompts), config.max_length)
    if not tasks:
        raise SourceError(f"{name}: all {len(prompts)} prompts exceed max_length {config.max_length}; raise it")
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
        epsilon=config.clip,
        epsilon_high=config.clip,
        entropy_coef=config.entropy,
        top_entropy_quantile=1.0,
        mask_truncated_completions=False,
        disable_dropout=True,
        # the draws are ours, whichever the backend, and so is their importance weight (train.grpo_trainer)
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
        # what is kept and told
        save_steps=CHECKPOINT_SHARE,
        logging_steps=1,
        log_completions=False,
    )


def _prepare_policy(base: ModelRef, config: GrpoConfig, folder: Path) -> Any:
    """Return the model without adapters for TRL, which adds any new one itself so that checkpoints load.

    TRL loads the KL reference from the path of the model's files, so a merged base is written to a file first.
    """
    if base.adapter is not None:
        merged = folder / "base"
        if int(os.environ.get("LOCAL_RANK", "0")) == 0 and not (merged / "config.json").is_file():
            load_base(base, config).save_pretrained(merged)
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        base = make_saved_ref(base, merged)
    return make_trainable(load_base(fetch_model(base), config), None)


def _make_rollouts(
    tokenizer: Any, model: Any, base: ModelRef, config: GrpoConfig, tasks: Sequence[RolloutTask]
) -> Rollouts:
    own = model.generation_config.eos_token_id
    ends = sorted({tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])} - {None})
    if not is_vllm_backend(config, type(model).__name__):
        return TransformersRollouts(tokenizer, config.rollouts, ends)
    path = model.config.name_or_path  # of the files of the base here, or of the merged ones
    return VllmRollouts(
        tokenizer,
        config,
        ends,
        model=make_saved_ref(base, Path(path)) if base.adapter else replace(base, base=path),
        dtype=config.compute_dtype,
        longest_prompt=max(len(task.prompt) for task in tasks),
    )
