"""Answers of servers with the paths of OpenAI's API: text, tokens and log-probabilities, read out of JSON.

What a server gives of a token's distribution is its likeliest tokens. Their two largest log-probabilities give the
margin. The entropy is that of these tokens and of one more, which stands for the rest of the probability; so it is
exact where all tokens are given, and at most the model's own elsewhere.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from curation.json_types import JsonView
from curation.teachers.completions import OfTokens


class Usage(NamedTuple):
    """Tokens that a server bills."""

    prompt: int
    output: int


class Token(NamedTuple):
    """A token of an answer."""

    text: bytes
    logprob: float
    top: Sequence[float]
    """The largest log-probabilities of its distribution, in any order."""


class ServedAnswer(NamedTuple):
    """An answer as a row needs it; with an ``error`` nothing else is known but perhaps the tokens."""

    text: str | None = None
    num_prompt: int | None = None
    num_output: int | None = None
    """Tokens of the text, without a stop token where the server gives log-probabilities."""
    truncated: bool | None = None
    logprobs: Sequence[float] = ()
    margins: OfTokens | None = None
    negentropies: OfTokens | None = None
    by_option: Sequence[Sequence[float]] | None = None
    """Log-probabilities of the tokens of each option, where options were scored."""
    error: str | None = None

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Self:
        """The inverse of the answer as a list."""
        found = cls(*value)
        margins, negentropies = (None if of is None else OfTokens(*of) for of in (found.margins, found.negentropies))
        return found._replace(margins=margins, negentropies=negentropies)


class UnreadableError(ValueError):
    """A server's answer is not of the form that its API promises."""


def read_json(content: bytes) -> JsonView:
    """The object that a server answered with.

    Raises:
        UnreadableError: it is no JSON object.
    """
    try:
        found = json.loads(content)
    except ValueError:
        raise UnreadableError(f"no JSON, but {content[:80]!r}") from None
    if not isinstance(found, dict):
        raise UnreadableError(f"no JSON object, but {str(found)[:80]}")
    return found


def usage_of(found: Mapping[str, object]) -> Usage | None:
    """The billed tokens; ``None`` where the server does not say."""
    usage = found.get("usage")
    if not isinstance(usage, Mapping):
        return None
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens") or 0
    return Usage(prompt, output) if isinstance(prompt, int) and isinstance(output, int) else None


def read_answer(found: JsonView, *, field: str | None = None) -> ServedAnswer:
    """The answer of a chat or of a completion.

    Args:
        found: the server's answer.
        field: where the text is a JSON object, the field of it that is the answer.

    Raises:
        UnreadableError: there is no choice, no text, or numbers are none.
    """
    try:
        choice = found["choices"][0]
        is_chat = "message" in choice
        text = choice["message"].get("content") if is_chat else choice["text"]
        tokens = (_chat_tokens if is_chat else _tokens)(choice.get("logprobs"))
        reason = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise UnreadableError(f"lacks a choice with a text ({type(error).__name__}: {error})") from None
    usage = usage_of(found)
    num_prompt = None if usage is None else usage.prompt
    if reason == "content_filter" or (text is None and reason != "length"):
        return ServedAnswer(num_prompt=num_prompt, error=f"endpoint_refused: the server gave no text ({reason})")
    if not isinstance(text, str | None):
        raise UnreadableError(f"the text is {text!r}")
    text, own = _own(text or "", tokens, reason, field)
    if tokens is None:
        num_output = None if usage is None else usage.output
        return ServedAnswer(text=text, num_prompt=num_prompt, num_output=num_output, truncated=reason == "length")
    return ServedAnswer(
        text=text,
        num_prompt=num_prompt,
        num_output=len(own),
        truncated=reason == "length",
        logprobs=[token.logprob for token in own],
        margins=OfTokens.of([_margin(token) for token in own]) if all(len(token.top) > 1 for token in own) else None,
        negentropies=OfTokens.of([negentropy(token.top) for token in own]) if all(token.top for token in own) else None,
    )


def read_scores(found: JsonView, lengths: Sequence[int]) -> list[list[float]]:
    """Log-probabilities of the last ``lengths`` tokens of each prompt, as vLLM gives them with ``prompt_logprobs``.

    Raises:
        UnreadableError: they are not there.
    """
    try:
        choices = sorted(found["choices"], key=lambda choice: choice["index"])
        scores = []
        for choice, length in zip(choices, lengths, strict=True):
            given, ids = choice["prompt_logprobs"], choice["prompt_token_ids"]
            places = range(len(ids) - length, len(ids))
            scores.append([float(given[place][str(ids[place])]["logprob"]) for place in places])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise UnreadableError(f"lacks log-probabilities of a prompt ({type(error).__name__}: {error})") from None
    return scores


def negentropy(top: Sequence[float]) -> float:
    """Minus the entropy, in nats, of tokens with these log-probabilities and of one more with the rest."""
    shares = [math.exp(logprob) for logprob in top]
    rest = 1.0 - math.fsum(shares)
    known = math.fsum(share * logprob for share, logprob in zip(shares, top, strict=True) if share > 0)
    return known + (rest * math.log(rest) if rest > 1e-9 else 0.0)


def _margin(token: Token) -> float:
    first, second = sorted(token.top, reverse=True)[:2]
    return first - second


def _chat_tokens(logprobs: object) -> list[Token] | None:
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if content is None:
        return None
    return [
        Token(
            bytes(item["bytes"]) if item.get("bytes") is not None else item["token"].encode(),
            _number(item["logprob"]),
            [_number(other["logprob"]) for other in item.get("top_logprobs") or ()],
        )
        for item in content
    ]


def _tokens(logprobs: object) -> list[Token] | None:
    if not isinstance(logprobs, Mapping) or logprobs.get("token_logprobs") is None:
        return None
    tops = logprobs.get("top_logprobs") or [None] * len(logprobs["tokens"])
    return [
        Token(text.encode(), _number(logprob), [_number(other) for other in (top or {}).values()])
        for text, logprob, top in zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True)
    ]


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number > 1e-3:
        raise ValueError(f"{value!r} is no log-probability")
    return min(number, 0.0)


def _own(text: str, tokens: list[Token] | None, reason: object, field: str | None) -> tuple[str, Sequence[Token]]:
    """The answer within the text, and its tokens: those that hold it, without what a stop token or string took."""
    if field is None:
        return text, [] if tokens is None else _holding(text, tokens, reason)
    try:
        answer = json.loads(text)[field]
    except (ValueError, KeyError, TypeError):
        return text, [] if tokens is None else _holding(text, tokens, reason)  # as it is: no label can be read of it
    if not isinstance(answer, str):
        return text, []
    begin = text.encode().rfind(json.dumps(answer, ensure_ascii=False)[1:-1].encode())
    own, place = [], 0
    for token in tokens or ():
        if begin < 0 or (place + len(token.text) > begin and place < begin + len(answer.encode())):
            own.append(token)
        place += len(token.text)
    return answer, own


def _holding(text: str, tokens: list[Token], reason: object) -> list[Token]:
    target, seen = text.encode(), b""
    for number, token in enumerate(tokens):
        if seen.startswith(target):
            return tokens[:number]
        seen += token.text
    if seen.startswith(target):
        return tokens
    if tokens and reason == "stop" and not target.endswith(tokens[-1].text.strip() or b"\0"):
        return tokens[:-1]  # the stop token's own text
    return tokens
