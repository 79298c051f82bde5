"""Trains a student on a selection by any method; a teacher's format adaptation works the same way.

A killed worker is replaced and resumes from the last checkpoint beside ``output``. On several nodes ``output`` is a
directory that all of them share, or in an object store; with an object store, workers train in local directories.
"""

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lance
import torch
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin  # type: ignore[import-untyped]
from safetensors import SafetensorError
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, Trainer

from curation.config import LmStudentConfig, LoraConfig
from curation.errors import ConfigError, SourceError, TrainingError
from curation.escaping import get_logger
from curation.json_types import Json
from curation.refs import ModelRef, TableRef
from curation.storage.cache import open_scratch, staged
from curation.storage.paths import Place, Remote, to_place
from curation.telemetry.standing import Update
from train.callbacks import Partial, StoredCheckpoints
from train.launch import FINAL, Notes, count_workers, launch, require_claim
from train.models import TRAINING, TrainingRecord, TrainingResult, read_saved

log = get_logger(__name__)

Learn = Callable[..., TrainingRecord]
"""A training method, called in each worker as ``learn(base, rows, config, seed=, output=, progress=, kept=, **read)``.

It trains ``base`` on ``rows`` and saves the result to the path ``output`` atomically. All workers call it with the same
arguments, but only the first has ``progress``, a function of rows done, rows in all and words on the loss. ``kept``
(``train.callbacks.StoredCheckpoints``) stores checkpoints if the workers do not share ``output``.
"""


def train_student(
    learn: Learn,
    base: ModelRef,
    rows: TableRef,
    config: LmStudentConfig,
    *,
    seed: int,
    output: Place,
    name: str,
    update: Update = lambda standing: None,
    **read: object,
) -> TrainingResult:
    """Run ``learn`` in the workers that ``config`` requests, with the arguments ``read``; ``update`` counts all epochs.

    Raises:
        SourceError: the table has no rows, or none that the method can use.
        ConfigError: the configuration does not fit the base, or the batch sizes do not divide.
        TrainingError: the training failed in a way that every further attempt would repeat.
        RunFailedError, CommitError: as :func:`train.launch.launch`.
    """
    if not lance.dataset(rows.uri, version=rows.version).count_rows():
        raise SourceError(f"student {name}: {rows.uri} (version {rows.version}) has no rows; select at least one")
    count_accumulation_steps(config, config.num_workers)
    output = output.resolve()
    arguments = (base.to_json(), rows.to_json(), config)
    task = {"learn": learn, "arguments": arguments, "read": {"seed": seed, **read}, "output": str(output), "name": name}
    launch(_train, task, config, name=name, output=output, update=update)
    return read_saved(base, config.lora, output)


def _train(task: Json, notes: Notes | None) -> None:
    """Train the student in each worker."""
    output = to_place(task["output"])
    base, rows, config = task["arguments"]
    try:
        with open_scratch(output) if notes is None else staged(output) as local:
            task["learn"](
                ModelRef.from_json(base),
                TableRef.from_json(rows),
                config,
                output=local,
                progress=None if notes is None else notes.note,
                kept=StoredCheckpoints() if isinstance(output, Remote) else None,
                **task["read"],
            )
            if notes is not None:  # leaving this context would replace the result of another driver
                require_claim()
    except FINAL as error:
        raise type(error)(f"student {task['name']}: {error}") from error


def count_accumulation_steps(config: LmStudentConfig, num_workers: int) -> int:
    """Return how many micro-batches of each worker make up the global batch, or raise ``ConfigError`` if none do."""
    total, size = config.global_batch_size, getattr(config, "group_size", 1)
    together = config.micro_batch_size * num_workers
    if total * size % together:
        what = f"{total} is" if size == 1 else f"{total} prompts x group_size {size} = {total * size} answers are"
        raise ConfigError(
            f"global_batch_size: {what} not a multiple of micro_batch_size {config.micro_batch_size} x num_workers "
            f"{num_workers}; change one of them"
        )
    return total * size // together


def make_arguments(config: LmStudentConfig, *, seed: int, work: Path) -> dict[str, Any]:
    """Return the fields of ``TrainingArguments`` that are the same for every method; ``work`` gets the checkpoints."""
    use_gpu = config.gpus_per_worker > 0
    return {
        "output_dir": str(work),
        "use_cpu": not use_gpu,
        "bf16": config.compute_dtype == "bfloat16",
        "fsdp": config.sharding == "fsdp" and count_workers() > 1,
        "fsdp_config": {
            "version": 2,
            "state_dict_type": "SHARDED_STATE_DICT",
            "cpu_ram_efficient_loading": bool(find_loading_variables(config)),
        },
        "per_device_train_batch_size": config.micro_batch_size,
        "gradient_accumulation_steps": count_accumulation_steps(config, count_workers()),
        "learning_rate": config.learning_rate,
        "adam_beta1": config.adam_betas[0],
        "adam_beta2": config.adam_betas[1],
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "gradient_checkpointing": config.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "ddp_find_unused_parameters": False,
        "dataloader_pin_memory": use_gpu,
        "remove_unused_columns": False,
        "save_strategy": "steps",
        "logging_nan_inf_filter": False,  # a loss that is not finite stops the training
        "report_to": "none",
        "disable_tqdm": True,
        "log_level": "error",
        "seed": seed,
        "data_seed": seed,
    }


