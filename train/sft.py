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
from transformers import PreTrainedModel, TrainingArguments
from transformers.utils import is_flash_attn_2_available

from curation.config import SftConfig
from curation.errors import ConfigError
from curation.refs import ModelRef, TableRef
from curation.storage.paths import Place
from curation.telemetry.standing import Update
from train.epochs import RowObjective, count_accumulation_steps
from train.models import TrainingRecord, TrainingResult
from train.stream import Loader, TokenSource
from train.student import train_student
from train.tokens import TrainingRow
from train.trainer import FirstStep, SftTrainer

IGNORED = -100
TOLERANCE = 1e-6
"""The largest change of a row's logits with the row before it, over the largest logit, at which rows are kept apart."""


def pack(rows: Sequence[TrainingRow], mean_trust: float | None = None) -> dict[str, Any]:
    """Return a batch without padding: ``input_ids`` and ``position_ids`` int64 [1, T], T tokens of all rows together.

    The rows follow each other in one sequence, and positions restart at each. Attention must keep them apart: in
    transformers it does where a model builds its mask from ``position_ids`` (a block mask with ``sdpa``) or hands them
    to FlashAttention; :func:`check` tests whether a row's logits change with the row before it.

    ``logits_to_keep`` int64 [K]: the positions whose next token is a label, and one more. ``labels`` int64 [1, K]:
    these tokens, after one that is ignored, as :func:`train.sft.compute_completion_loss` shifts them. With
    ``mean_trust`` also ``weights`` float32 [1, K - 1]: the trust of each label's row over it.
    """
    positions: list[int] = []
    weights: list[float] = []
    labels, begin = [IGNORED], 0
    for row in rows:
        ids, start = row["input_ids"], max(row["num_prompt"], 1)
        positions += range(begin + start - 1, begin + len(ids) - 1)
        labels += ids[start:]
        if mean_trust is not None:
            weights += [row["trust"] / mean_trust] * (len(ids) - start)
        begin += len(ids)
    return {
        "input_ids": torch.tensor([[token for row in rows for token in row["input_ids"]]]),
        "position_ids": torch.tensor([[place for row in rows for place in range(len(row["input_ids"]))]]),
        "labels": torch.tensor([labels]),
        "logits_to_keep": torch.tensor([*positions, begin - 1]),
        "row_ids": [row["row_id"] for row in rows],
    } | ({} if mean_trust is None else {"weights": torch.tensor([weights])})


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

    The order of rows follows from their ids, their lengths and the seed. Errors are those of
    :func:`train.student.train_student`, and ``ConfigError`` if the batch sizes do not divide.
    """
    count_accumulation_steps(config, config.num_workers)
    return train_student(fine_tune, base, rows, config, seed=seed, output=output, name=name, update=update)


def collate(rows: Sequence[TrainingRow], pad: int, mean_trust: float | None = None) -> dict[str, Any]:
    """Pad a batch on the right: ``input_ids``, ``attention_mask`` int64 [B, T], ``labels`` int64 [B, K], ``row_ids``.

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


def fine_tune(base: ModelRef, rows: TableRef, config: SftConfig, **how: Any) -> TrainingRecord:
    """Fine-tune ``base`` in each worker by :meth:`train.epochs.RowObjective.train`."""
    return Supervised(config).train(base, rows, **how)


class Supervised(RowObjective):
    """The objective of learning each row's completion."""

    def source(self, rows: TableRef, tokenizer: Any) -> TokenSource:
        """Return the rows: prompts and completions."""
        config = self.config
        read = {"chat_template": config.chat_template, "with_trust": config.weight_by_trust}
        return TokenSource(rows, tokenizer, max_length=config.max_length, **read)

    def prepare(self, model: Any, args: TrainingArguments) -> None:
        """Set the model's attention for packed rows; raise ``ConfigError`` if they would read each other."""
        if self.config.packing:
            check(model)
            if args.device.type == "cuda" and args.bf16 and is_flash_attn_2_available():
                model.set_attn_implementation("flash_attention_2")

    def batch(self, rows: Sequence[TrainingRow], pad: int, mean_trust: float | None) -> dict[str, Any]:
        """Return the rows as a padded or a packed batch."""
        return pack(rows, mean_trust) if self.config.packing and rows else collate(rows, pad, mean_trust)

    def trainer(self, loader: Loader, tokenizer: object, name: str, **settings: object) -> SftTrainer:
        """Return the trainer with the mean loss of the completions' tokens."""
        first_step = FirstStep(name, tokenizer, IGNORED) if self.config.check_first_step else None
        return SftTrainer(loader, loss=compute_completion_loss, first_step=first_step, **settings)
