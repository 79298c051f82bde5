"""Gradients of the loss of single rows by the student's last hidden states (paper, section "Mechanisms", finding 3).

The last hidden states are the input of the output layer, after the final norm. Our choices, where the paper gives none:
a row's loss is the mean over its completion's tokens, as in training; its gradients at the positions of the completion
are summed to one vector, the gradient by a vector that is added to all of the row's last hidden states. The model's own
forward pass computes the logits, so that scaled or capped logits count as they do in training; only the output layer is
differentiated.

Shapes: B rows of a batch, K positions, D numbers of a hidden state.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from curation.arrays import Float32s, Int64s
from curation.errors import ModelError
from train.sft import IGNORED, collate, compute_completion_loss
from train.tokens import TrainingRow

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class RowGradients(NamedTuple):
    """Gradients of rows, float32 [B, D], with each row's mean loss [B] and its number of tokens [B]."""

    gradient_BD: Float32s
    loss_B: Float32s
    num_tokens_B: Int64s


def compute_row_gradients(model: "PreTrainedModel", rows: Sequence[TrainingRow], pad: int) -> RowGradients:
    """Return the gradients of rows, from one forward pass.

    ``model`` must be in evaluation mode; its weights are frozen and not changed.

    Raises:
        ModelError: the model does not say what its output layer is.
    """
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if head is None:
        raise ModelError(
            f"model {model.config.name_or_path!r}: it names no output layer, so no gradient by what that reads can be "
            "taken; set analyze.gradients: null"
        )
    batch = collate(rows, pad)
    labels_BK = batch["labels"].to(model.device)
    held: dict[str, torch.Tensor] = {}

    def cut(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        held["hidden"] = inputs[0].detach().requires_grad_()
        return (held["hidden"], *inputs[1:])

    num_tokens_B = (labels_BK[:, 1:] != IGNORED).sum(dim=1)
    model.requires_grad_(False)
    hook = head.register_forward_pre_hook(cut)
    try:
        logits_BKV = model(
            input_ids=batch["input_ids"].to(model.device),
            attention_mask=batch["attention_mask"].to(model.device),
            logits_to_keep=batch["logits_to_keep"],
            use_cache=False,
        ).logits
    finally:
        hook.remove()
    weights_B1 = 1.0 / num_tokens_B.clamp(min=1)[:, None].float()
    # The rows do not touch each other, so that the gradient of the sum of their losses holds each row's own.
    total = compute_completion_loss(logits_BKV, labels_BK, 1, weights_B1)
    (gradient_BKD,) = torch.autograd.grad(total, held["hidden"])
    with torch.no_grad():
        loss_B = [
            compute_completion_loss(logits_BKV[index : index + 1], labels_BK[index : index + 1])
            for index in range(len(labels_BK))
        ]
    return RowGradients(
        gradient_BD=gradient_BKD.float().sum(dim=1).cpu().numpy(),
        loss_B=torch.stack(loss_B).cpu().numpy(),
        num_tokens_B=num_tokens_B.cpu().numpy(),
    )
