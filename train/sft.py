"""Supervised fine-tuning of a causal language model on (prompt, completion) pairs, in one or several processes.

The loss covers only the completion's tokens and the end token, as the mean over all of them in a global batch (paper,
App. "Training Details"). The paper leaves open, and we chose: rows of similar length share a batch. Batches are padded
on the right, which causal attention never reads, and logits are computed from the end of the batch's shortest prompt
on.

Shapes: B rows of a batch, T tokens of its longest row, K <= T last positions, V words of the vocabulary.
"""

import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils.logging import disable_progress_bar

from curation.config import SftConfig
from curation.errors import ConfigError, SourceError
from curation.models import check_tokens, load_model, load_tokenizer, resolve
from curation.refs import ModelRef, fingerprint
from curation.storage.paths import Place
from train.tokens import Pair, Row, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)

IGNORED = -100
CHECKPOINT_SHARE = 0.25
"""The share of the steps between two checkpoints; a killed worker loses at most this much."""
TRAINING = "training.json"
"""The file beside a trained model that holds its ``TrainingRecord``."""
LOGGING_SHARE = 0.02
"""The share of the steps between two logged losses."""


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """How a model was trained."""

    num_rows: int
    """The number of rows trained on."""
    num_dropped: int
    """The number of given rows longer than ``max_length``, which were dropped. 0 for a student, because
    :mod:`curation.stages.length` excludes such rows before the selection."""
    num_epochs: int
    """Passes over the rows, from the number of rows given, including dropped ones."""
    losses: list[float]
    """The mean loss of each logging interval, natural log per token."""
    seconds: float


class Kept(Protocol):
    """Stores a folder of checkpoints so that it outlives the machine."""

    def keep(self, directory: Path) -> None:
        """Store the folder's current content, replacing what was stored before."""
        ...

    def restore(self, directory: Path) -> None:
        """Restore the last stored content, if any."""
        ...


@dataclass(frozen=True, kw_only=True)
class SftResult:
    """A trained model and the record of its training."""

    model: ModelRef
    record: TrainingRecord


def collate(rows: Sequence[Row], pad: int) -> dict[str, Any]:
    """A right-padded batch: ``input_ids`` and ``attention_mask`` int64 [B, T], ``labels`` int64 [B, K].

    Labels are the ids at the last K positions, ``IGNORED`` outside the completion. The first of these positions is the
    one before the batch's first completion, because its logits predict that completion's first token.
    """
    width = max(len(row["input_ids"]) for row in rows)
    first = max(min(row["num_prompt"] for row in rows) - 1, 0)
    ids_BT = torch.full((len(rows), width), pad)
    mask_BT = torch.zeros_like(ids_BT)
    labels_BT = torch.full_like(ids_BT, IGNORED)
    for index, row in enumerate(rows):
        ids, start = torch.tensor(row["input_ids"]), row["num_prompt"]
        ids_BT[index, : len(ids)] = ids
        mask_BT[index, : len(ids)] = 1
        labels_BT[index, start : len(ids)] = ids[start:]
    return {
        "input_ids": ids_BT,
        "attention_mask": mask_BT,
        "labels": labels_BT[:, first:],
        "logits_to_keep": width - first,
    }


