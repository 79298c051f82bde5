"""Supervised fine-tuning of a causal language model on (prompt, completion) pairs, in one or several processes.

The loss covers only the completion's tokens and the end token, as the mean over all of them in a global batch (paper,
App. "Training Details"). The paper leaves open, and we chose: rows of similar length share a batch. Batches are padded
on the right, which causal attention never reads, and logits are computed from the end of the batch's shortest prompt
on.

Shapes: B rows of a batch, T tokens of its longest row, K <= T last positions, V words of the vocabulary.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lance
import torch
from transformers import PrinterCallback, Trainer, TrainingArguments, set_seed
from transformers.utils.logging import disable_progress_bar

from curation.config import SftConfig
from curation.errors import ConfigError, SourceError
from curation.models import check_tokens, load_model, load_tokenizer
from curation.refs import ModelRef, TableRef, fingerprint
from curation.storage.paths import Place
from curation.telemetry.standing import Update
from train.callbacks import Keeping, Kept, Progress
from train.models import TrainingRecord, TrainingResult, save, trainable
from train.partial import Partial
from train.student import train_student
from train.tokens import Pair, Row, tokenize

log = logging.getLogger(__name__)

IGNORED = -100
CHECKPOINT_SHARE = 0.25
"""The share of the steps between two checkpoints; a killed worker loses at most this much."""
LOGGING_SHARE = 0.02
"""The share of the steps between two logged losses."""


def train_sft(
    base: ModelRef,
    rows: TableRef,
    config: SftConfig,
    *,
    seed: int,
    output: Place,
    name: str,
    update: Update = lambda standing: None,
) -> TrainingResult:
    """Fine-tune ``base`` on the ``prompt`` and ``completion`` columns of ``rows``, and save the student to ``output``.

    Rows are read in the order of their ids, so that a seed defines the run.

    Raises:
        ConfigError: the batch sizes do not divide.
        SourceError, RunFailedError: as :func:`train.student.train_student`.
    """
    accumulation_steps(config, config.num_workers)
    return train_student(_learn, base, rows, config, seed=seed, output=output, name=name, update=update)


def _learn(base: ModelRef, rows: TableRef, config: SftConfig, **how: Any) -> TrainingRecord:
    return fine_tune(base, read_pairs(rows), config, **how)


def read_pairs(rows: TableRef) -> list[Pair]:
    """The pairs of a table, in the order of ``row_id``."""
    columns = ["row_id", "prompt", "completion"]
    table = lance.dataset(rows.uri, version=rows.version).to_table(columns=columns).sort_by("row_id")
    return [Pair(*pair) for pair in zip(table["prompt"].to_pylist(), table["completion"].to_pylist(), strict=True)]


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
    """Fine-tune ``base`` and save an adapter or a full model to ``output`` atomically (:func:`train.models.save`).

    Under ``torch.distributed`` every worker calls this with the same arguments, and the first one saves. After a kill,
    a call with the same arguments resumes from the last checkpoint in ``<output>.partial``; if the workers do not share
    that folder, ``kept`` stores it elsewhere too. An adapter of ``base`` is merged first. ``progress`` receives rows
    done and rows in all, over all epochs.

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
    num_epochs = config.num_epochs(len(pairs))  # of all given rows: arms of one n get equal epochs
    stamp = fingerprint([base.to_json(), config.model_dump(mode="json"), seed, [tuple(pair) for pair in pairs]])
    partial = Partial(output, stamp)
    args = _arguments(config, num_rows=len(data.rows), num_epochs=num_epochs, seed=seed, work=partial.checkpoints)
    if kept is not None:
        kept.restore(partial.folder)
    if args.process_index == 0 or kept is not None:
        partial.prepare()
    loaded = load_model(base)
    check_tokens(base, tokenizer, loaded)
    trainer = Trainer(
        model=trainable(loaded, config.lora),
        args=args,
        data_collator=lambda rows: collate(rows, tokenizer.pad_token_id),
        train_dataset=data.rows,
        compute_loss_func=lambda outputs, labels, num_items_in_batch=None: completion_loss(
            outputs.logits, labels, num_items_in_batch
        ),
        callbacks=[Progress(output.name, len(data.rows) * num_epochs, progress)],
    )
    if kept is not None:
        trainer.add_callback(Keeping(kept, partial.folder))
    trainer.remove_callback(PrinterCallback)
    trainer.accelerator.wait_for_everyone()
    trainer.train(resume_from_checkpoint=partial.last_checkpoint)
    record = TrainingRecord(
        num_rows=len(data.rows),
        num_dropped=data.num_dropped,
        num_epochs=num_epochs,
        losses=[entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        seconds=time.monotonic() - start,
    )
    if trainer.is_world_process_zero():
        model = trainer.accelerator.unwrap_model(trainer.model)
        partial.finish(lambda path: save(model, tokenizer, base, config.lora, record, path, output))
    trainer.accelerator.wait_for_everyone()
    return record


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
