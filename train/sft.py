"""Supervised fine-tuning of a causal language model on (prompt, completion) pairs, in one or several processes.

The loss covers only the completion's tokens and the end token, as the mean over all of them in a global batch (paper,
App. "Training Details"). The paper leaves open, and we chose: rows of similar length share a batch
(:mod:`train.stream`). Batches are padded on the right, which causal attention never reads, and logits are computed from
the end of the batch's shortest prompt on.

:class:`RowTrainer` trains on the rows of a table for several epochs, whatever the loss: the order of rows depends on
their ids, their lengths and the seed, not on the method.

Shapes: B rows of a batch, T tokens of its longest row, K <= T last positions, V words of the vocabulary.
"""

import inspect
import math
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, TrainingArguments, set_seed
from transformers.utils import is_flash_attn_2_available
from transformers.utils.logging import disable_progress_bar

from curation.config import SftConfig
from curation.config.models import EpochsConfig
from curation.errors import ConfigError, SourceError
from curation.escaping import get_logger
from curation.models import check_tokens, load_tokenizer
from curation.models.dtypes import resolve_compute_dtype
from curation.refs import ModelRef, TableRef
from train.callbacks import Checkpointing, Partial, Progress, StoredCheckpoints
from train.models import TrainingRecord, TrainingResult, count_warm_up_steps, load_base, make_trainable
from train.stream import Division, Order, TokenRows
from train.tokens import TrainingRow
from train.trainer import FirstStep, Guarded, make_arguments, read_once, train_student

log = get_logger(__name__)

IGNORED = -100
TOLERANCE = 1e-6
"""The largest change of a row's logits with the row before it, over the largest logit, at which rows are kept apart."""
CHECKPOINT_SHARE = 0.25
"""The share of the steps between two checkpoints; a killed worker loses at most this much."""
LOGGING_SHARE = 0.02
"""The share of the steps between two logged losses."""


@torch.no_grad()
def check(model: PreTrainedModel) -> None:
    """Raise ``ConfigError`` if a model takes no positions or chosen logits, or reads the row before in a packed row."""
    family = model.config.model_type
    known = inspect.signature(model.forward).parameters
    if not {"position_ids", "logits_to_keep"} <= known.keys():
        raise ConfigError(f"student.packing: a model of family {family} takes no position_ids; set packing: false")
    positions = torch.cat([torch.arange(4), torch.arange(5)])[None]
    words = torch.arange(9)[None] % model.config.get_text_config().vocab_size
    other = torch.cat([words[:, :4].flip(1), words[:, 4:]], dim=1)
    one, another = (
        model(input_ids=ids, position_ids=positions, use_cache=False).logits[0, 4:] for ids in (words, other)
    )
    change = float((one - another).abs().max() / one.abs().max())
    if not change <= TOLERANCE:
        raise ConfigError(
            f"student.packing: in a model of family {family} packed rows read each other (logits of one change by "
            f"{change:.2g} of the largest with the row before it); set packing: false"
        )


def collate(
    rows: Sequence[TrainingRow], pad: int, mean_trust: float | None = None, *, packing: bool = False
) -> dict[str, Any]:
    """Return a batch: ``input_ids`` int64 [B, T], ``labels`` int64 [B, K], the K positions whose logits are needed.

    A row is padded on the right: ``attention_mask`` int64 [B, T]. Labels are the ids at the last K positions
    (``logits_to_keep``), ``IGNORED`` outside the completion; the first of these positions is the one before the
    batch's first completion, because its logits predict that completion's first token. ``weights`` float32 [B, 1] is
    each row's trust over ``mean_trust``, unless that is None. A batch of no rows, as the last step may give some
    workers, is one padding token without a label.

    With ``packing`` all rows follow each other in one, and ``position_ids`` int64 [1, T] restart at each. Attention
    must keep them apart: in transformers it does where a model builds its mask from ``position_ids`` (a block mask with
    ``sdpa``) or hands them to FlashAttention; :func:`check` tests whether a row's logits change with the row before it.
    ``logits_to_keep`` int64 [K] are then the positions whose next token is a label, and one more. ``labels`` int64
    [1, K] are these tokens, after one that is ignored, and ``weights`` [1, K - 1] those of the labels' rows.
    """
    ids = [torch.tensor(row["input_ids"]) for row in rows] or [torch.tensor([pad])]
    starts = [max(row["num_prompt"], 1) for row in rows] or [1]
    labels = [
        torch.where(torch.arange(len(each)) < start, IGNORED, each) for each, start in zip(ids, starts, strict=True)
    ]
    trusts = None if mean_trust is None or not rows else torch.tensor([[row["trust"] / mean_trust] for row in rows])
    batch: dict[str, Any] = {"row_ids": [row["row_id"] for row in rows]}
    if packing and rows:
        labels_T = torch.cat(labels)
        (kept,) = torch.nonzero(labels_T != IGNORED, as_tuple=True)
        batch["input_ids"] = torch.cat(ids)[None]
        batch["position_ids"] = torch.cat([torch.arange(len(each)) for each in ids])[None]
        batch["labels"] = torch.cat([torch.tensor([IGNORED]), labels_T[kept]])[None]
        batch["logits_to_keep"] = torch.cat([kept - 1, torch.tensor([len(labels_T) - 1])])
        if trusts is not None:
            lengths = torch.tensor([len(each) for each in ids])
            batch["weights"] = trusts[:, 0].repeat_interleave(lengths)[kept][None]
        return batch
    batch["input_ids"] = pad_sequence(ids, batch_first=True, padding_value=pad)
    batch["attention_mask"] = pad_sequence([torch.ones_like(each) for each in ids], batch_first=True)
    first = min(starts) - 1
    batch["labels"] = pad_sequence(labels, batch_first=True, padding_value=IGNORED)[:, first:]
    batch["logits_to_keep"] = batch["labels"].shape[1]
    return batch if trusts is None else batch | {"weights": trusts}


