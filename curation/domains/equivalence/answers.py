"""Comparison of answers by their parts: lists, sets, tuples and intervals, percent signs, plain numbers."""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple, Self

from curation.domains.equivalence.latex import (
    Exploded,
    Unit,
    closes_bracket,
    list_depths,
    parse_count,
    parse_measured,
    remove_separators,
)

MAX_CHARS = 4000
"""Maximum length of an answer, in characters; longer ones are refused unless identical."""
MAX_PAIRS = 4096
"""The maximum number of pairs of items of two lists."""
TOLERANCE = Fraction(1, 10_000)
DECIMALS = 6

Atom = Callable[[str, str], bool]
"""A function that compares two canonical expressions, gold first."""


def is_equivalent(gold: str, label: str, *, atom: Atom) -> bool:
    """Return whether two answers are equivalent, by ``atom`` where need be; ``Exploded`` beyond the limits."""
    gold, label = gold.strip(), label.strip()
    if gold == label:
        return bool(gold)
    if max(len(gold), len(label)) > MAX_CHARS:
        raise Exploded
    (gold, unit), (label, other_unit) = parse_measured(gold), parse_measured(label)
    if not gold or not label:
        return False
    sums = _SUM.fullmatch(gold), _SUM.fullmatch(label)
    if sums.count(None) == 1:  # the result of the one that is written out, as 48 + 24 = 72
        gold, label = (
            remove_separators(found[1]) if found else text for found, text in zip(sums, (gold, label), strict=True)
        )
    if unit and other_unit and unit != other_unit:
        return _is_same_measure(gold, unit, label, other_unit)
    if _remove_spaces(gold) == _remove_spaces(label):
        return True
    for number, known, other in ((gold, unit, label), (label, other_unit, gold)):
        if PlainNumber.read(number) and (found := parse_count(other)):
            return _is_same_measure(number, known, *found) if known else _is_same_item(number, found.text, atom)
    if _WORDS.search(gold) or _WORDS.search(label):
        one, other = (re.sub(r"[^\w+\-=<>/^*]", "", text.replace(r"\text", "")).casefold() for text in (gold, label))
        return one == other
    golds, labels = _split_items(gold), _split_items(label)
    if len(golds) * len(labels) > MAX_PAIRS:
        raise Exploded
    if len(golds) == len(labels) == 1:
        return _is_same_item(golds[0], labels[0], atom)
    if all(any(_is_same_item(one, other, atom) for other in labels) for one in golds):
        return all(any(_is_same_item(one, other, atom) for one in golds) for other in labels)
    single = golds if len(golds) == 1 else labels if len(labels) == 1 else []
    return any(PlainNumber.read(item) is None for item in single) and atom(gold, label)  # such as x \in \{1, 2\}


def _is_same_item(gold: str, label: str, atom: Atom) -> bool:
    if _remove_spaces(gold) == _remove_spaces(label):
        return True
    if gold.endswith("%") or label.endswith("%"):
        return _is_same_share(gold, label, atom)
    bases = bool(_BASED.fullmatch(gold)) + bool(_BASED.fullmatch(label))
    if bases:
        return bases == 1 and _is_same_item(gold.partition("_")[0], label.partition("_")[0], atom)
    one, other = PlainNumber.read(gold), PlainNumber.read(label)
    left, right = _read_bracketed(gold), _read_bracketed(label)
    if not (one and other) and (one or other):  # brackets around a number are no tuple, as in (1,000)
        one, other = one or _read_in_brackets(gold), other or _read_in_brackets(label)
    if one and other:
        return one.near(other)
    if left and right:
        (brackets, parts), (others, other_parts) = left, right
        is_alike = brackets == others and len(parts) == len(other_parts)
        return is_alike and all(_is_same_item(*pair, atom) for pair in zip(parts, other_parts, strict=True))
    return not ((one or left) and (other or right)) and atom(gold, label)


def _read_in_brackets(text: str) -> "PlainNumber | None":
    is_bracketed = text.startswith("(") and text.endswith(")")
    return PlainNumber.read(remove_separators(text[1:-1].strip())) if is_bracketed else None


def _is_same_measure(gold: str, unit: Unit, label: str, other_unit: Unit) -> bool:
    """Return whether two numbers of different units are the same measure, if one is a decimal to one part in 10,000."""
    one, other = PlainNumber.read(gold), PlainNumber.read(label)
    if one is None or other is None:
        return False
    tolerance = TOLERANCE if one.decimal or other.decimal else 0
    measures = (
        (one.value * size, other.value * second)
        for *measured, size in unit
        for *other_measured, second in other_unit
        if measured == other_measured  # in dimension and power
    )
    return any(abs(left - right) <= tolerance * max(abs(left), abs(right)) for left, right in measures)


