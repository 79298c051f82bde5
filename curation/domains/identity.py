"""The identity of a question: finds the same question in two splits even if it is written differently.

Two rows ask the same question if their texts are equal and they share enough of their parts (options). The domain
normalises texts and parts before the comparison; :func:`normalise_prose` is enough for prose with some mathematics.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal, NamedTuple

Rule = Literal["same", "permuted", "near_copy"]
RULES: tuple[Rule, ...] = ("same", "permuted", "near_copy")
"""Rules by which two rows can ask the same question, the strictest first."""
SHARED_PARTS = 2
"""Number of parts that near-copies share, or one if both rows have two (docs/method.md has the measurements)."""

_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_FRACTIONS = re.compile("(?=[¼-¾⅐-⅞])")
_INVISIBLE = dict.fromkeys(
    [
        *(0xAD, 0x34F, 0x61C, 0x115F, 0x1160, *range(0x180B, 0x180F), *range(0x200B, 0x2010), *range(0x202A, 0x202F)),
        *(*range(0x2060, 0x2070), *range(0xFE00, 0xFE10), 0xFEFF),
    ]
)
"""Soft hyphens, joiners, fillers, zero-width spaces, direction marks and variation selectors."""
_DASHES = dict.fromkeys([*range(0x2010, 0x2016), 0x2212], "-")
_QUOTES = dict.fromkeys([*range(0x2018, 0x201C), 0x2032], "'") | dict.fromkeys(map(ord, "“”„«»"), " ")
_CONFUSABLE = str.maketrans(
    "\u0410\u0412\u0415\u0405\u0406\u0408\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425"
    "\u0430\u0435\u0455\u0456\u0458\u043e\u0440\u0441\u0443\u0445\u04bb\u0501\u051b\u051d"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7"
    "\u03bf\u03b9\u03bd\u03c1\u03c5\u03b1\u0131\u0251\u0261",
    "ABESIJKMHOPCTYXaesijopcyxhdqwABEZHIKMNOPTYXoivpuaiag",
)
"""Cyrillic, Greek and a few Latin letters that look like English letters, mapped to those."""
_APOSTROPHE = re.compile(r"(?<![\w')\]])'+|'(?=[^\W\d])|(?<=[^\W\d_]{2})'+")
"""Quotation marks and apostrophes; not those of a derivative, such as f'(x) and y'' + y."""
_MARKS = re.compile(r"[.,;:?]+(?!\S)")
"""Marks at the end of a word; not a decimal point."""
_BANG = re.compile(r"(?<=[^\W\d_]{2})!+(?!\S)")
"""Not the factorial of a number or variable."""
_BLANK = re.compile(r"__+")


class Identity(NamedTuple):
    """The identity of a question: its normalised text and its options, if any, in the row's order.

    There should be few options, because every pair of them is a search key.
    """

    text: str
    parts: tuple[str, ...] = ()


def match_questions(one: Identity, other: Identity) -> Rule | None:
    """Return the rule by which two rows ask the same question, or ``None`` if they do not.

    The texts are equal, and so are the parts (``same``), or the sets of parts (``permuted``), or the rows share at
    least two parts (``near_copy``; one if both have two). Many questions have the text "Which of the following is
    true?"; without a common option they are different questions.
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


def normalise_prose(text: str) -> str:
    """Normalise prose: drop letter case, white space, quotation marks, and punctuation at words' ends.

    Unicode's compatible forms become one (NFKC), and so do dashes. Operators, signs, brackets, decimal points and
    exponents stay: ``2+3`` is not ``2-3``, ``x²`` is ``x^2`` and not ``x2``.
    """
    if not text.isascii():
        text = normalise_unicode(text).translate(_QUOTES)
    text = text.casefold().replace('"', " ").replace("...", " ")
    for sign, found, instead in (("'", _APOSTROPHE, ""), ("__", _BLANK, " "), ("!", _BANG, " ")):
        if sign in text:  # cheaper than a substitution that finds nothing
            text = found.sub(instead, text)
    return " ".join(_MARKS.sub(" ", text).split())


def plain_identity(text: str, options: Sequence[str] = ()) -> Identity:
    """Return the identity of a question in prose, with its options, if any.

    Options are normalised like the text. The exception is a row with two options that would become equal (``Aa`` and
    ``AA``): its options keep their case and punctuation.
    """
    parts = tuple(map(normalise_prose, options))
    if len(set(parts)) < len(parts) or not all(parts):
        parts = tuple(" ".join(normalise_unicode(option).split()) for option in options)
    return Identity(normalise_prose(text), parts)


def fold_lookalikes(text: str) -> str:
    """Return a form of a short text that is equal for texts that look alike, by confusables and invisible signs too."""
    return " ".join(normalise_unicode(text).translate(_CONFUSABLE).translate(_QUOTES).split())


def describe_code_points(one: str, other: str) -> str:
    """Return the characters that only one of two texts has, by number and name."""
    apart = sorted({*one} ^ {*other}) or sorted({*one, *other})
    return ", ".join(f"U+{ord(sign):04X} {unicodedata.name(sign, '')}".strip() for sign in apart)


def normalise_unicode(text: str) -> str:
    """Return NFKC without invisible signs, with exponents and fractions set apart from their left side and one dash."""
    text = _SUPERSCRIPTS.sub(lambda found: f"^{found[0]}", text)
    text = unicodedata.normalize("NFKC", _FRACTIONS.sub(" ", text))
    return text.translate(_DASHES | _INVISIBLE).replace("\N{FRACTION SLASH}", "/")
