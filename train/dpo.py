"""Direct preference optimisation (DPO; Rafailov et al. 2023, arXiv 2305.18290) on pairs of answers.

The loss of a pair is -log sigmoid(beta (r_chosen - r_rejected)), where r is an answer's log-probability, end token
included, less that under the reference, and a step takes the mean over its pairs. The reference is the base: the model
without its adapter or, if all weights are trained, a frozen copy. Row order, workers and checkpoints are those of
:class:`train.sft.RowTrainer`; a step equals that of TRL's trainer.

Shapes: B pairs of a batch, whose 2B sequences are the chosen ones and then the rejected ones; T tokens of the longest,
K last positions, V words of the vocabulary.
"""

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.functional import cross_entropy, logsigmoid
from transformers import TrainingArguments

from curation.config.models import DpoConfig
from curation.refs import ModelRef, TableRef
from train.models import TrainingResult
from train.sft import IGNORED, RowTrainer, collate
from train.tokens import TrainingRow
from train.trainer import train_student


def make_pair_batch(rows: Sequence[TrainingRow], pad: int) -> dict[str, Any]:
    """Return the batch of :func:`train.sft.collate` for 2B sequences, whose labels are ``targets`` int64 [2B, K].

    ``labels`` int64 [B, 2] has for each pair an ignored label and a counted one, so that a step's items are its pairs.
    A batch of no rows has two sequences of padding and an ignored pair.
    """
    worse: list[TrainingRow] = [{**row, "input_ids": row["rejected"]} for row in rows]
    both = collate([*rows, *worse], pad)
    if not rows:
        both = {name: torch.cat([of, of]) if isinstance(of, torch.Tensor) else of for name, of in both.items()}
    labels_B2 = torch.full((max(len(rows), 1), 2), IGNORED)
    labels_B2[: len(rows), 1] = 1
    return {**both, "targets": both["labels"], "labels": labels_B2}


def compute_sequence_logprobs(logits_BTV: torch.Tensor, targets_BK: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of each sequence's labelled tokens, summed, float32 [B].

    Models that ignore ``logits_to_keep`` return logits of all positions; only the last K are used.
    """
    logits_BKV = logits_BTV[:, -targets_BK.shape[1] :].float()
    next_BK = targets_BK[:, 1:]
    losses = cross_entropy(logits_BKV[:, :-1].flatten(0, 1), next_BK.flatten(), ignore_index=IGNORED, reduction="none")
    return -losses.view_as(next_BK).sum(dim=1)


def compute_preference_losses(logprob_2B: torch.Tensor, reference_2B: torch.Tensor, beta: float) -> torch.Tensor:
    """Return the loss of each pair, [B], from the log-probabilities of the chosen and then of the rejected answers."""
    chosen_B, rejected_B = (logprob_2B - reference_2B).chunk(2)
    return -logsigmoid(beta * (chosen_B - rejected_B))


def make_reference(model: Any, args: TrainingArguments) -> Any:
    """Return a frozen copy of a model in the compute type."""
    reference = copy.deepcopy(model).requires_grad_(False).eval().to(args.device)
    if args.bf16:  # not .to(dtype), which would round buffers, too: the frequencies of positions
        for weight in reference.parameters():
            weight.data = weight.data.bfloat16()
    return reference


class DpoTrainer(RowTrainer):
    """A trainer that prefers each pair's chosen answer."""

    def __init__(self, config: DpoConfig, *, model: Any, **given: Any) -> None:
        """Copy the model as reference if all weights are trained; else the reference is the model without adapter."""
        self._reference = make_reference(model, given["args"]) if config.lora is None else None
        super().__init__(config, model=model, **given)

    def collate(self, rows: Sequence[TrainingRow]) -> dict[str, Any]:
        """Return the sequences of :func:`make_pair_batch`."""
        return make_pair_batch(rows, self.tokenizer.pad_token_id)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of a micro-batch against the reference's log-probabilities, computed without dropout."""
        self._targets: torch.Tensor = inputs.pop("targets")
        read = {name: value for name, value in inputs.items() if name != "labels"}
        trained: Any = self.accelerator.unwrap_model(self.model)
        reference = trained if self._reference is None else self._reference
        was_training = reference.training
        reference.eval()
        bare = trained.disable_adapter() if self._reference is None else nullcontext()
        with torch.no_grad(), bare, self.accelerator.autocast():
            self._reference_2B = compute_sequence_logprobs(reference(**read).logits, self._targets)
        reference.train(was_training)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def compute_batch_loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        """Return the mean loss of the pairs."""
        logprob_2B = compute_sequence_logprobs(outputs.logits, self._targets)
        losses_B = compute_preference_losses(logprob_2B, self._reference_2B, self.config.beta)
        counts_B = labels[:, 1] != IGNORED
        return (losses_B * counts_B).sum() / (num_items_in_batch if num_items_in_batch is not None else counts_B.sum())


def train_dpo(base: ModelRef, rows: TableRef, config: DpoConfig, **how: Any) -> TrainingResult:
    """Train ``base`` on ``prompt``, ``chosen`` and ``rejected`` of ``rows``, else as :func:`train.sft.train_sft`."""
    return train_student(DpoTrainer.train_on, base, rows, config, **how)
