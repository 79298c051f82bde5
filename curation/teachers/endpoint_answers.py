"""Answers of servers with an OpenAI-compatible API: text, tokens and log-probabilities, read from JSON.

Of a token's distribution a server returns the likeliest tokens. Their two largest log-probabilities give the margin.
The entropy is that of these tokens and of one more, which stands for the rest of the probability. It is exact if the
server returns all tokens, and a lower bound of the model's entropy otherwise.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from curation.escaping import quote_text
from curation.json_types import JsonView
from curation.teachers.completions import AnsweredRow, OfTokens

NO_ROW = -1  # id in the row of an answer, until a row has asked for it
MAX_COUNT = 2**31 - 1  # maximum number of tokens that a table's column can hold
NO_LETTERS = re.compile(rb"<0x[0-9A-F]{2}>|[^0-9A-Za-z]")
"""All but ASCII letters and digits, which are equal in tokens and text however a server writes other bytes."""
HALVES = "surrogatepass"  # error handler for tokens whose text holds half of a character
LEAST_LOGPROB = -9999.0
"""Lower bound of log-probabilities, which vLLM gives for -inf: float16 can hold it, and sums do not overflow."""


class Usage(NamedTuple):
    """Tokens that a server bills."""

    prompt: int
    output: int


class Token(NamedTuple):
    """A token of an answer."""

    text: bytes
    logprob: float
    top: Sequence[float]  # largest log-probabilities of the token's distribution, in any order


Odd = Mapping[str, str]  # oddities of an answer: keys of ``endpoint_paid.ODD``, each with an example


def restore_row(value: Sequence[Any]) -> AnsweredRow:
    """Return an answer from its JSON form, a list of the fields of its row."""
    found = AnsweredRow(*value)
    margins, negentropies = (None if of is None else OfTokens(*of) for of in (found.margins, found.negentropies))
    return found._replace(margins=margins, negentropies=negentropies)


class TryError(Exception):
    """An error for a try without an answer: the server's message, or a description of what came or was lost.

    It has the response's status and the server's name of the error (``code``), if there are any, the seconds that the
    server asks to wait, and the kind of the row's error if no further try brings an answer.
    """

    def __init__(
        self,
        words: str,
        *,
        status: int | None = None,
        code: object = None,
        retry_after: float | None = None,
        kind: str = "endpoint_answer",
    ) -> None:
        super().__init__(words if status is None else f"{status}: {words}")
        self.words, self.status, self.code, self.retry_after, self.kind = words, status, code, retry_after, kind


def read_json(content: bytes) -> JsonView:
    """Return the JSON object that a server answered with, or raise ``TryError``."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise TryError(f"no JSON, but {content[:80]!r}") from None
    if not isinstance(found, dict):
        raise TryError(f"no JSON object, but {shorten_value(found)}")
    return found


def check_error(found: JsonView) -> None:
    """Raise ``TryError`` if a server's object is an error and has no answer."""
    if (error := found.get("error")) and not found.get("choices"):
        fields = error if isinstance(error, dict) else {"message": error}
        code = fields.get("code")
        status = code if type(code) is int and 400 <= code < 600 else None
        raise TryError(f"an error, {shorten_value(fields.get('message'))}", status=status, code=code)


def parse_billed_usage(found: JsonView, most: Usage) -> tuple[Usage, bool]:
    """Return the tokens that an answer is billed for, and whether any number is estimated.

    Impossible numbers (negative ones, or 0 for a question or a text) count as missing. A missing number is computed
    from ``total_tokens`` if possible. Otherwise the question counts as the most tokens it can have, and the text as a
    token per byte, or as the longest possible answer if it was cut off or is absent.
    """
    usage = of if isinstance(of := found.get("usage"), Mapping) else {}
    counts = (usage.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens"))
    prompt, output, total = (of if type(of) is int and 0 <= of <= MAX_COUNT else None for of in counts)
    num_bytes, is_whole = 0, True  # of all texts, and whether none was cut off
    choices = found.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, Mapping):
            is_whole = is_whole and choice.get("finish_reason") != "length"
            message = choice.get("message")
            found_in = message if isinstance(message, Mapping) else choice
            texts = filter(None, map(found_in.get, ("text", "content", "reasoning", "reasoning_content", "refusal")))
            num_bytes += sum(len(text.encode(errors="replace")) for text in texts if isinstance(text, str))
    prompt, output = prompt or None, None if output == 0 and num_bytes else output
    guess = min(num_bytes, most.output) if num_bytes and is_whole else most.output
    asked, written = prompt, output
    if total is not None and prompt is not None and total >= prompt:
        written = max(output or 0, total - prompt)  # some count hidden tokens in the total alone
    elif total is not None and output is not None and total > output:
        asked = total - output
    asked, written = asked or most.prompt, written or (guess if num_bytes or written is None else 0)
    used = Usage(min(asked, MAX_COUNT), min(written, MAX_COUNT))
    return used, used != (prompt, output)


