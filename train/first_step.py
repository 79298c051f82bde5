"""A look at the first rows of a fine-tuning: a base that cannot have meant these tokens is trained on by mistake.

The usual cause is a tokenizer of another model or another end token, which costs a whole training and teaches nothing.
Shapes: B rows of a batch, K labels of each, T and W of them looked at, V words of the vocabulary.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from curation.errors import TrainingError
from train.agreement import gathered

MOST_POSITIONS = 256
"""Labels of a micro-batch that are looked at, and at most as many end tokens."""
RAREST_END = -20.0
"""The log-probability of the end token, on the mean, below which the base does not write it."""
FEWEST_WORDS, FLAT = 10_000, 0.75
"""Models with fewer words, or whose distribution has at least this share of the highest entropy, may begin above a
uniform draw: small models made from scratch and untrained ones do, and learn."""


@dataclass
class Sums:
    """Sums over positions, of natural logarithms."""

    labels: int = 0
    loss: float = 0.0
    entropy: float = 0.0
    ends: int = 0
    end_logprob: float = 0.0
    num_words: int = 0


class FirstStep:
    """Log-probabilities that a base gives the labels of its first step, before any weight has changed."""

    def __init__(self, name: str, tokenizer: Any, ignored: int) -> None:
        """``name`` is the training's; ``ignored`` the label of positions that do not count."""
        self._name, self._tokenizer, self._ignored = name, tokenizer, ignored
        self._end: str = tokenizer.eos_token
        self._sums, self._instead = Sums(), ""

    @torch.no_grad()
    def add(self, logits_BTV: torch.Tensor, labels_BK: torch.Tensor) -> None:
        """Look at a micro-batch, with logits and labels as :func:`train.sft.completion_loss` takes them."""
        targets_BK, logits_BKV = labels_BK[:, 1:], logits_BTV[:, -labels_BK.shape[1] : -1]
        end = self._tokenizer.eos_token_id
        labelled_BK, ends_BK = targets_BK != self._ignored, targets_BK == end
        logprobs_TV = _first(logits_BKV, labelled_BK).float().log_softmax(-1)
        targets_T1 = targets_BK[labelled_BK][:MOST_POSITIONS, None]
        at_end_WV = _first(logits_BKV, ends_BK).float().log_softmax(-1)
        sums = self._sums
        sums.num_words = logits_BTV.shape[-1]
        sums.labels += len(targets_T1)
        sums.loss -= float(logprobs_TV.gather(1, targets_T1).sum())
        sums.entropy -= float((logprobs_TV.exp() * logprobs_TV).nan_to_num().sum())
        sums.ends += len(at_end_WV)
        sums.end_logprob += float(at_end_WV[:, end].sum())
        if len(at_end_WV) and not self._instead:
            likeliest = at_end_WV.mean(dim=0).argmax()
            found = self._tokenizer.convert_ids_to_tokens([int(likeliest)])[0]
            self._instead = f"{found!r} ({float(at_end_WV[:, likeliest].mean()):.1f})"

    def check(self) -> None:
        """Refuse a base that cannot have meant these labels; all workers call it together.

        Raises:
            TrainingError: the end token is one that the base does not write, or its loss is above a uniform draw's.
        """
        found = gathered((self._sums, self._instead))
        num_words = max(sums.num_words for sums, _ in found)
        ends, labels = sum(sums.ends for sums, _ in found), sum(sums.labels for sums, _ in found)
        end_logprob = sum(sums.end_logprob for sums, _ in found) / max(ends, 1)
        loss = sum(sums.loss for sums, _ in found) / max(labels, 1)
        entropy = sum(sums.entropy for sums, _ in found) / max(labels, 1)
        mend = "; if it is meant (a token or a vocabulary of your own), set student.check_first_step: false"
        if end_logprob < RAREST_END:
            instead = next((text for _, text in found if text), "")
            raise TrainingError(
                f"{self._name}: the tokenizer ends a completion with {self._end!r}, which the base does "
                f"not write: its log-probability on the first rows is {end_logprob:.1f} nats, and the likeliest token "
                f"there is {instead}; name the end token of the base as eos_token in its "
                f"tokenizer_config.json{mend}"
            )
        if num_words >= FEWEST_WORDS and entropy < FLAT * math.log(num_words) and loss > math.log(num_words):
            raise TrainingError(
                f"{self._name}: the first loss is {loss:.1f} nats a token, above the {math.log(num_words):.1f} of a "
                f"uniform draw among {num_words:,} words, so the base does not read these rows as they are written; "
                f"check that tokenizer and weights are of one model, and student.chat_template{mend}"
            )


def _first(logits_BKV: torch.Tensor, taken_BK: torch.Tensor) -> torch.Tensor:
    """The logits of the first places that are taken, [T, V]."""
    rows_T, places_T = taken_BK.nonzero(as_tuple=True)
    return logits_BKV[rows_T[:MOST_POSITIONS], places_T[:MOST_POSITIONS]]