def compute_completion_loss(
    logits_BTV: torch.Tensor,
    labels_BK: torch.Tensor,
    num_tokens: torch.Tensor | int | None = None,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the cross-entropy summed over the labelled tokens, divided by ``num_tokens`` (by default their number).

    ``weights`` [B, 1], or [1, K - 1] by label, multiply the losses, not the number of tokens. Models that ignore
    ``logits_to_keep`` return logits of all positions; only the last K are used.
    """
    logits_BKV = logits_BTV[:, -labels_BK.shape[1] :].float()
    targets = labels_BK[:, 1:]
    flat = logits_BKV[:, :-1].flatten(0, 1), targets.flatten()
    if weights is None:
        total = cross_entropy(*flat, ignore_index=IGNORED, reduction="sum")
    else:
        losses = cross_entropy(*flat, ignore_index=IGNORED, reduction="none")
        total = (losses.view_as(targets) * weights).sum()
    return total / (num_tokens if num_tokens is not None else (targets != IGNORED).sum())


def _check_rows(name: str, rows: TokenRows, max_length: int) -> None:
    """Raise ``SourceError`` if no row is left or none can be weighted by trust; log how many rows are too long."""
    if num_dropped := len(rows.dropped_M):
        log.warning("%s: %d of %d rows exceed %d tokens", name, num_dropped, rows.num_rows, max_length)
    if not rows.num_rows:
        raise SourceError(f"{name}: no rows to train on; a selection of at least one row is needed")
    if not len(rows):
        raise SourceError(f"{name}: all {num_dropped} rows exceed max_length {max_length}; raise it")
    if rows.mean_trust is not None and not 0 < rows.mean_trust < math.inf:
        raise SourceError(
            f"{name}: weight_by_trust needs rows of positive trust; the mean of their trust is {rows.mean_trust}; "
            "set student.weight_by_trust: false"
        )


class RowTrainer(Guarded):
    """A trainer on the rows of a table; a subclass makes the batches and computes the loss."""

    def __init__(
        self, config: Any, rows: TokenRows, division: Division, tokenizer: Any, name: str, model: Any, **settings: Any
    ) -> None:
        """Train ``model``, with a new adapter if ``config`` says so; pass ``settings`` on to ``transformers``."""
        self.config, self.rows, self.tokenizer, self.name = config, rows, tokenizer, name
        self._division = division
        self.prepare(model, settings["args"])
        model = make_trainable(model, config.lora)
        super().__init__(model=model, train_dataset=rows, compute_loss_func=self.compute_batch_loss, **settings)

    @abstractmethod
    def prepare(self, model: Any, args: TrainingArguments) -> None:
        """Prepare the base model before it gets an adapter, or raise if it does not fit."""

    @abstractmethod
    def collate(self, rows: Sequence[TrainingRow]) -> dict[str, Any]:
        """Return a micro-batch with ``row_ids`` and ``labels``; labels that are not ignored are the items of a step."""

    @abstractmethod
    def compute_batch_loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        """Return the sum of a micro-batch's losses over the number of items of its step."""

    def get_train_dataloader(self) -> Any:
        """Return the batches of this worker; they are already divided among the workers."""
        how: dict[str, Any] = {"collate_fn": self.collate, "pin_memory": self.args.dataloader_pin_memory}
        loader: Any = DataLoader(self.rows, batch_sampler=self._division, **how)
        loader.set_epoch = self._division.set_epoch  # transformers calls it before each epoch
        return loader

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of a micro-batch, remembered with its row ids until the step ends."""
        row_ids, self.weights = inputs.pop("row_ids"), inputs.pop("weights", None)
        loss: Any = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self.remember(row_ids, loss)
        return loss

    @classmethod
    def train_on(
        cls,
        base: ModelRef,
        table: TableRef,
        config: EpochsConfig,
        *,
        seed: int,
        output: Path,
        progress: Callable[[int, int, str], None] | None = None,
        kept: StoredCheckpoints | None = None,
    ) -> TrainingRecord:
        """Train ``base`` and save an adapter or a full model to ``output`` atomically (:meth:`Guarded.finish`).

        Under ``torch.distributed`` every worker calls this with the same arguments, and the first one saves. After a
        kill, a call with the same arguments resumes from the last checkpoint in ``<output>.partial``, with any number
        of workers; if the workers do not share that folder, ``kept`` stores it elsewhere too. An adapter of ``base`` is
        merged first. ``progress`` receives rows done and rows in all, over all epochs, and words on the loss.

        Raises:
            SourceError: there are no rows, none within ``max_length``, or no positive trust to weight them by.
            ConfigError: the batch sizes do not divide, or the base lacks an adapter's module.
            ModelError: the base does not load.
            TrainingError: a loss is not finite, the base cannot have meant the first rows (``FirstStep``), or the disk
                is full at a checkpoint.
        """
        start, config = time.monotonic(), resolve_compute_dtype(config, base)
        set_seed(seed)
        disable_progress_bar()  # type: ignore[no-untyped-call]
        tokenizer = load_tokenizer(base)
        work = output.with_name(f"{output.name}.partial") / "checkpoints"
        args = TrainingArguments(
            **make_arguments(config, seed=seed, work=work),
            lr_scheduler_type=config.schedule,
            save_steps=CHECKPOINT_SHARE,
            logging_steps=LOGGING_SHARE,
        )
        with tempfile.TemporaryDirectory(prefix="rows-") as folder:
            rows = TokenRows(table, tokenizer, config, Path(folder) / "rows.arrow")  # mapped: it outlives its name
        _check_rows(output.name, rows, config.max_length)
        num_epochs = config.num_epochs(rows.num_rows)  # of all given rows: arms of one n get equal epochs
        order = Order(rows.lengths_N, config.global_batch_size, seed)
        args.num_train_epochs = num_epochs
        num_steps = order.num_steps * num_epochs
        args.warmup_steps = count_warm_up_steps(math.ceil(config.warmup_ratio * num_steps), num_steps)
        recipe = config.without(config.RESOURCES).model_dump(mode="json")
        unfinished = Partial.open(output, [base.to_json(), recipe, seed, rows.digest, bool(args.fsdp)], kept, args)
        with read_once(config):
            model = load_base(base, config)
        check_tokens(base, tokenizer, model)
        division = Division(order, config.micro_batch_size, args.process_index, args.world_size)
        callbacks = [Progress(len(rows) * num_epochs, progress), Checkpointing(unfinished, kept)]
        trainer = cls(config, rows, division, tokenizer, output.name, model, args=args, callbacks=callbacks)
        trainer.complete(unfinished)
        logged = [entry for entry in trainer.state.log_history if "loss" in entry]
        record = TrainingRecord(
            num_rows=len(rows),
            num_dropped=len(rows.dropped_M),
            num_epochs=num_epochs,
            losses=[entry["loss"] for entry in logged],
            curves={name: [entry.get(name) for entry in logged] for name in ("step", "learning_rate", "grad_norm")},
            seconds=time.monotonic() - start,
            dropped=rows.dropped_M.tolist(),
        )
        trainer.finish(unfinished, tokenizer, base, config.lora, record)
        return record


class SftTrainer(RowTrainer):
    """A trainer that learns each row's completion."""

    def prepare(self, model: Any, args: TrainingArguments) -> None:
        """Set the model's attention for packed rows; raise ``ConfigError`` if they would read each other."""
        config = self.config
        self._first_step = FirstStep(self.name, self.tokenizer, IGNORED) if config.check_first_step else None
        if config.packing:
            check(model)
            if args.device.type == "cuda" and args.bf16 and is_flash_attn_2_available():
                model.set_attn_implementation("flash_attention_2")

    def collate(self, rows: Sequence[TrainingRow]) -> dict[str, Any]:
        """Return the rows as a padded or a packed batch."""
        return collate(rows, self.tokenizer.pad_token_id, self.rows.mean_trust, packing=self.config.packing)

    def compute_batch_loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        """Return the mean loss of the completions' tokens."""
        if self._first_step is not None and self.state.global_step == 0:
            self._first_step.add(outputs.logits, labels)
        return compute_completion_loss(outputs.logits, labels, num_items_in_batch, self.weights)

    def _get_grad_norm(self, model: object, grad_norm: object = None) -> Any:
        if self._first_step is not None and self.state.global_step == 0:
            self._first_step.check()
        return super()._get_grad_norm(model, grad_norm)


fine_tune = SftTrainer.train_on
"""The fine-tuning that each worker does."""


def train_sft(base: ModelRef, rows: TableRef, config: SftConfig, **how: Any) -> TrainingResult:
    """Fine-tune ``base`` on ``prompt`` and ``completion`` of ``rows`` by :func:`train.trainer.train_student`."""
    return train_student(fine_tune, base, rows, config, **how)
