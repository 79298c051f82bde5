"""Supervised fine-tuning of a causal language model on (prompt, completion) pairs, in one or several processes.

The loss is the mean over all tokens of completions, end tokens included, in a global batch (paper, App. "Training
Details"). Rows of similar length share a batch, which the paper leaves open (:mod:`train.stream`). Batches are padded
on the right, and logits are computed from the end of the batch's shortest prompt on.

:class:`RowTrainer` trains on the rows of a table for several epochs, whatever the loss.

Shapes: B rows of a batch, T tokens of its longest row, K <= T last positions, V words of the vocabulary.
"""

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import patch_environment  # type: ignore[import-untyped]
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import TrainingArguments, set_seed
from transformers.utils.logging import disable_progress_bar

from curation.config import SftConfig
from curation.config.models import EpochsConfig
from curation.models import check_tokens, load_tokenizer
from curation.models.dtypes import resolve_compute_dtype
from curation.refs import ModelRef, TableRef
from train.callbacks import Checkpointing, Partial, Progress, StoredCheckpoints
from train.models import TrainingRecord, TrainingResult, count_warm_up_steps, load_base, make_trainable
from train.stream import Division, Order, TokenRows
from train.tokens import TrainingRow
from train.trainer import Guarded, check_lengths, find_loading_variables, make_arguments, train_student

IGNORED = -100
CHECKPOINT_SHARE = 0.25  # share of the steps between two checkpoints; a killed worker loses at most this much
LOGGING_SHARE = 0.02  # share of the steps between two logged losses


def collate(rows: Sequence[TrainingRow], pad: int) -> dict[str, Any]:
    """Return a batch: ``input_ids`` and ``attention_mask``, int64 [B, T], ``labels``, int64 [B, K], ``logits_to_keep``.

    Labels are the ids at the last K positions, ``IGNORED`` outside the completion; these begin with the position before
    the batch's first completion, whose logits predict that completion's first token. A batch of no rows, as the last
    step may give some workers, is one padding token without a label.
    """
    ids = [torch.tensor(row["input_ids"]) for row in rows] or [torch.tensor([pad])]
    starts = [max(row["num_prompt"], 1) for row in rows] or [1]
    labels = [
        torch.where(torch.arange(len(each)) < start, IGNORED, each) for each, start in zip(ids, starts, strict=True)
    ]
    labels_BK = pad_sequence(labels, batch_first=True, padding_value=IGNORED)[:, min(starts) - 1 :]
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=pad),
        "attention_mask": pad_sequence([torch.ones_like(each) for each in ids], batch_first=True),
        "labels": labels_BK,
        "logits_to_keep": labels_BK.shape[1],
    }


def compute_completion_loss(
    logits_BTV: torch.Tensor, labels_BK: torch.Tensor, num_tokens: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Return the cross-entropy summed over the labelled tokens, divided by ``num_tokens`` (by default their number).

    Models that ignore ``logits_to_keep`` return logits of all positions; only the last K are used.
    """
    logits_BKV = logits_BTV[:, -labels_BK.shape[1] :].float()
    targets = labels_BK[:, 1:]
    total = cross_entropy(logits_BKV[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return total / (num_tokens if num_tokens is not None else (targets != IGNORED).sum())


class RowTrainer(Guarded):
    """A trainer on the rows of a table; a subclass makes the batches and computes the loss."""

    def __init__(
        self, config: Any, *, model: Any, rows: TokenRows, division: Division, tokenizer: Any, **settings: Any
    ) -> None:
        """Train ``model``, with a new adapter if ``config`` says so; pass ``settings`` on to ``transformers``."""
        self.config, self.tokenizer = config, tokenizer
        self._rows, self._division = rows, division
        model = make_trainable(model, config.lora)
        super().__init__(model=model, train_dataset=rows, compute_loss_func=self.compute_batch_loss, **settings)

    @abstractmethod
    def collate(self, rows: Sequence[TrainingRow]) -> dict[str, Any]:
        """Return a micro-batch with ``labels``; those that are not ignored are the items of a step."""

    @abstractmethod
    def compute_batch_loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        """Return the sum of a micro-batch's losses over the number of items of its step."""

    def get_train_dataloader(self) -> Any:
        """Return the batches of this worker; they are already divided among the workers."""
        pin_memory = self.args.dataloader_pin_memory
        loader: Any = DataLoader(
            self._rows, batch_sampler=self._division, collate_fn=self.collate, pin_memory=pin_memory
        )
        loader.set_epoch = self._division.set_epoch  # transformers calls it before each epoch
        return loader

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
        """Train ``base`` and save the result as a ``train.trainer.Learn``.

        After a kill, a call with the same arguments resumes from the last checkpoint in ``<output>.partial``, with any
        number of workers. Raise ``ModelError`` if the base does not load, else as :func:`train.trainer.train_student`.
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
        rows = TokenRows(table, tokenizer, config)
        check_lengths(output.name, "rows", num=rows.num_rows, num_kept=len(rows), max_length=config.max_length)
        num_epochs = config.num_epochs(rows.num_rows)  # of all given rows: arms of one n get equal epochs
        order = Order(rows.lengths_N, config.global_batch_size, seed)
        args.num_train_epochs = num_epochs
        num_steps = order.num_steps * num_epochs
        args.warmup_steps = count_warm_up_steps(math.ceil(config.warmup_ratio * num_steps), num_steps)
        recipe = config.without(config.RESOURCES).model_dump(mode="json")
        unfinished = Partial.open(output, [base.to_json(), recipe, seed, rows.digest, bool(args.fsdp)], kept, args)
        with patch_environment(**find_loading_variables(config)):
            model = load_base(base, config)
        check_tokens(base, tokenizer, model)
        division = Division(order, config.micro_batch_size, args.process_index, args.world_size)
        callbacks = [Progress(len(rows) * num_epochs, progress), Checkpointing(unfinished, kept)]
        given: dict[str, Any] = {"rows": rows, "division": division, "tokenizer": tokenizer}
        trainer = cls(config, model=model, args=args, callbacks=callbacks, **given)
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
        trainer.finish(unfinished, tokenizer, config.lora, record)
        return record


class SftTrainer(RowTrainer):
    """A trainer that learns each row's completion."""

    def collate(self, rows: Sequence[TrainingRow]) -> dict[str, Any]:
        """Return the rows as a padded batch."""
        return collate(rows, self.tokenizer.pad_token_id)

    def compute_batch_loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        """Return the mean loss of the completions' tokens."""
        return compute_completion_loss(outputs.logits, labels, num_items_in_batch)


fine_tune = SftTrainer.train_on  # fine-tuning that each worker does


def train_sft(base: ModelRef, rows: TableRef, config: SftConfig, **how: Any) -> TrainingResult:
    """Fine-tune ``base`` on ``prompt`` and ``completion`` of ``rows`` by :func:`train.trainer.train_student`."""
    return train_student(fine_tune, base, rows, config, **how)
