"""Supervised fine-tuning of a causal language model on (prompt, completion) pairs, in one or several processes.

The loss covers only the completion's tokens and the end token, as the mean over all of them in a global batch (paper,
App. "Training Details"). The paper leaves open, and we chose: rows of similar length share a batch
(:mod:`train.stream`). Batches are padded on the right, which causal attention never reads, and logits are computed from
the end of the batch's shortest prompt on.

Shapes: B rows of a batch, T tokens of its longest row, K <= T last positions, V words of the vocabulary.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, TrainingArguments
from transformers.utils import is_flash_attn_2_available

from curation.config import SftConfig
from curation.errors import ConfigError
from curation.refs import ModelRef, TableRef
from train.epochs import RowTrainer
from train.models import TrainingRecord, TrainingResult
from train.student import train_student
from train.tokens import TrainingRow
from train.trainer import FirstStep

IGNORED = -100
TOLERANCE = 1e-6
"""The largest change of a row's logits with the row before it, over the largest logit, at which rows are kept apart."""


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


def train_sft(base: ModelRef, rows: TableRef, config: SftConfig, **how: Any) -> TrainingResult:
    """Fine-tune ``base`` on ``prompt`` and ``completion`` of ``rows`` by :func:`train.student.train_student`.

    The order of rows follows from their ids, their lengths and the seed.
    """
    return train_student(fine_tune, base, rows, config, **how)


def fine_tune(base: ModelRef, rows: TableRef, config: SftConfig, **how: Any) -> TrainingRecord:
    """Fine-tune ``base`` in each worker by :meth:`train.epochs.RowTrainer.train_on`."""
    return SftTrainer.train_on(base, rows, config, **how)


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
