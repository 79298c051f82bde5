"""Supervised fine-tuning of a causal language model on (prompt, completion) pairs, in one or several processes.

The loss covers only the completion's tokens and the end token, as the mean over all of them in a global batch (paper,
App. "Training Details"). The paper leaves open, and we chose: rows of similar length share a batch
(:mod:`train.order`). Batches are padded on the right, which causal attention never reads, and logits are computed from
the end of the batch's shortest prompt on.

Shapes: B rows of a batch, T tokens of its longest row, K <= T last positions, V words of the vocabulary.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainingArguments, set_seed
from transformers.utils import is_flash_attn_2_available  # type: ignore[attr-defined]
from transformers.utils.logging import disable_progress_bar

from curation.config import SftConfig
from curation.errors import ConfigError, SourceError
from curation.escaping import logger_of
from curation.models import check_tokens, load_model, load_tokenizer
from curation.refs import ModelRef, TableRef, fingerprint
from curation.storage.paths import Place
from curation.telemetry.standing import Update
from train.callbacks import Checkpointing, Kept, Progress
from train.first_step import FirstStep
from train.models import TrainingRecord, TrainingResult, save, trainable, warm_up
from train.order import Division, Order
from train.packing import IGNORED, check, pack
from train.partial import Partial
from train.stream import Loader, TokenSource
from train.student import train_student
from train.tokens import TrainingRow
from train.trainer import SftTrainer, arguments, num_workers

log = logger_of(__name__)

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

    The order of rows follows from their ids, their lengths and the seed.

    Raises:
        ConfigError: the batch sizes do not divide.
        SourceError, RunFailedError: as :func:`train.student.train_student`.
    """
    accumulation_steps(config, config.num_workers)
    return train_student(_learn, base, rows, config, seed=seed, output=output, name=name, update=update)


def _learn(base: ModelRef, rows: TableRef, config: SftConfig, **how: Any) -> TrainingRecord:
    return fine_tune(base, rows, config, **how)


def collate(rows: Sequence[TrainingRow], pad: int, mean_trust: float | None = None) -> dict[str, Any]:
    """A right-padded batch: ``input_ids`` and ``attention_mask`` int64 [B, T], ``labels`` int64 [B, K], ``row_ids``.

    With ``mean_trust`` also ``weights`` float32 [B, 1]: each row's trust over it.

    Labels are the ids at the last K positions, ``IGNORED`` outside the completion. The first of these positions is the
    one before the batch's first completion, because its logits predict that completion's first token. A batch of no
    rows, as the last step may give some workers, is one padding token without a label.
    """
    if not rows:
        nothing = {"input_ids": torch.tensor([[pad]]), "labels": torch.tensor([[IGNORED]])}
        return nothing | {"attention_mask": torch.tensor([[1]]), "logits_to_keep": 1, "row_ids": []}
    weights = {} if mean_trust is None else {"weights": torch.tensor([[row["trust"] / mean_trust] for row in rows])}
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
        "row_ids": [row["row_id"] for row in rows],
    } | weights


