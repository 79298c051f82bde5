"""Draws a student's own answers while it learns, and rewards them.

Each answer has its own random stream, from the run's seed, its prompt's place in the training and its number in the
group. So neither the number of workers nor a restart changes the answers, up to the rounding of the model itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from curation.config.models import RolloutsConfig
from curation.domains import Domain, Example, attempt
from curation.domains.grading import check_labels
from curation.errors import ConfigError, RowError
from curation.escaping import format_error
from curation.hashing import hash64, hash_unit
from curation.models import decode_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH_TOKENS = 65_536
"""Maximum number of prompt and answer tokens in a batch of transformers, to bound the key-value cache."""


@dataclass(frozen=True, kw_only=True)
class RolloutTask:
    """A row to learn from."""

    row_id: int
    prompt: list[int]  # token ids
    example: Example
    label: str | None
    """The trusted label: the teacher's, or in gold arms the gold one; ``None`` if unparsed (no answer is right)."""


class GradedAnswer(NamedTuple):
    """The grade of an answer; its reward is 1 if it is right, else 0."""

    right: bool
    parsed: bool
    problem: str | None = None  # reason why the domain could not grade the answer, which then counts as wrong


def grade(domain: Domain, tasks: Sequence[RolloutTask], texts: Sequence[str]) -> list[GradedAnswer]:
    """Return the grade of each answer by the domain."""
    read = [attempt(domain.parse, text, task.example) for task, text in zip(tasks, texts, strict=True)]
    gradable = [place for place, task in enumerate(tasks) if not read[place][1] and task.label is not None]
    labels, golds = [read[place][0] for place in gradable], [str(tasks[place].label) for place in gradable]
    checked = check_labels(domain, labels, golds, [tasks[place].example for place in gradable])
    verdicts = dict(zip(gradable, checked, strict=True))
    found = []
    for place, (label, problem) in enumerate(read):
        verdict, parsed = verdicts.get(place, False), label is not None
        if isinstance(verdict, RowError):
            problem, verdict = format_error(verdict), False
        found.append(GradedAnswer(False, False, problem) if problem else GradedAnswer(verdict, parsed))
    return found


class Wanted(NamedTuple):
    """An answer to be drawn."""

    prompt: list[int]  # token ids
    seed: int  # seed of the answer's random stream, 63 bits


class Rollout(NamedTuple):
    """A drawn answer."""

    tokens: list[int]  # sampled ids, with the end token if it was drawn; at least one
    logprobs: list[float]  # log-probability of each token under the distribution that it was drawn from
    text: str  # text of the answer without special tokens
    truncated: bool  # whether the answer reached ``max_tokens`` without an end


class Rollouts(ABC):
    """A source of answers from the current weights of the trained model."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", config: RolloutsConfig, ends: Sequence[int]) -> None:
        """Draw answers that the tokens ``ends`` end."""
        self._tokenizer, self._config, self._ends = tokenizer, config, list(ends)

    @abstractmethod
    def draw(self, wanted: Sequence[Wanted], trainer: Any) -> list[Rollout]:
        """Return the answers in the order of ``wanted``; every worker calls this with its own share."""

    def close(self) -> None:  # noqa: B027 - only an engine holds anything
        """Free the resources that only drawing needs."""

    def _cut(self, tokens: list[int], logprobs: list[float]) -> Rollout:
        """Return the answer in sampled tokens, which may have others after the answer's end."""
        end = next((place + 1 for place, token in enumerate(tokens) if token in self._ends), None)
        tokens = tokens[:end]
        return Rollout(tokens, logprobs[: len(tokens)], decode_tokens(self._tokenizer, tokens), truncated=end is None)


def make_seeds(seed: int, places_B: Sequence[int], group_size: int, start: int) -> list[int]:
    """Return the seeds of the answers to a worker's prompts, of which each has ``group_size`` adjacent ones.

    ``places_B``: the place of each answer's prompt in the training, counted over all epochs. ``start``: the number of
    answers of this step that the workers before this one draw.
    """
    sample_B = (start + np.arange(len(places_B))) % group_size
    keys_B = np.asarray(places_B, dtype=np.int64) * group_size + sample_B
    return list((hash64(keys_B, seed) >> np.uint64(1)).tolist())


