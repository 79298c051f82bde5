"""Batches without padding: the rows of a micro-batch one after the other, in one row whose positions begin again.

Attention must keep the rows apart. In transformers it does where a model builds its mask from ``position_ids`` (a block
mask with ``sdpa``) or hands them to FlashAttention; :func:`check` tries whether a row's logits change with the row
before it.
"""

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from curation.errors import ConfigError
from train.tokens import TrainingRow

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IGNORED = -100
TOLERANCE = 1e-6
"""The largest change of a row's logits with the row before it, over the largest logit, at which rows are kept apart."""


def pack(rows: Sequence[TrainingRow], mean_trust: float | None = None) -> dict[str, Any]:
    """A batch of one row: ``input_ids`` and ``position_ids`` int64 [1, T], T tokens of all rows together.

    ``logits_to_keep`` int64 [K]: the positions whose next token is a label, and one more. ``labels`` int64 [1, K]:
    these tokens, after one that is ignored, as :func:`train.sft.completion_loss` shifts them. With ``mean_trust`` also
    ``weights`` float32 [1, K - 1]: the trust of each label's row over it.
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
def check(model: "PreTrainedModel") -> None:
    """Refuse a model in which packed rows would read each other.

    Raises:
        ConfigError: it takes no positions or chosen logits, or a row's logits change with the row before it.
    """
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
