"""What identifies a question, so that the same one is found in two splits though it is written otherwise.

Two rows ask the same question where their texts are equal and they share enough of their parts (options). Texts and
parts are compared as a domain has normalised them; :func:`plain_text` does for prose with some mathematics in it.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal, NamedTuple

Rule = Literal["same", "permuted", "near_copy"]
RULES: tuple[Rule, ...] = ("same", "permuted", "near_copy")
"""How two rows can ask the same question, the strictest first."""
SHARED_PARTS = 2
"""Parts that near-copies have in common; one where both have two. See docs/method.md for the numbers."""

_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_FRACTIONS = re.compile("(?=[¼-¾⅐-⅞])")
_DASHES = dict.fromkeys([*range(0x2010, 0x2016), 0x2212], "-")
_QUOTES = dict.fromkeys([*range(0x2018, 0x201C), 0x2032], "'") | dict.fromkeys(map(ord, "“”„«»"), " ")
_APOSTROPHE = re.compile(r"(?<![\w')\]])'+|'(?=[^\W\d])|(?<=[^\W\d_]{2})'+")
"""Quotation marks and apostrophes; not those of a derivative, such as f'(x) and y'' + y."""
_MARKS = re.compile(r"[.,;:?]+(?!\S)")
"""Marks at the end of a word; not a decimal point."""
_BANG = re.compile(r"(?<=[^\W\d_]{2})!+(?!\S)")
"""Not the factorial of a number or variable."""
_BLANK = re.compile(r"__+")


class Identity(NamedTuple):
    """What identifies a question: its normalised text and, where it has options, those, in the row's order.

    Options are few: rows are found by every two of theirs.
    """

    text: str
    parts: tuple[str, ...] = ()


def same_question(one: Identity, other: Identity) -> Rule | None:
    """How two rows ask the same question; ``None`` where they do not.

    The texts are equal, and so are the parts (``same``), or the sets of parts (``permuted``), or at least two parts
    are common to both (``near_copy``; one where both have two). Many questions have the text "Which of the following
    is true?"; without a common option those are different ones.
    """
    if one.text != other.text:
        return None
    if one.parts == other.parts:
        return "same"
    ones, others = set(one.parts), set(other.parts)
    if ones == others:
        return "permuted"
    needed = 1 if len(ones) == len(others) == 2 else SHARED_PARTS
    return "near_copy" if len(ones & others) >= needed else None


def plain_text(text: str) -> str:
    """Prose without what copies of it differ in: letter case, white space, quotation marks, marks at words' ends.

    Unicode's compatible forms are one (NFKC), and so are dashes. Operators, signs, brackets, decimal points and
    exponents stay: ``2+3`` is not ``2-3``, ``x²`` is ``x^2`` and not ``x2``.
    """
    if not text.isascii():
        text = composed(text).translate(_QUOTES)
    text = text.casefold().replace('"', " ").replace("...", " ")
    for sign, found, instead in (("'", _APOSTROPHE, ""), ("__", _BLANK, " "), ("!", _BANG, " ")):
        if sign in text:  # a search for nothing costs more than this
            text = found.sub(instead, text)
    return " ".join(_MARKS.sub(" ", text).split())


def plain_identity(text: str, options: Sequence[str] = ()) -> Identity:
    """The identity of a question in prose, with its options where it has some.

    Options are normalised like the text, but for a row two of whose options differ in nothing else (``Aa`` and ``AA``):
    they keep their case and marks.
    """
    parts = tuple(map(plain_text, options))
    if len(set(parts)) < len(parts) or not all(parts):
        parts = tuple(" ".join(composed(option).split()) for option in options)
    return Identity(plain_text(text), parts)


def composed(text: str) -> str:
    """NFKC, with exponents and fractions told from the digits before them, and one kind of dash."""
    text = _SUPERSCRIPTS.sub(lambda found: f"^{found[0]}", text)
    text = unicodedata.normalize("NFKC", _FRACTIONS.sub(" ", text))
    return text.translate(_DASHES).replace("\N{FRACTION SLASH}", "/")