class TransformersRollouts(Rollouts):
    """Draws from the trained model itself, token by token."""

    def draw(self, wanted: Sequence[Wanted], trainer: Any) -> list[Rollout]:
        """Return the answers; see :meth:`Rollouts.draw`. Prompts of similar length share a batch."""
        from trl.models.utils import unwrap_model_for_generation

        order = sorted(range(len(wanted)), key=lambda place: len(wanted[place].prompt), reverse=True)
        found: dict[int, Rollout] = {}
        how = {"gradient_checkpointing_kwargs": trainer.args.gradient_checkpointing_kwargs}
        unwrapped = unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator, **how)
        with unwrapped as model, torch.no_grad():
            was_training = model.training
            model.eval()
            try:
                while len(found) < len(wanted):
                    rest = order[len(found) :]
                    size = max(1, BATCH_TOKENS // (len(wanted[rest[0]].prompt) + self._config.max_tokens))
                    answers = self._draw(model, [wanted[place] for place in rest[:size]])
                    found.update(zip(rest[:size], answers, strict=True))
            finally:
                model.train(was_training)
        return [found[place] for place in range(len(wanted))]

    def _draw(self, model: Any, wanted: Sequence[Wanted]) -> list[Rollout]:
        """Return the answers to prompts that fit one batch.

        A token is drawn by inverting the distribution function: the only random draw is one uniform number per token.
        """
        device, pad = next(model.parameters()).device, self._tokenizer.pad_token_id
        width = max(len(item.prompt) for item in wanted)
        ids_BT = torch.tensor([[pad] * (width - len(item.prompt)) + item.prompt for item in wanted], device=device)
        lengths_B1 = torch.tensor([[len(item.prompt)] for item in wanted], device=device)
        mask_BT = (torch.arange(width, device=device) >= width - lengths_B1).long()
        read: dict[str, Any] = {"position_ids": (mask_BT.cumsum(1) - 1).clamp(min=0), "past_key_values": None}
        seeds_B = np.asarray([item.seed for item in wanted], dtype=np.int64)
        tokens: list[list[int]] = [[] for _ in wanted]
        logprobs: list[list[float]] = [[] for _ in wanted]
        open_rows = set(range(len(wanted)))
        for step in range(self._config.max_tokens):
            output = model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=True, logits_to_keep=1, **read)
            if getattr(output, "past_key_values", None) is None:
                raise ConfigError(
                    "student.rollouts.backend: transformers draws with a cache of keys and values, and a "
                    f"{type(model).__name__} returns none; set it to vllm, or give another base"
                )
            logprob_BV = (output.logits[:, -1].float() / self._config.temperature).log_softmax(dim=-1)
            unit_B = torch.from_numpy(hash_unit(seeds_B, step)).to(device)
            sum_BV = logprob_BV.double().exp().cumsum(dim=-1)
            token_B1 = torch.searchsorted(sum_BV, unit_B[:, None] * sum_BV[:, -1:], right=True)
            token_B1 = token_B1.clamp(max=logprob_BV.shape[1] - 1)
            of_tokens = logprob_BV.gather(1, token_B1)[:, 0].tolist()
            for row, (token, logprob) in enumerate(zip(token_B1[:, 0].tolist(), of_tokens, strict=True)):
                tokens[row].append(token)
                logprobs[row].append(logprob)
                if token in self._ends:  # what is drawn after it is cut off
                    open_rows.discard(row)
            if not open_rows:
                break
            ids_BT, mask_BT = token_B1, torch.cat([mask_BT, torch.ones_like(token_B1)], dim=1)
            read = {"position_ids": read["position_ids"][:, -1:] + 1, "past_key_values": output.past_key_values}
        return list(map(self._cut, tokens, logprobs))