def _remove_spaces(text: str) -> str:
    return re.sub(r"\s", "", text)


def _is_same_share(gold: str, label: str, atom: Atom) -> bool:
    one, other = gold.rstrip("% "), label.rstrip("% ")
    if not one or not other:
        return False
    if gold.endswith("%") and label.endswith("%"):
        return _is_same_item(one, other, atom)
    hundredths = [
        rf"\frac{{{text}}}{{100}}" if written.endswith("%") else text for text, written in ((one, gold), (other, label))
    ]
    return _is_same_item(one, other, atom) or _is_same_item(hundredths[0], hundredths[1], atom)


class PlainNumber(NamedTuple):
    """A plain number; ``decimal`` if it was written with a decimal point, and so may be rounded."""

    value: Fraction
    decimal: bool

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Return an integer, decimal (``1.5e3`` too), fraction, mixed number or ratio in canonical form; or None."""
        found = _NUMBER.fullmatch(text)
        if not found:
            return None
        sign = -1 if found["sign"] == "-" else 1
        if found["decimal"]:
            exponent = int(found["exponent"] or found["power"] or 0)
            value = sign * Fraction(found["decimal"]) * Fraction(10) ** exponent
            return cls(value, "." in found["decimal"] or exponent < 0)
        over = Fraction(found["over"] or found["right"])
        if not over:
            return None
        return cls(
            sign * (int(found["whole"] or found["before"] or 0) + Fraction(found["top"] or found["left"]) / over),
            "." in text,
        )

    def near(self, other: "PlainNumber") -> bool:
        """Return whether the numbers are equal or, if one is a decimal, to six decimals and one part in 10,000."""
        if not (self.decimal or other.decimal):
            return self.value == other.value
        return round(self.value, DECIMALS) == round(other.value, DECIMALS) and abs(self.value - other.value) <= (
            TOLERANCE * max(abs(self.value), abs(other.value))
        )


_DIGITS = r"\d{1,300}"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d{{0,300}})?|\.{_DIGITS})"
_POWER_OF_TEN = r"(?:[eE](?P<exponent>[+-]?\d{1,3})| ?(?:\\times|\\cdot|[*x]) ?10\^\{(?P<power>[+-]?\d{1,3})\})"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s?(?:(?P<decimal>{_DECIMAL}){_POWER_OF_TEN}?"
    rf"|(?:(?P<before>{_DIGITS}) (?=\d+ ?/))?(?P<left>{_DIGITS})\s?[/:]\s?(?P<right>{_DIGITS})"
    rf"|(?:(?P<whole>{_DIGITS})\s?(?=\\frac\{{\d))?\\frac\{{(?P<top>-?{_DECIMAL})\}}\{{(?P<over>{_DECIMAL})\}})"
)


def _read_bracketed(text: str) -> tuple[str, list[str]] | None:
    """Return the brackets and the parts of a tuple or an interval, or None of anything else."""
    inner = text[1:-1]
    if text[:1] not in ("(", "[") or text[-1] not in (")", "]") or closes_bracket(inner):
        return None
    parts = _split(inner)
    return (text[0] + text[-1], parts) if len(parts) > 1 else None


def _split_items(text: str) -> list[str]:
    r"""Return the items of a list or a set, two for an item with ``\pm``; for anything else, one item."""
    if text.startswith(r"\{") and text.endswith(r"\}") and not closes_bracket(text[2:-2]):
        text = text[2:-2]
    if _TUPLES.fullmatch(text):
        text = re.sub(r"\) *\(", "),(", text)
    items = []
    for item in _split(text):
        both = item.count(r"\pm") + item.count(r"\mp") == 1
        items += [re.sub(r"\\pm|\\mp", sign, item) for sign in "+-"] if both else [item]
    return items


def _split(text: str) -> list[str]:
    """Return the parts of ``text`` between commas and semicolons outside brackets."""
    parts = [""]
    for token, depth in list_depths(text):
        if token in (",", ";") and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts if part.strip()]


_SUM = re.compile(r"(?:[-+*/^(){}\d\s.,÷]|\\(?:times|cdot|frac|div))+=\s*([-+]?\d[\d.,/]*)")
_TUPLES = re.compile(r"(?:\([^(),]*,[^()]*\) *)+")
_BASED = re.compile(r"-?[\dA-F.]+_\{\d+\}")
_WORDS = re.compile(r"\\text\{|\\gcd|(?<![a-zA-Z\\])(?<!\\begin\{)(?<!\\end\{)[a-zA-Z]{4,}")