def completion_loss(
    logits_BTV: torch.Tensor, labels_BK: torch.Tensor, num_tokens: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Cross-entropy summed over the labelled tokens, divided by ``num_tokens`` (by default their number), a scalar.

    Models that ignore ``logits_to_keep`` return logits of all positions; only the last K are used.
    """
    logits_BKV = logits_BTV[:, -labels_BK.shape[1] :].float()
    total = torch.nn.functional.cross_entropy(
        logits_BKV[:, :-1].flatten(0, 1), labels_BK[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return total / (num_tokens if num_tokens is not None else (labels_BK[:, 1:] != IGNORED).sum())


def accumulation_steps(config: SftConfig, num_workers: int) -> int:
    """How many micro-batches of each worker make up the global batch.

    Raises:
        ConfigError: the global batch is not a multiple of micro-batch times workers.
    """
    together = config.micro_batch_size * num_workers
    if config.global_batch_size % together:
        raise ConfigError(
            f"global_batch_size: {config.global_batch_size} is not a multiple of "
            f"micro_batch_size {config.micro_batch_size} x num_workers {num_workers}; change one of the three"
        )
    return config.global_batch_size // together


def fine_tune(
    base: ModelRef,
    pairs: Sequence[Pair],
    config: SftConfig,
    *,
    seed: int,
    output: Path,
    progress: Callable[[int, int], None] | None = None,
    kept: Kept | None = None,
) -> TrainingRecord:
    """Fine-tune ``base`` and save an adapter or a full model to ``output`` atomically (:func:`result_ref`).

    Under ``torch.distributed`` every worker calls this with the same arguments, and the first one saves. After a kill,
    a call with the same arguments resumes from the last checkpoint in ``<output>.partial``; if the workers do not share
    that folder, ``kept`` stores it elsewhere too. An adapter of ``base`` is merged first; a LoRA result then has the
    merged model in ``<output>/base``. ``progress`` receives rows done and rows in all, over all epochs.
    ``<output>/training.json`` holds the returned record.

    Raises:
        SourceError: there are no pairs, or none within ``max_length``.
        ConfigError: the batch sizes do not divide.
        ModelError: the base does not load.
    """
    if not pairs:
        raise SourceError(f"{output.name}: no rows to train on; a selection of at least one row is needed")
    start = time.monotonic()
    set_seed(seed)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = load_tokenizer(base)
    data = tokenize(tokenizer, pairs, config.max_length, chat_template=config.chat_template)
    if data.num_dropped:
        log.warning("%s: %d of %d rows exceed %d tokens", output.name, data.num_dropped, len(pairs), config.max_length)
    if not data.rows:
        raise SourceError(f"{output.name}: all {len(pairs)} rows exceed max_length {config.max_length}; raise it")
    partial = output.with_name(f"{output.name}.partial")
    num_epochs = config.num_epochs(len(pairs))  # of all given rows: arms of one n get equal epochs
    args = _arguments(config, num_rows=len(data.rows), num_epochs=num_epochs, seed=seed, work=partial / "checkpoints")
    stamp = fingerprint([base.to_json(), config.model_dump(mode="json"), seed, [tuple(pair) for pair in pairs]])
    if kept is not None:
        kept.restore(partial)
    if args.process_index == 0 or kept is not None:
        _prepare(partial, stamp)
    loaded = load_model(base)
    check_tokens(base, tokenizer, loaded)
    model = _trainable(loaded, config)
    trainer = Trainer(
        model=model,
        args=args,
        data_collator=lambda rows: collate(rows, tokenizer.pad_token_id),
        train_dataset=data.rows,
        compute_loss_func=lambda outputs, labels, num_items_in_batch=None: completion_loss(
            outputs.logits, labels, num_items_in_batch
        ),
        callbacks=[_Progress(output.name, len(data.rows) * num_epochs, progress)],
    )
    if kept is not None:
        trainer.add_callback(_Keeping(kept, partial))
    trainer.remove_callback(PrinterCallback)
    trainer.accelerator.wait_for_everyone()
    trainer.train(resume_from_checkpoint=get_last_checkpoint(args.output_dir) if _exists(args.output_dir) else None)  # type: ignore[no-untyped-call]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    record = TrainingRecord(
        num_rows=len(data.rows),
        num_dropped=data.num_dropped,
        num_epochs=num_epochs,
        losses=losses,
        seconds=time.monotonic() - start,
    )
    if trainer.is_world_process_zero():
        trained = trainer.accelerator.unwrap_model(trainer.model)
        if config.lora is not None and base.adapter is not None:
            trained.peft_config["default"].base_model_name_or_path = str(output / "base")  # not what was merged into it
        _save(trained, tokenizer, base, config, partial / "result")
        (partial / "result" / TRAINING).write_text(json.dumps(asdict(record)))
        shutil.rmtree(output, ignore_errors=True)
        (partial / "result").rename(output)
        shutil.rmtree(partial)
    trainer.accelerator.wait_for_everyone()
    return record


def result_ref(base: ModelRef, config: SftConfig, output: Place) -> ModelRef:
    """The reference to the model that :func:`fine_tune` saved to ``output``."""
    if config.lora is None:
        return resolve(str(output))
    if base.adapter is None:
        return ModelRef(base=base.base, revision=base.revision, adapter=str(output))
    return resolve(str(output / "base"), adapter=str(output))


def _exists(path: str | None) -> bool:
    return path is not None and Path(path).is_dir()


def _prepare(partial: Path, stamp: str) -> None:
    """Keep the checkpoints in ``partial`` if they belong to this run (``stamp``), else empty the folder."""
    stamp_file = partial / "stamp"
    if not stamp_file.is_file() or stamp_file.read_text() != stamp:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        stamp_file.write_text(stamp)


def _arguments(config: SftConfig, *, num_rows: int, num_epochs: int, seed: int, work: Path) -> TrainingArguments:
    use_gpu = config.gpus_per_worker > 0
    num_workers = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    accumulation = accumulation_steps(config, num_workers)
    num_steps = math.ceil(num_rows / config.global_batch_size) * num_epochs
    return TrainingArguments(
        output_dir=str(work),
        use_cpu=not use_gpu,
        per_device_train_batch_size=config.micro_batch_size,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=num_epochs,
        learning_rate=config.learning_rate,
        adam_beta1=config.adam_betas[0],
        adam_beta2=config.adam_betas[1],
        weight_decay=config.weight_decay,
        lr_scheduler_type=config.schedule,
        warmup_steps=math.ceil(config.warmup_ratio * num_steps),
        max_grad_norm=config.max_grad_norm,
        gradient_checkpointing=config.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        train_sampling_strategy="group_by_length",
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=use_gpu,
        remove_unused_columns=False,
        save_strategy="steps",
        save_steps=CHECKPOINT_SHARE,
        save_total_limit=1,
        logging_steps=LOGGING_SHARE,
        report_to="none",
        disable_tqdm=True,
        log_level="error",
        seed=seed,
        data_seed=seed,
    )


def _trainable(model: "PreTrainedModel", config: SftConfig) -> Any:
    """The model to train: unchanged, or with a new adapter on all its linear layers."""
    model.config.use_cache = False  # also avoids a warning of transformers under gradient checkpointing
    if config.lora is None:
        return model
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(
        r=config.lora.rank,
        lora_alpha=config.lora.alpha,
        lora_dropout=config.lora.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, adapter)


def _save(model: Any, tokenizer: "PreTrainedTokenizerBase", base: ModelRef, config: SftConfig, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    model.config.use_cache = True
    if config.lora is None:
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
        return
    model.save_pretrained(path, save_embedding_layers=False)  # else peft asks the hub whether they were changed
    if base.adapter is not None:
        merged = load_model(base)
        merged.save_pretrained(path / "base")
        tokenizer.save_pretrained(path / "base")


class _Keeping(TrainerCallback):
    """Stores each checkpoint elsewhere, from all workers at once."""

    def __init__(self, kept: Kept, partial: Path) -> None:
        self._kept, self._partial = kept, partial

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._kept.keep(self._partial)


class _Progress(TrainerCallback):
    """Logs loss, rows/s and the seconds left at each logging interval, and passes the rows done to ``update``."""

    def __init__(self, name: str, num_rows: int, update: Callable[[int, int], None] | None) -> None:
        self._name = name
        self._num_rows = num_rows
        self._update = update
        self._start = 0.0
        self._first_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._start, self._first_step = time.monotonic(), state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        num_steps = state.global_step - self._first_step
        if not state.is_world_process_zero or not logs or "loss" not in logs or not num_steps:
            return
        seconds_a_step = (time.monotonic() - self._start) / num_steps
        log.info(
            "%s: step %d of %d, loss %.3f, %.0f rows/s, %.0f s left",
            self._name,
            state.global_step,
            state.max_steps,
            logs["loss"],
            self._num_rows / state.max_steps / seconds_a_step,
            seconds_a_step * (state.max_steps - state.global_step),
        )
        if self._update is not None:
            self._update(self._num_rows * state.global_step // state.max_steps, self._num_rows)
