"""Verbalized confidence: the teacher is asked how sure it is (paper, App. "Baseline Details"), by our own question."""

import re
import unicodedata
from collections.abc import Sequence

from curation.config import DecodingConfig
from curation.domains import Domain, Example
from curation.signals import Answer, SignalMethod, Weak
from curation.teachers import Request

QUESTION = (
    "\n\nHow likely is it that the answer above is correct? Reply with a probability between 0% and 100%.\nConfidence:"
)
MAX_TOKENS = 16

WORDS = {
    **dict.fromkeys(("low", "unlikely", "unsure", "uncertain"), -0.2),
    **dict.fromkeys(("medium", "moderate"), 0.0),
    **dict.fromkeys(("high", "likely", "sure", "certain", "confident"), 0.2),
}
"""Difference of a reply in words from 0.5, by word; it is doubled after the intensifiers of ``_WORD``."""

_PLAIN = str.maketrans("\u2212\u2013\u2014\u2044\u2019", "---/'")
"""Map to ASCII of similar signs that remain after, or result from, compatibility normalisation."""

_NUMBER = r"(?:\d++(?:[.,]\d++)*+|(?<!\.)\.\d++)(?:e[-+]?\d++)?(?!\w)"
_STATEMENT = re.compile(
    rf"(?<!\w)(?<!\d[.,])(?P<minus>-)?(?P<value>{_NUMBER})\s*+"
    rf"(?:(?P<percent>\\?%|per\s?cent\b)|(?:/|(?:out )?of\b)\s*+(?P<whole>{_NUMBER}))?\s*+"
    rf"(?P<range>(?:-|(?:to|and|or)\b)\s*+{_NUMBER})?"
)
_WORD = re.compile(rf"\b(?:(very|extremely|highly|absolutely|completely)\s++)?({'|'.join(WORDS)})\b")
_NEGATION = re.compile(r"\b(?:not|no|nor|never|neither|hardly)\b|n't\b")


class VerbalizedConfidence(SignalMethod):
    """Confidence in [0, 1] that the teacher states for its own answer, decoded greedily."""

    name = "verbalized_confidence"

    def requests(self, domain: Domain, row_id: int, example: Example, weak: Weak) -> list[Request]:
        """Return one request with the row's prompt, the weak answer and the question."""
        return [Request(row_id=row_id, prompt=f"{domain.prompt(example)}{weak.completion}{QUESTION}")]

    def decoding(self, base: DecodingConfig) -> DecodingConfig:
        """Return greedy decoding of at most ``MAX_TOKENS`` tokens."""
        return DecodingConfig(max_tokens=MAX_TOKENS)

    def value(self, domain: Domain, example: Example, weak: Weak, answers: Sequence[Answer]) -> float | None:
        """Return the confidence that :func:`parse_confidence` reads."""
        return parse_confidence(answers[0].completion)


def parse_confidence(text: str) -> float | None:
    """Return the confidence in [0, 1] that a reply states, or None if it states none.

    The first number decides, since a model that continues writes about something else. With a percent sign or word, it
    is a percentage; with ``/``, ``of`` or ``out of``, a share (50/50 are odds); alone, a probability up to 1 and a
    percentage above. Numbers outside the scale, negative numbers and ranges give None. Numbers that are part of a word
    (``e4``, ``1st``) are ignored. Without a number, ``WORDS`` decide, unless they are negated or of several levels.
    """
    text = unicodedata.normalize("NFKC", text).translate(_PLAIN).lower()
    if (found := _STATEMENT.search(text)) is None:
        levels = {0.5 + WORDS[word] * (2 if strong else 1) for strong, word in _WORD.findall(text)}
        return levels.pop() if len(levels) == 1 and not _NEGATION.search(text) else None
    if found["minus"] or found["range"]:
        return None
    value = _parse_number(found["value"])
    if found["whole"]:
        total = _parse_number(found["whole"])
        value = 0.5 if value == total == 50 else value / total if total else -1.0
    elif found["percent"] or value > 1:
        value /= 100
    return value if 0 <= value <= 1 else None


def _parse_number(text: str) -> float:
    """Return a match of ``_NUMBER`` as a float; a comma before three digits groups thousands, others are decimal."""
    text = re.sub(r",(?=\d{3}(?!\d))", "", text).replace(",", ".")
    return float(text) if text.count(".") <= 1 else float("inf")