def find_loading_variables(config: LmStudentConfig) -> dict[str, str]:
    """Return environment variables that make ``transformers`` read weights only in the first worker, under FSDP.

    With GRPO there are none: each worker needs all weights for the engine that draws answers.
    """
    if config.sharding != "fsdp" or count_workers() == 1 or config.method == "grpo":
        return {}
    return {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}


def check_lengths(name: str, unit: str, *, num: int, num_kept: int, max_length: int) -> None:
    """Warn if some of ``num`` rows are too long; raise ``SourceError`` if none is kept, or there is none."""
    if not num:
        raise SourceError(f"{name}: no rows to train on; a selection of at least one row is needed")
    if num_kept < num:
        log.warning("%s: %d of %d %s exceed %d tokens", name, num - num_kept, num, unit, max_length)
    if not num_kept:
        raise SourceError(f"{name}: all {num} {unit} exceed max_length {max_length}; raise it")


def shift_warm_up(scheduler: Any, warm_up: int) -> Any:
    """Return the same schedule with a rate of (s + 1) / (warm_up + 1) of the highest at step s of the warm-up.

    The rate of ``transformers`` is s / warm_up, so that the first step would change nothing.
    """
    if not warm_up or not isinstance(scheduler, LambdaLR):
        return scheduler

    def rising(usual: Callable[[int], float]) -> Callable[[int], float]:
        return lambda step: (step + 1) / (warm_up + 1) if step < warm_up else usual(step)

    for group in scheduler.optimizer.param_groups:
        group["lr"] = group["initial_lr"]
    return LambdaLR(scheduler.optimizer, list(map(rising, scheduler.lr_lambdas)))


class Guarded(Trainer):
    """A trainer, or a mixin before one, that stops in all workers at a non-finite value, and shards on CPUs."""

    def create_accelerator_and_postprocess(self) -> None:
        """Create the accelerator as ``transformers`` does, but with FSDP2 on CPUs too, which accelerate omits."""
        super().create_accelerator_and_postprocess()
        state: Any = self.accelerator.state
        if self.args.fsdp_plugin_args is None or state.distributed_type != DistributedType.MULTI_CPU:
            return
        plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
        if state.mixed_precision != "no":
            plugin.set_mixed_precision(state.mixed_precision)
        state.distributed_type, state.fsdp_plugin, self.is_fsdp_enabled = DistributedType.FSDP, plugin, True

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Return the schedule of the arguments, without a first step at rate 0 (:func:`shift_warm_up`)."""
        usual = super().create_scheduler(num_training_steps, optimizer)
        self.lr_scheduler = shift_warm_up(usual, self.args.get_warmup_steps(num_training_steps))
        return self.lr_scheduler

    def complete(self, unfinished: Partial) -> None:
        """Train to the end from the last good checkpoint, whose files cannot run code; all workers call this."""
        self.remove_callback(PrinterCallback)
        self.accelerator.wait_for_everyone()
        checkpoint = unfinished.last_checkpoint
        try:
            self.train(resume_from_checkpoint=checkpoint)
        except pickle.UnpicklingError as error:
            raise TrainingError(
                f"{checkpoint}: holds a file that no training wrote, and nothing of it was run; remove "
                f"{unfinished.folder} and give the same command: the training begins anew"
            ) from error

    def finish(self, unfinished: Partial, tokenizer: Any, lora: LoraConfig | None, record: TrainingRecord) -> None:
        """Save the adapter, or the model with its tokenizer, and the record; all workers gather sharded weights."""
        gathered: dict[str, torch.Tensor] = {}
        model: Any = self.model
        for name, weight in model.state_dict().items() if self.is_fsdp_enabled else ():
            full = weight.full_tensor() if isinstance(weight, DTensor) else weight
            if self.is_world_process_zero():  # accelerate's own gathering loses their storage on CPUs
                gathered[name] = full.detach().cpu().clone()

        def save(path: Path) -> None:
            trained, weights = self.accelerator.unwrap_model(model), gathered or None
            shutil.rmtree(path, ignore_errors=True)
            trained.config.use_cache = True
            if lora is None:
                trained.save_pretrained(path, state_dict=weights)
                tokenizer.save_pretrained(path)
            else:
                # Without save_embedding_layers peft asks the hub whether they were changed.
                trained.save_pretrained(path, state_dict=weights, save_embedding_layers=False)
            (path / TRAINING).write_text(json.dumps(asdict(record)))

        if self.is_world_process_zero():
            unfinished.finish(save)
        self.accelerator.wait_for_everyone()

    def _get_grad_norm(self, model: object, grad_norm: object = None) -> Any:
        """Return the norm of the step's gradients, which is the same in all workers, or raise if it is not finite."""
        norm: Any = super()._get_grad_norm(model, grad_norm)  # type: ignore[no-untyped-call]
        if not torch.isfinite(torch.as_tensor(norm)):
            raise TrainingError(
                f"step {self.state.global_step + 1}: the loss or a gradient is not finite (norm {float(norm)}); lower "
                "learning_rate, or set compute_dtype: float32; the last checkpoint is kept"
            )
        return norm

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, RuntimeError, SafetensorError) as error:  # writers hide the disk's own errors
            step, folder, reason = self.state.global_step, self.args.output_dir, str(error).partition("\n")[0]
            shutil.rmtree(f"{folder}/checkpoint-{step}", ignore_errors=True)
            raise OSError(
                f"the checkpoint of step {step} was not saved to {folder}: {reason}; "
                "if the disk is full, make room there; the checkpoint before is kept"
            ) from error
