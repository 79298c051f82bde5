"""Trains a model on the rows of a table for several epochs by an objective, in one or several processes.

The order of rows depends on their ids, their lengths and the seed (``train.stream.Order``), not on the objective.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainingArguments, set_seed
from transformers.utils.logging import disable_progress_bar

from curation.config import LmStudentConfig
from curation.errors import ConfigError, SourceError
from curation.escaping import get_logger
from curation.models import check_tokens, load_tokenizer
from curation.models.dtypes import settle_training
from curation.refs import ModelRef, TableRef
from train.agreement import count_workers
from train.callbacks import Checkpointing, Kept, Partial, Progress
from train.models import TrainingRecord, count_warm_up_steps, load_base, make_trainable
from train.stream import Division, Loader, Order, Survey, TokenSource
from train.tokens import TrainingRow
from train.trainer import Guarded, make_arguments, read_once

log = get_logger(__name__)

CHECKPOINT_SHARE = 0.25
"""The share of the steps between two checkpoints; a killed worker loses at most this much."""
LOGGING_SHARE = 0.02
"""The share of the steps between two logged losses."""


def count_accumulation_steps(config: LmStudentConfig, num_workers: int) -> int:
    """Return how many micro-batches of each worker make up the global batch, or raise ``ConfigError`` if none do."""
    together = config.micro_batch_size * num_workers
    if config.global_batch_size % together:
        raise ConfigError(
            f"global_batch_size: {config.global_batch_size} is not a multiple of "
            f"micro_batch_size {config.micro_batch_size} x num_workers {num_workers}; change one of the three"
        )
    return config.global_batch_size // together


def _check_rows(name: str, survey: Survey, max_length: int) -> None:
    """Raise ``SourceError`` if no row is left or none can be weighted by trust; log how many rows are too long."""
    num_rows, num_dropped = len(survey.positions_N), len(survey.dropped_M)
    if num_dropped:
        log.warning("%s: %d of %d rows exceed %d tokens", name, num_dropped, num_rows + num_dropped, max_length)
    if not num_rows:
        raise SourceError(f"{name}: all {num_dropped} rows exceed max_length {max_length}; raise it")
    if survey.mean_trust is not None and not 0 < survey.mean_trust < math.inf:
        raise SourceError(
            f"{name}: weight_by_trust needs rows of positive trust; the mean of their trust is {survey.mean_trust}; "
            "set student.weight_by_trust: false"
        )


class RowObjective(ABC):
    """A method's reading of rows: their columns, batches and loss."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def source(self, rows: TableRef, tokenizer: Any) -> TokenSource:
        """Return the rows as token ids."""

    @abstractmethod
    def prepare(self, model: Any, args: TrainingArguments) -> None:
        """Prepare the base model before it gets an adapter, or raise if it does not fit."""

    @abstractmethod
    def batch(self, rows: Sequence[TrainingRow], pad: int, mean_trust: float | None) -> dict[str, Any]:
        """Return a micro-batch with ``row_ids`` and ``labels``; labels that are not ignored are the items of a step."""

    @abstractmethod
    def trainer(self, loader: Loader, tokenizer: object, name: str, **settings: object) -> Guarded:
        """Return the trainer with the loss; ``settings`` are those of ``transformers.Trainer``."""

    def train(
        self,
        base: ModelRef,
        rows: TableRef,
        *,
        seed: int,
        output: Path,
        progress: Callable[[int, int], None] | None = None,
        kept: Kept | None = None,
    ) -> TrainingRecord:
        """Train ``base`` and save an adapter or a full model to ``output`` atomically (:func:`train.models.save`).

        Under ``torch.distributed`` every worker calls this with the same arguments, and the first one saves. After a
        kill, a call with the same arguments resumes from the last checkpoint in ``<output>.partial``, with any number
        of workers; if the workers do not share that folder, ``kept`` stores it elsewhere too. An adapter of ``base`` is
        merged first. ``progress`` receives rows done and rows in all, over all epochs.

        Raises:
            SourceError: there are no rows, none within ``max_length``, or no positive trust to weight them by.
            ConfigError: the batch sizes do not divide, or the base lacks an adapter's module.
            ModelError: the base does not load.
            TrainingError: a loss is not finite, or the base cannot have meant the first rows (``FirstStep``).
        """
        start, config = time.monotonic(), settle_training(self.config, base)
        set_seed(seed)
        disable_progress_bar()  # type: ignore[no-untyped-call]
        tokenizer = load_tokenizer(base)
        source = self.source(rows, tokenizer)
        if not source.num_rows:
            raise SourceError(f"{output.name}: no rows to train on; a selection of at least one row is needed")
        accumulation = count_accumulation_steps(config, count_workers())
        work = output.with_name(f"{output.name}.partial") / "checkpoints"
        args = TrainingArguments(
            **make_arguments(config, accumulation=accumulation, seed=seed, work=work),
            lr_scheduler_type=config.schedule,
            save_steps=CHECKPOINT_SHARE,
            logging_steps=LOGGING_SHARE,
        )
        survey = source.survey(args.process_index, args.world_size)
        _check_rows(output.name, survey, config.max_length)
        num_epochs = config.num_epochs(source.num_rows)  # of all given rows: arms of one n get equal epochs
        order = Order(survey.lengths_N, config.global_batch_size, seed)
        args.num_train_epochs = num_epochs
        num_steps = order.num_steps * num_epochs
        args.warmup_steps = count_warm_up_steps(math.ceil(config.warmup_ratio * num_steps), num_steps)
        recipe = config.without(config.RESOURCES).model_dump(mode="json")
        unfinished = Partial.open(output, [base.to_json(), recipe, seed, survey.digest, bool(args.fsdp)], kept, args)
        division = Division(order, config.micro_batch_size, rank=args.process_index, num_workers=args.world_size)
        with read_once(config):
            model = load_base(base, config)
        check_tokens(base, tokenizer, model)
        self.prepare(model, args)
        batch = partial(self.batch, pad=tokenizer.pad_token_id, mean_trust=survey.mean_trust)
        trainer = self.trainer(
            Loader(source, survey.positions_N, division, collate_fn=batch, pin_memory=args.dataloader_pin_memory),
            tokenizer,
            output.name,
            model=make_trainable(model, config.lora),
            args=args,
            callbacks=[
                Progress(output.name, len(survey.positions_N) * num_epochs, progress),
                Checkpointing(unfinished, kept),
            ],
        )
        trainer.complete(unfinished)
        logged = [entry for entry in trainer.state.log_history if "loss" in entry]
        record = TrainingRecord(
            num_rows=len(survey.positions_N),
            num_dropped=len(survey.dropped_M),
            num_epochs=num_epochs,
            losses=[entry["loss"] for entry in logged],
            curves={name: [entry.get(name) for entry in logged] for name in ("step", "learning_rate", "grad_norm")},
            seconds=time.monotonic() - start,
            dropped=survey.dropped_M.tolist(),
        )
        trainer.finish(unfinished, tokenizer, base, config.lora, record)
        return record