def completion_loss(
    logits_BTV: torch.Tensor,
    labels_BK: torch.Tensor,
    num_tokens: torch.Tensor | int | None = None,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Cross-entropy summed over the labelled tokens, divided by ``num_tokens`` (by default their number), a scalar.

    ``weights`` [B, 1], or [1, K - 1] by label, multiply the losses, not the number of tokens. Models that ignore
    ``logits_to_keep`` return logits of all positions; only the last K are used.
    """
    logits_BKV = logits_BTV[:, -labels_BK.shape[1] :].float()
    targets = labels_BK[:, 1:]
    if weights is None:
        total = torch.nn.functional.cross_entropy(
            logits_BKV[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
    else:
        losses = torch.nn.functional.cross_entropy(
            logits_BKV[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none"
        )
        total = (losses.view_as(targets) * weights).sum()
    return total / (num_tokens if num_tokens is not None else (targets != IGNORED).sum())


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
    rows: TableRef,
    config: SftConfig,
    *,
    seed: int,
    output: Path,
    progress: Callable[[int, int], None] | None = None,
    kept: Kept | None = None,
) -> TrainingRecord:
    """Fine-tune ``base`` and save an adapter or a full model to ``output`` atomically (:func:`train.models.save`).

    Under ``torch.distributed`` every worker calls this with the same arguments, and the first one saves. After a kill,
    a call with the same arguments resumes from the last checkpoint in ``<output>.partial``, with any number of workers;
    if the workers do not share that folder, ``kept`` stores it elsewhere too. An adapter of ``base`` is merged first.
    ``progress`` receives rows done and rows in all, over all epochs.

    Raises:
        SourceError: there are no rows, or none within ``max_length``, or no trust to weight them by.
        ConfigError: the batch sizes do not divide, or the base lacks an adapter's module.
        ModelError: the base does not load.
        TrainingError: the base cannot have meant the first rows (:mod:`train.first_step`), a loss is not finite, or a
            checkpoint cannot be written.
    """
    start = time.monotonic()
    set_seed(seed)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = load_tokenizer(base)
    source = TokenSource(
        rows,
        tokenizer,
        max_length=config.max_length,
        chat_template=config.chat_template,
        with_trust=config.weight_by_trust,
    )
    if not source.num_rows:
        raise SourceError(f"{output.name}: no rows to train on; a selection of at least one row is needed")
    args = _arguments(config, seed=seed, work=output.with_name(f"{output.name}.partial") / "checkpoints")
    survey = source.survey(args.process_index, args.world_size)
    num_rows, num_dropped = len(survey.positions_N), len(survey.dropped_M)
    if num_dropped:
        log.warning("%s: %d of %d rows exceed %d tokens", output.name, num_dropped, source.num_rows, config.max_length)
    if not num_rows:
        raise SourceError(f"{output.name}: all {num_dropped} rows exceed max_length {config.max_length}; raise it")
    if survey.mean_trust is not None and not 0 < survey.mean_trust < math.inf:
        raise SourceError(
            f"{output.name}: weight_by_trust needs rows of positive trust; the mean of their trust is "
            f"{survey.mean_trust}; set student.weight_by_trust: false"
        )
    num_epochs = config.num_epochs(source.num_rows)  # of all given rows: arms of one n get equal epochs
    order = Order(lengths_N=survey.lengths_N, global_batch_size=config.global_batch_size, seed=seed)
    args.num_train_epochs = num_epochs
    num_steps = order.num_steps * num_epochs
    args.warmup_steps = warm_up(math.ceil(config.warmup_ratio * num_steps), num_steps)
    recipe = config.without(config.RESOURCES).model_dump(mode="json")
    unfinished = Partial(output, fingerprint([base.to_json(), recipe, seed, survey.digest, bool(args.fsdp)]))
    if kept is not None:
        kept.restore(unfinished.folder)
    if args.process_index == 0 or kept is not None:
        unfinished.prepare()
    division = Division(
        order=order, micro_batch_size=config.micro_batch_size, rank=args.process_index, num_workers=args.world_size
    )
    model = load_model(base)
    check_tokens(base, tokenizer, model)
    if config.packing:
        check(model)
        if args.device.type == "cuda" and args.bf16 and is_flash_attn_2_available():
            model.set_attn_implementation("flash_attention_2")

    def batch(rows: Sequence[TrainingRow]) -> dict[str, Any]:
        if config.packing and rows:
            return pack(rows, survey.mean_trust)
        return collate(rows, tokenizer.pad_token_id, survey.mean_trust)

    trainer = SftTrainer(
        Loader(
            source,
            survey.positions_N,
            division,
            collate_fn=batch,
            pin_memory=args.dataloader_pin_memory,
        ),
        model=trainable(model, config.lora),
        args=args,
        loss=completion_loss,
        first_step=FirstStep(output.name, tokenizer, IGNORED) if config.check_first_step else None,
        callbacks=[Progress(output.name, num_rows * num_epochs, progress), Checkpointing(unfinished, kept)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.accelerator.wait_for_everyone()
    unfinished.resume(trainer)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    record = TrainingRecord(
        num_rows=num_rows,
        num_dropped=num_dropped,
        num_epochs=num_epochs,
        losses=[entry["loss"] for entry in logged],
        curves={name: [entry.get(name) for entry in logged] for name in ("step", "learning_rate", "grad_norm")},
        seconds=time.monotonic() - start,
        dropped=survey.dropped_M.tolist(),
    )
    weights = trainer.full_weights()
    if trainer.is_world_process_zero():
        trained = trainer.accelerator.unwrap_model(trainer.model)
        unfinished.finish(lambda path: save(trained, tokenizer, base, config.lora, record, path, output, weights))
    trainer.accelerator.wait_for_everyone()
    return record


def _arguments(config: SftConfig, *, seed: int, work: Path) -> TrainingArguments:
    accumulation = accumulation_steps(config, num_workers())
    return TrainingArguments(
        **arguments(config, accumulation=accumulation, seed=seed, work=work),
        lr_scheduler_type=config.schedule,
        save_steps=CHECKPOINT_SHARE,
        logging_steps=LOGGING_SHARE,
    )
