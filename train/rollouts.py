"""A student's own answers while it learns: token ids as they were sampled, and their log-probabilities.

Each answer has a random stream of its own, of the run's seed, the place of its prompt in the training and its number in
the group. So neither the number of workers nor a restart changes what is drawn, up to the rounding of the model itself.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from curation.config.grpo import RolloutsConfig
from curation.hashing import hash64, hash_unit
from curation.models import decode_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH_TOKENS = 65_536
"""Prompt and answer tokens that transformers draws at a time; bounds the key-value cache."""


class Wanted(NamedTuple):
    """An answer to be drawn."""

    prompt: list[int]
    """Token ids."""
    seed: int
    """Seed of its random stream, 63 bits."""


class Rollout(NamedTuple):
    """An answer."""

    tokens: list[int]
    """The sampled ids, with the end token if it was drawn; at least one."""
    logprobs: list[float]
    """Log-probability of each token under the distribution that it was drawn from."""
    text: str
    """Without special tokens and what begins with a stop string."""
    truncated: bool
    """It reached ``max_tokens`` without an end."""


class Rollouts(Protocol):
    """Draws answers from the weights as they are in this step."""

    def draw(self, wanted: Sequence[Wanted], trainer: object) -> list[Rollout]:
        """Return an answer for each, in their order; every worker calls this with its own share."""
        ...

    def close(self) -> None:
        """Free what drawing alone needs."""
        ...


def make_seeds(seed: int, places_B: Sequence[int], group_size: int, start: int) -> list[int]:
    """Return the seeds of the answers to a worker's prompts.

    Args:
        seed: the training's.
        places_B: the place of each answer's prompt in the training, counted over all epochs.
        group_size: the number of answers to a prompt, which stand side by side.
        start: how many answers of this step the workers before this one draw.
    """
    sample_B = (start + np.arange(len(places_B))) % group_size
    keys_B = np.asarray(places_B, dtype=np.int64) * group_size + sample_B
    drawn: list[int] = (hash64(keys_B, seed) >> np.uint64(1)).tolist()
    return drawn


class TransformersRollouts:
    """Draws with ``generate`` of the trained model itself."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", config: RolloutsConfig, ends: Sequence[int]) -> None:
        """Take ``ends``: the tokens that end an answer."""
        self._tokenizer, self._config, self._ends = tokenizer, config, list(ends)

    def draw(self, wanted: Sequence[Wanted], trainer: object) -> list[Rollout]:
        """Return draws like :meth:`Rollouts.draw`."""
        order = sorted(range(len(wanted)), key=lambda place: len(wanted[place].prompt))
        found: dict[int, Rollout] = {}
        with _generating(trainer) as model:
            for batch in _iter_batches(order, wanted, self._config.max_tokens):
                answers = self._draw(model, [wanted[place] for place in batch])
                found.update(zip(batch, answers, strict=True))
        return [found[place] for place in range(len(wanted))]

    def close(self) -> None:
        """Do nothing: only the trained model is held."""

    def _draw(self, model: Any, wanted: Sequence[Wanted]) -> list[Rollout]:
        """Return the answers to prompts that fit one batch."""
        width = max(len(item.prompt) for item in wanted)
        ids_BT = torch.full((len(wanted), width), self._tokenizer.pad_token_id)
        mask_BT = torch.zeros_like(ids_BT)
        for row, item in enumerate(wanted):
            ids_BT[row, width - len(item.prompt) :] = torch.tensor(item.prompt)
            mask_BT[row, width - len(item.prompt) :] = 1
        drawing = _Drawing([item.seed for item in wanted], self._config.temperature)
        device = next(model.parameters()).device
        out_BT = model.generate(
            input_ids=ids_BT.to(device),
            attention_mask=mask_BT.to(device),
            generation_config=GenerationConfig(  # type: ignore[no-untyped-call]
                max_new_tokens=self._config.max_tokens,
                do_sample=False,
                use_cache=True,
                pad_token_id=self._tokenizer.pad_token_id,
                eos_token_id=self._ends,
                disable_compile=True,
            ),
            logits_processor=LogitsProcessorList([drawing]),
            stopping_criteria=StoppingCriteriaList([_Stopped(self._decode, self._config.stop, width)]),
        )
        logprob_BT = torch.stack(drawing.logprobs, dim=1).cpu().tolist()
        answers = out_BT[:, width:].cpu().tolist()
        return [self._make_rollout(tokens, logprobs) for tokens, logprobs in zip(answers, logprob_BT, strict=True)]

    def _make_rollout(self, tokens: list[int], logprobs: list[float]) -> Rollout:
        """Return the answer in a row of the batch."""
        return cut_rollout(tokens, logprobs, self._ends, self._config.stop, self._decode)

    def _decode(self, tokens: list[int]) -> str:
        return decode_tokens(self._tokenizer, tokens)


