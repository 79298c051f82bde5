"""Draws a student's own answers while it learns, and rewards them.

Each answer has a random stream of its own, from the run's seed, its prompt's place in the training and its number in
the group. So neither the number of workers nor a restart changes what is drawn, up to the rounding of the model itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from curation.config.grpo import RolloutsConfig
from curation.domains import Domain, Example, attempt
from curation.domains.grading import check_labels
from curation.errors import RowError
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
    prompt: list[int]
    """Token ids."""
    example: Example
    label: str | None
    """The trusted label: the teacher's, or in gold arms the gold one; ``None`` if unparsed (no answer is right)."""


class AnswerReward(NamedTuple):
    """The reward of an answer and its reasons."""

    reward: float
    right: bool
    parsed: bool
    problem: str | None
    """The reason why the domain could not grade the answer, whose reward is then 0."""


def grade(
    domain: Domain, tasks: Sequence[RolloutTask], texts: Sequence[str], *, format_reward: float
) -> list[AnswerReward]:
    """Return each answer's reward: 1 if the domain finds it right, plus ``format_reward`` if it has a label."""
    read = [attempt(domain.parse, text, task.example) for task, text in zip(tasks, texts, strict=True)]
    asked = [
        place
        for place, (task, (_, problem)) in enumerate(zip(tasks, read, strict=True))
        if not problem and task.label is not None
    ]
    labels, golds = [read[place][0] for place in asked], [str(tasks[place].label) for place in asked]
    checked = check_labels(domain, labels, golds, [tasks[place].example for place in asked])
    verdicts = dict(zip(asked, checked, strict=True))
    found = []
    for place, (label, problem) in enumerate(read):
        verdict, parsed = verdicts.get(place, False), label is not None
        if isinstance(verdict, RowError):
            problem, verdict = format_error(verdict), False
        if problem:
            found.append(AnswerReward(0.0, False, False, problem))
        else:
            found.append(AnswerReward(float(verdict) + format_reward * parsed, verdict, parsed, None))
    return found


class Wanted(NamedTuple):
    """An answer to be drawn."""

    prompt: list[int]
    """Token ids."""
    seed: int
    """The seed of the answer's random stream, 63 bits."""


class Rollout(NamedTuple):
    """A drawn answer."""

    tokens: list[int]
    """The sampled ids, with the end token if it was drawn; at least one."""
    logprobs: list[float]
    """Log-probability of each token under the distribution that it was drawn from."""
    text: str
    """The text of the answer without special tokens, cut before the first stop string."""
    truncated: bool
    """Whether the answer reached ``max_tokens`` without an end."""


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

    def _decode(self, tokens: list[int]) -> str:
        return decode_tokens(self._tokenizer, tokens)

    def _cut(self, tokens: list[int], logprobs: list[float]) -> Rollout:
        """Return the answer in sampled tokens, which may have padding after the answer's end."""
        num_all, stops = len(tokens), self._config.stop
        end = next((place + 1 for place, token in enumerate(tokens) if token in self._ends), None)
        tokens = tokens[:end]
        text = self._decode(tokens)
        if cuts := [place for stop in stops if (place := text.find(stop)) >= 0]:
            text = text[: min(cuts)]
            end = next(k for k in range(1, num_all + 1) if any(stop in self._decode(tokens[:k]) for stop in stops))
            tokens = tokens[:end]
        return Rollout(tokens, logprobs[: len(tokens)], text, truncated=end is None)


def make_seeds(seed: int, places_B: Sequence[int], group_size: int, start: int) -> list[int]:
    """Return the seeds of the answers to a worker's prompts, of which each has ``group_size`` adjacent ones.

    ``places_B``: the place of each answer's prompt in the training, counted over all epochs. ``start``: the number of
    answers of this step that the workers before this one draw.
    """
    sample_B = (start + np.arange(len(places_B))) % group_size
    keys_B = np.asarray(places_B, dtype=np.int64) * group_size + sample_B
    return list((hash64(keys_B, seed) >> np.uint64(1)).tolist())


class TransformersRollouts(Rollouts):
    """Draws by the method ``generate`` of the trained model itself."""

    def draw(self, wanted: Sequence[Wanted], trainer: Any) -> list[Rollout]:
        """Return the answers; see :meth:`Rollouts.draw`."""
        order = sorted(range(len(wanted)), key=lambda place: len(wanted[place].prompt))
        found: dict[int, Rollout] = {}
        with _generating(trainer) as model:
            for batch in self._iter_batches(order, wanted):
                answers = self._draw(model, [wanted[place] for place in batch])
                found.update(zip(batch, answers, strict=True))
        return [found[place] for place in range(len(wanted))]

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
        return list(map(self._cut, answers, logprob_BT))

    def _iter_batches(self, order: Sequence[int], wanted: Sequence[Wanted]) -> Iterator[list[int]]:
        """Yield batches of places of prompts of similar length, each of at most ``BATCH_TOKENS`` tokens."""
        batch: list[int] = []
        for place in order:
            if batch and (len(wanted[place].prompt) + self._config.max_tokens) * (len(batch) + 1) > BATCH_TOKENS:
                yield batch
                batch = []
            batch.append(place)
        if batch:
            yield batch


class _Stopped(StoppingCriteria):
    """A criterion that ends answers with a stop string; transformers' own needs a tokenizer that decodes any text."""

    def __init__(self, text: Callable[[list[int]], str], stops: Sequence[str], width: int) -> None:
        self._text, self._stops, self._width = text, stops, width
        self._pieces: dict[int, str] = {}

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        """Return whether each row ends, [B]."""
        ended_B = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        for row, tokens in enumerate(input_ids[:, self._width :].tolist() if self._stops else ()):
            if (last := tokens[-1]) not in self._pieces:
                self._pieces[last] = self._text([last])
            can_end = any(stop[-1] in self._pieces[last] for stop in self._stops)
            ended_B[row] = can_end and any(stop in self._text(tokens) for stop in self._stops)
        return ended_B


class _Drawing(LogitsProcessor):
    """A processor that draws each row's token by inverting the distribution function, and rules out all others.

    ``generate`` then takes the likeliest token. The only random draw is one uniform number per token.
    """

    def __init__(self, seeds: Sequence[int], temperature: float) -> None:
        self._seeds_B, self._temperature = np.asarray(seeds, dtype=np.int64), temperature
        self.logprobs: list[torch.Tensor] = []
        """The log-probabilities of each step's drawn tokens, [B]."""

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
