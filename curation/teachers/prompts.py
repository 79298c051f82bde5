"""Tokenisation of requests: chat template, boundary between prompt and option, and checks against model limits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from curation.config import AskConfig
from curation.config.states import find_layers, parse
from curation.errors import ModelError
from curation.models import (
    as_user_turns,
    check_layers,
    decode_tokens,
    encode_prefixes,
    load_configuration,
    load_tokenizer,
)
from curation.refs import ModelRef
from curation.teachers import Gate, Request, Teacher
from curation.teachers.completions import (
    AnsweredRow,
    Array,
    choose_in_pairs,
    find_options_problem,
    make_paired_row,
    prompt_batch,
    rank_options,
    subtract_baselines,
)
from curation.teachers.trie import Trie

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

MAX_KNOWN = 2**16  # maximum number of options whose tokens are cached


@dataclass(frozen=True, kw_only=True)
class TokenisedRequest:
    """A request and its tokens."""

    request: Request
    prompt: list[int]
    options: list[list[int]] | None
    answer: list[int] | None = None  # tokens of the answer that came with the row and is read, unless it is an option
    choice: int | None = None
    """Index of the option that came with the row and is read; if ``None``, the likeliest option is the answer."""

    @cached_property
    def trie(self) -> Trie:
        """Trie of the options' tokens."""
        return Trie(self.options or ())

    def room(self, max_tokens: int) -> int:
        """Return the maximum number of tokens of the answer, which is ``max_tokens`` for a generated one."""
        if self.answer is not None:
            return len(self.answer)
        if self.options is None:
            return max_tokens
        if self.request.in_pairs:
            return sum(max(map(len, self.options[place : place + 2])) for place in range(0, len(self.options), 2))
        return max(map(len, self.options))

    def problem(self, max_positions: int | None, max_tokens: int) -> str | None:
        """Return why a model cannot take the request and an answer of ``max_tokens``, as its row's error, or None."""
        if self.options is not None:
            lengths = [len(tokens) for tokens in self.options]
            if (bad := find_options_problem(self.request.options or (), lengths)) is not None:
                return bad
        if self.answer is not None and not self.answer:
            return "no_completion: no answer with tokens came with the row"
        room = self.room(max_tokens)
        if not self.prompt:
            return "prompt_length: the prompt has no tokens"
        if max_positions is not None and len(self.prompt) + room > max_positions:
            return f"prompt_length: {len(self.prompt)} tokens and {room} of answer; the model takes {max_positions}"
        return None


def _tokenise_options(
    tokenizer: "PreTrainedTokenizerBase",
    rows: Sequence[tuple[str, list[int], Sequence[str]]],
    known: dict[tuple[str, str], list[int]],
    *,
    special: bool,
) -> list[list[list[int]]]:
    """Return the tokens of each row's options, given the prompt's text and tokens and the options' texts.

    ``known`` caches tokens, with the prompt's last line and the option's text as key. Rows share options (letters, the
    moves of a board), and tokenising prompt and option together for each of them takes longer than a small model's
    answer. Earlier lines have no influence: no tokenizer merges across the end of a line.
    """
    if len(known) > MAX_KNOWN:
        known.clear()
    ends = [prompt[prompt.rstrip().rfind("\n") + 1 :] for prompt, _, _ in rows]
    new = {
        (end, option): row
        for end, row in zip(ends, rows, strict=True)
        for option in row[2]
        if (end, option) not in known
    }
    texts = encode_prefixes(tokenizer, [prompt + option for (_, option), (prompt, *_) in new.items()], special=special)
    for (end, option), (_, tokens, _), joined in zip(new, new.values(), texts, strict=True):
        follows = joined[: len(tokens)] == tokens
        own = joined[len(tokens) :] if follows else encode_prefixes(tokenizer, [option], special=False)[0]
        known[end, option] = own
    return [[known[end, option] for option in row[2]] for end, row in zip(ends, rows, strict=True)]


def tokenise(
    tokenizer: "PreTrainedTokenizerBase",
    requests: Sequence[Request],
    *,
    chat_template: bool,
    known: dict[tuple[str, str], list[int]] | None = None,
    reads_given: bool = False,
) -> list[TokenisedRequest]:
    """Return the requests as tokens.

    With ``chat_template`` a prompt is one user turn (``models.as_user_turns``). An option's tokens are those that the
    text of prompt and option has beyond the prompt's own tokens; if the two merge at the boundary, the option is
    tokenised alone. ``known`` caches them between calls. With ``reads_given`` the answer is the completion that came
    with the row: one of its options, or else a text after the prompt, tokenised like an option.
    """
    prompts = [request.prompt for request in requests]
    if chat_template:
        prompts = as_user_turns(tokenizer, prompts)
    special = not chat_template
    prompt_tokens = encode_prefixes(tokenizer, prompts, special=special)
    given = zip(prompts, prompt_tokens, requests, strict=True)
    choices = [
        request.options.index(request.given)  # the completion that came with the row, if it is one of them
        if reads_given and request.options is not None and not request.stepwise and request.given in request.options
        else None
        for request in requests
    ]
    read = [reads_given and choice is None for choice in choices]  # whether the given answer is not an option
    rows = [
        (prompt, tokens, (request.given or "",) if is_text else request.options or ())
        for (prompt, tokens, request), is_text in zip(given, read, strict=True)
    ]
    kept = {} if known is None or any(read) else known  # a text that is read comes once
    texts = _tokenise_options(tokenizer, rows, kept, special=special)
    return [
        TokenisedRequest(request=replace(request, options=None), prompt=tokens, options=None, answer=own[0])
        if is_text
        else TokenisedRequest(
            request=request, prompt=tokens, options=None if request.options is None else own, choice=choice
        )
        for request, tokens, own, choice, is_text in zip(requests, prompt_tokens, texts, choices, read, strict=True)
    ]