def cut_rollout(
    tokens: list[int],
    logprobs: list[float],
    ends: Sequence[int],
    stops: Sequence[str],
    text_of: Callable[[list[int]], str],
) -> Rollout:
    """Return the answer in sampled tokens, which may go on with padding after its end."""
    num_all = len(tokens)
    end = next((place + 1 for place, token in enumerate(tokens) if token in ends), None)
    tokens = tokens[:end]
    text = text_of(tokens)
    if cuts := [place for stop in stops if (place := text.find(stop)) >= 0]:
        text = text[: min(cuts)]
        end = next(k for k in range(1, num_all + 1) if any(stop in text_of(tokens[:k]) for stop in stops))
        tokens = tokens[:end]
    return Rollout(tokens, logprobs[: len(tokens)], text, truncated=end is None)


class _Stopped(StoppingCriteria):
    """Ends answers that hold a stop string. Transformers' own needs a tokenizer that can decode any text."""

    def __init__(self, text: Callable[[list[int]], str], stops: Sequence[str], width: int) -> None:
        self._text, self._stops, self._width = text, stops, width
        self._pieces: dict[int, str] = {}

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        """Return whether each row ends, [B]."""
        ended_B = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        if self._stops:
            for row, tokens in enumerate(input_ids[:, self._width :].tolist()):
                ended_B[row] = self._can_end(tokens[-1]) and any(stop in self._text(tokens) for stop in self._stops)
        return ended_B

    def _can_end(self, token: int) -> bool:
        if token not in self._pieces:
            self._pieces[token] = self._text([token])
        return any(stop[-1] in self._pieces[token] for stop in self._stops)


class _Drawing(LogitsProcessor):
    """Draws a token for each row by inverting the distribution function, and leaves it as the only likely one.

    ``generate`` then takes the likeliest token. One uniform number a token is all that is drawn at random.
    """

    def __init__(self, seeds: Sequence[int], temperature: float) -> None:
        self._seeds_B, self._temperature = np.asarray(seeds, dtype=np.int64), temperature
        self.logprobs: list[torch.Tensor] = []
        """Of the tokens of each step, [B]."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return scores [B, V] that are 0 at the drawn token."""
        logprob_BV = (scores.float() / self._temperature).log_softmax(dim=-1)
        unit_B = torch.from_numpy(hash_unit(self._seeds_B, len(self.logprobs))).to(scores.device)
        sum_BV = logprob_BV.double().exp().cumsum(dim=-1)
        token_B1 = torch.searchsorted(sum_BV, unit_B[:, None] * sum_BV[:, -1:], right=True)
        token_B1 = token_B1.clamp(max=scores.shape[1] - 1)
        self.logprobs.append(logprob_BV.gather(1, token_B1)[:, 0])
        return torch.full_like(scores, -torch.inf).scatter_(1, token_B1, 0.0)


@contextmanager
def _generating(trainer: Any) -> Iterator[Any]:
    """Yield the trained model with all its weights here, in evaluation mode, as TRL itself generates with it."""
    from trl.models.utils import unwrap_model_for_generation

    with (
        unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ) as model,
        torch.no_grad(),
    ):
        was_training = model.training
        model.eval()
        try:
            yield model
        finally:
            model.train(was_training)


def _iter_batches(order: Sequence[int], wanted: Sequence[Wanted], max_tokens: int) -> Iterator[list[int]]:
    """Yield places of prompts of like length, ``BATCH_TOKENS`` at a time."""
    batch: list[int] = []
    for place in order:
        if batch and (len(wanted[place].prompt) + max_tokens) * (len(batch) + 1) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
