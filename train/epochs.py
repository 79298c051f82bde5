"""Trains a model on the rows of a table for several epochs, in one or several processes; methods differ in the loss.

The order of rows depends on their ids, their lengths and the seed (``train.stream.Order``), not on the method.
"""

import math
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import TrainingArguments, set_seed
from transformers.utils.logging import disable_progress_bar

from curation.config.models import EpochsConfig
from curation.errors import SourceError
from curation.escaping import get_logger
from curation.models import check_tokens, load_tokenizer
from curation.models.dtypes import resolve_compute_dtype
from curation.refs import ModelRef, TableRef
from train.callbacks import Checkpointing, Partial, Progress, StoredCheckpoints
from train.models import TrainingRecord, count_warm_up_steps, load_base, make_trainable
from train.stream import Division, Order, TokenRows
from train.tokens import TrainingRow
from train.trainer import Guarded, make_arguments, read_once

log = get_logger(__name__)

CHECKPOINT_SHARE = 0.25
"""The share of the steps between two checkpoints; a killed worker loses at most this much."""
LOGGING_SHARE = 0.02
"""The share of the steps between two logged losses."""


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
        """Train ``base`` and save an adapter or a full model to ``output`` atomically (:func:`train.models.save`).

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