def read_answer(found: JsonView, used: Usage, *, field: str | None = None) -> tuple[AnsweredRow, Odd]:
    """Return the answer of a chat or completion, the text or the ``field`` of its JSON object, and its oddities.

    Its row has no id yet, and an ``error`` if the answer was refused or no row can hold it. Raise ``TryError`` if no
    choice has a text, or the server ended the answer by an error. If the server returns log-probabilities, tokens are
    counted without a stop token.
    """
    try:
        choice = found["choices"][0]
        is_chat = "message" in choice
        text = choice["message"].get("content") if is_chat else choice["text"]
        reason = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise TryError(f"lacks a choice with a text ({type(error).__name__}: {error})") from None
    if reason == "error":
        raise TryError("the server ended the answer by an error (finish_reason: error)")
    row = AnsweredRow(NO_ROW, num_prompt_tokens=used.prompt)
    if reason == "content_filter" or (text is None and reason != "length"):
        return row._replace(error=f"endpoint_refused: the server gave no text ({shorten_value(reason)})"), {}
    if not isinstance(text, str | None):
        raise TryError(f"the text is {shorten_value(text)}")
    try:
        tokens = (_parse_chat_tokens if is_chat else _parse_tokens)(choice.get("logprobs"))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        problem = f"{type(error).__name__}: {quote_text(str(error))}"
        return row._replace(error=f"endpoint_answer: the log-probabilities cannot be read ({problem})"), {}
    content = text or ""
    try:
        text, own = _find_answer(content, tokens, reason, field)
        text.encode()
    except UnicodeEncodeError:
        words = "endpoint_answer: the text has half of a surrogate pair, which is not a character"
        return row._replace(error=f"{words}: {quote_text(content)}"), {}
    row = row._replace(completion=text, num_output_tokens=used.output, truncated=reason == "length")
    if tokens is None:
        return row, {}
    tops, logprobs = [sorted(token.top, reverse=True) for token in own], [token.logprob for token in own]
    row = row._replace(
        num_output_tokens=len(own),
        mean_logprob=sum(logprobs) / len(logprobs) if logprobs else None,
        token_logprobs=logprobs,
        margins=OfTokens.of([top[0] - top[1] for top in tops]) if all(len(top) > 1 for top in tops) else None,
        negentropies=OfTokens.of([compute_negentropy(token.top) for token in own]) if all(tops) else None,
    )
    written = NO_LETTERS.sub(b"", b"".join(token.text for token in tokens))
    of_text = NO_LETTERS.sub(b"", content.encode()) in written
    return row, {} if of_text else {"other_tokens": quote_text(text)}


def is_other(asked: str, answered: object) -> bool:
    """Return whether an answer names another model, ignoring the name's path and a date after it."""
    if not isinstance(answered, str) or not answered:
        return False
    name, other = (text.lower().rstrip("/").rpartition("/")[2] for text in (asked, answered))
    return re.fullmatch(re.escape(name.removesuffix("-latest")) + r"(-latest|[-@:]\d[\d.-]*)?", other) is None


def compute_negentropy(top: Sequence[float]) -> float:
    """Return the negative entropy, in nats, of tokens with these log-probabilities and one token with the rest."""
    shares = [math.exp(logprob) for logprob in top]
    rest = 1.0 - math.fsum(shares)
    known = math.fsum(share * logprob for share, logprob in zip(shares, top, strict=True) if share > 0)
    return known + (rest * math.log(rest) if rest > 1e-9 else 0.0)


def _parse_chat_tokens(logprobs: object) -> list[Token] | None:
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if content is None:
        return None
    return [
        Token(
            bytes([*item["bytes"]]) if item.get("bytes") is not None else item["token"].encode(errors=HALVES),
            _parse_logprob(item["logprob"]),
            [_parse_logprob(other["logprob"]) for other in item.get("top_logprobs") or ()],
        )
        for item in content
    ]


def _parse_tokens(logprobs: object) -> list[Token] | None:
    if not isinstance(logprobs, Mapping) or logprobs.get("token_logprobs") is None:
        return None
    tops = logprobs.get("top_logprobs") or [None] * len(logprobs["tokens"])
    return [
        Token(
            text.encode(errors=HALVES),
            _parse_logprob(logprob),
            [_parse_logprob(other) for other in (top or {}).values()],
        )
        for text, logprob, top in zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True)
    ]


def shorten_value(value: object) -> str:
    """Return a server's value as a short text of characters that every table and terminal can show."""
    try:
        return quote_text(value if isinstance(value, str) else json.dumps(value))
    except RecursionError:
        return f"a {type(value).__name__}"


def _parse_logprob(value: Any) -> float:
    if type(value) not in (int, float) or not value <= 1e-3:
        raise ValueError(f"{shorten_value(value)} is no log-probability")
    return float(min(max(value, LEAST_LOGPROB), 0.0))


def _find_answer(
    text: str, tokens: list[Token] | None, reason: object, field: str | None
) -> tuple[str, Sequence[Token]]:
    """Return the answer within the text, and the tokens that hold it, without those of a stop token or string."""
    try:
        answer = None if field is None else json.loads(text)[field]
        is_whole = field is None
    except (ValueError, KeyError, TypeError, RecursionError):
        is_whole = True  # the whole text is the answer; no label can be read from it
    own: list[Token] = []
    if is_whole:
        target, seen = text.encode(), b""
        for token in tokens or ():
            if seen.startswith(target):
                return text, own
            own.append(token)
            seen += token.text
        if own and reason == "stop" and not seen.startswith(target):
            own = own if target.endswith(own[-1].text.strip() or b"\0") else own[:-1]  # the stop token's own text
        return text, own
    if not isinstance(answer, str):
        return text, own
    begin, place = text.encode().rfind(json.dumps(answer, ensure_ascii=False)[1:-1].encode()), 0
    for token in tokens or ():
        if begin < 0 or (place + len(token.text) > begin and place < begin + len(answer.encode())):
            own.append(token)
        place += len(token.text)
    return answer, own