def make_scored_row(
    row: TokenisedRequest, by_token: Sequence[Sequence[float]], *, normalise: bool, drawn: int | None = None
) -> tuple[AnsweredRow, list[list[int]]]:
    """Return a row with its answer, given the log-probabilities of each option's tokens, and the tokens of its options.

    These are by likelihood; of options in pairs there are only the chosen ones, joined. With ``normalise`` an option is
    chosen by the mean of its log-probabilities instead of their sum. ``drawn`` is the index of the option that an
    engine has drawn.
    """
    request, options, scores = row.request, row.options or [], [sum(own) for own in by_token]
    if request.in_pairs:
        lengths = [len(tokens) for tokens in options]
        paired = make_paired_row(request, scores, num_prompt_tokens=len(row.prompt), lengths=lengths)
        places, _ = choose_in_pairs(scores, request.baselines)
        return paired, [[token for place in places for token in options[place]]]
    means = [score / len(own) for score, own in zip(scores, by_token, strict=True)]
    chosen_by = subtract_baselines(means if normalise else scores, request.baselines)
    order = rank_options(chosen_by, row.choice if drawn is None else drawn)
    place = order[0]
    answer = AnsweredRow(
        row_id=request.row_id,
        completion=(request.options or ())[place],
        num_prompt_tokens=len(row.prompt),
        num_output_tokens=len(by_token[place]),
        truncated=False,
        mean_logprob=means[place],
        token_logprobs=by_token[place],
        option_logprobs=scores,
        option_scores=chosen_by,
        given_option=row.choice,
    )
    return answer, [options[ranked] for ranked in order]


def ask_gate(gate: Gate, rows: Sequence[TokenisedRequest], wide_ND: Array, config: AskConfig) -> npt.NDArray[np.bool_]:
    """Return whether ``gate`` passes each row, bool [N], given its last prompt token's states of all layers kept."""
    layers = find_layers(config.states)
    parts = np.split(wide_ND, len(layers), axis=1)
    states = {name: parts[layers.index(parse(name).layer)] for name in gate.states}
    row_ids, num_tokens = [row.request.row_id for row in rows], [len(row.prompt) for row in rows]
    return gate(prompt_batch(row_ids, num_tokens, states, config.state_dtype))


def cut_at_stop(
    text: str, tokens: Sequence[int], stop: Sequence[str], decode: Callable[[list[int]], str]
) -> tuple[str, int] | None:
    """Return an answer's text before the first stop string, and its number of tokens; None without such a string.

    These are the least number of first ``tokens`` whose decoded text begins with it. Texts are compared instead of
    lengths, since part of a character's bytes decodes to as many characters as all.
    """
    cuts = [place for end in stop if (place := text.find(end)) >= 0]
    if not cuts:
        return None
    text = text[: min(cuts)]
    return text, next(k for k in range(len(tokens) + 1) if decode(list(tokens[:k])).startswith(text))


def iter_padded_batches(items: Sequence[T], num_tokens: Callable[[T], int], batch_tokens: int) -> Iterator[list[T]]:
    """Yield batches of items, longest first, that fit ``batch_tokens`` when padded; each has at least one item."""
    ordered = sorted(items, key=num_tokens, reverse=True)
    start = 0
    while start < len(ordered):
        size = max(1, batch_tokens // num_tokens(ordered[start]))
        yield ordered[start : start + size]
        start += size


class ModelTeacher(Teacher):
    """A base class of teachers that feed a causal LM in this process: its tokenizer, and requests as its tokens."""

    def __init__(self, config: AskConfig, model: ModelRef | None) -> None:
        if model is None:
            raise ModelError(
                f"the {config.backend} backend needs a model; set teacher.model.path or teacher.model.init"
            )
        self._ref, self._tokenizer = model, load_tokenizer(model)
        self._known: dict[tuple[str, str], list[int]] = {}  # tokens of options
        self._text_config = load_configuration(model).get_text_config()
        self._ask(config)

    def _ask(self, config: AskConfig) -> None:
        super()._ask(config)
        if config.chat_template:
            as_user_turns(self._tokenizer, [])  # refuse at once
        check_layers(self._ref, self._text_config.num_hidden_layers, config.states)

    def _tokenise(
        self, requests: Sequence[Request], max_positions: int | None, max_tokens: int
    ) -> tuple[list[TokenisedRequest], dict[int, str]]:
        """Return the requests that the model can take, as tokens, and the errors of the others by row id."""
        how = {"chat_template": self._config.chat_template, "reads_given": self._config.reads_given}
        rows = tokenise(self._tokenizer, requests, known=self._known, **how)
        checked = [(row, row.problem(max_positions, max_tokens)) for row in rows]
        errors = {row.request.row_id: problem for row, problem in checked if problem is not None}
        return [row for row, problem in checked if problem is None], errors

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        return decode_tokens(self._tokenizer, tokens)
