"""Normalisation of an answer in LaTeX to one spelling; its tokens and brackets."""

import re
import unicodedata

from curation.domains.equivalence.units import NOT_COUNTED, MeasuredAnswer, find_currency, with_signs, without_unit

MAX_DEPTH = 50
"""The maximum depth of nested brackets."""


class Exploded(Exception):
    """An error for answers that cannot be compared within the limits."""


def parse_measured(text: str) -> MeasuredAnswer:
    r"""Return an answer in a canonical spelling, and its unit; ``Exploded`` if brackets are nested too deep.

    It has no delimiters, sizes, cosmetic spaces, units or thousands separators. Arguments of ``\frac``, ``\sqrt``,
    ``^``, ``_`` are in braces, words in ``\text{}``.
    """
    text = with_signs(strip_markdown(text))
    money, text = find_currency(text), _as_latex(text)
    text = _MENDED.sub(lambda found: _MENDS[found[0]], text)
    if r"\begin" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z])", r"\\", text)
    depths = list_depths(_THOUSANDS.sub("", _DECIMAL_COMMA.sub(".", text)))
    if any(abs(depth) > MAX_DEPTH for _, depth in depths):
        raise Exploded
    text = re.sub(r"\s+", " ", _rebuild([token for token, _ in depths])).strip(" =").rstrip(_ENDS)
    while text.startswith("{") and text.endswith("}") and not closes_bracket(text[1:-1]):
        text = text[1:-1].strip().rstrip(_ENDS)
    if _TRIGONOMETRY.search(text):
        text = re.sub(r"(\d+(?:\.\d+)?)°", r"\\frac{\1\\pi}{180}", text)
    text, unit = without_unit(_MAGNITUDE.sub(_convert_scaled, text))
    text = _AND.sub(",", _PERCENT.sub("%", text.replace("°", "")))
    text = _SYMBOLS.sub(r"\1", _WORDS_AFTER.sub(r"\1", text)).strip(" =").rstrip(_ENDS)
    text = _REPEATING.sub(_convert_repeating, text)
    text = _SCIENTIFIC.sub(r"\1 \\times 10^{\2}", remove_separators(text))
    return MeasuredAnswer(re.sub(r"^\(([A-Z])\)$", r"\1", text.replace(r"\{\}", r"\emptyset")), unit or money)


def strip_markdown(text: str) -> str:
    """Return a text without Markdown marks for bold, italic or code around the whole of it."""
    while found := _MARKED.fullmatch(text):
        text = found["text"]
    return text


def remove_separators(text: str) -> str:
    """Return a number without separators between groups of three digits; other texts unchanged."""
    return _GROUPED.sub(lambda found: re.sub("[, '\u2019]", "", found[0]), text)


def _as_latex(text: str) -> str:
    """Return numbers as programs and people write them, in LaTeX: ``1_000``, ``2**3``, ``1½``, ``10³``, ``sqrt(2)``."""
    if _UNDERSCORED.fullmatch(text.strip()):
        text = text.replace("_", "")
    text = _ROOT.sub(r"\\sqrt{\1}", text.replace("**", "^"))
    text = _NAMED.sub(lambda found: _NAMES[found[0].lower()], text)
    if text.isascii():
        return text
    text = _SUPERSCRIPTS.sub(lambda found: f"^{{{unicodedata.normalize('NFKC', found[0])}}}", text)
    text = _FRACTIONS.sub(_convert_vulgar, text)
    return text.replace("\N{FRACTION SLASH}", "/")


def _convert_vulgar(found: re.Match[str]) -> str:
    top, _, over = unicodedata.normalize("NFKC", found[0]).partition("\N{FRACTION SLASH}")
    return rf"\frac{{{top}}}{{{over}}}"


def _convert_scaled(found: re.Match[str]) -> str:
    """Return a number in thousands or millions, with an exponent."""
    return f"{found['number'].replace(',', '')}e{_EXPONENTS[found['word'] or found['plain']]}"


def _rebuild(tokens: list[str]) -> str:
    """Rebuild the text of ``tokens`` from the right, so that a command's arguments are complete when it is reached."""
    right: list[str] = []  # what follows, the nearest last; a group in braces is one entry

    def skip() -> None:
        while right and right[-1].isspace():
            right.pop()

    def argument(*, digits: bool = False) -> str:
        skip()
        if not right or right[-1] == "}":
            return ""
        taken = right.pop()
        while digits and (taken[-1].isdigit() or taken == "-") and right and right[-1].isdigit():
            taken += right.pop()
        return taken[1:-1].strip() if taken.startswith("{") else taken

    for token in reversed(tokens):
        entry = token = _SPELLING.get(token, token)
        if token == "{":
            inner = []
            while right and (part := right.pop()) != "}":
                inner.append(part)
            entry = f"{{{''.join(inner)}}}" if inner != [","] else ""
        elif token in _ARITY:
            skip()
            while token == r"\sqrt" and right and "[" in (right[-1], entry[5:6]) and entry[-1] != "]":
                entry += right.pop()
            entry += "".join(f"{{{argument()}}}" for _ in range(_ARITY[token]))
        elif token in ("^", "_"):
            raised = argument(digits=True)
            entry = "°" if raised == r"\circ" else f"{token}{{{raised}}}"
        elif token in _FONTS:
            words = argument()
            entry = words if _FONTS[token] and len(words) == 1 else rf"\text{{{words}}}"
        elif token == r"\phantom":
            argument()
            entry = ""
        elif token == r"\log" and not (right and right[-1].startswith("_")):
            entry = r"\ln"
        if entry:
            right.append(entry)
    return "".join(entry for entry in reversed(right) if entry != "}")


def _convert_repeating(repeating: re.Match[str]) -> str:
    integer, once, again = repeating.groups()
    top = int(integer + once + again) - int(integer + once or "0")
    return rf"\frac{{{top}}}{{{10 ** len(once) * (10 ** len(again) - 1)}}}"


def closes_bracket(text: str) -> bool:
    r"""Return whether ``text`` closes a bracket opened before it, as between the ends of ``(1, 2) \cup (3, 4)``."""
    return any(depth < 0 for _, depth in list_depths(text))


def list_depths(text: str) -> list[tuple[str, int]]:
    """Return the tokens of ``text``, each with the number of open brackets after it."""
    depth, tokens = 0, []
    for token in _TOKEN.findall(text):
        depth += (token in _OPENING) - (token in _CLOSING)
        tokens.append((token, depth))
    return tokens


_OPENING = {"(", "[", "{", r"\{", r"\begin", r"\lfloor", r"\lceil", r"\langle"}
_CLOSING = {")", "]", "}", r"\}", r"\end", r"\rfloor", r"\rceil", r"\rangle"}


_ENDS = " .,;:"
_TOKEN = re.compile(r"\\(?:left|right)\s*\.|\\[a-zA-Z]+|\\.|.", re.DOTALL)
_ARITY = {r"\frac": 2, r"\binom": 2, r"\sqrt": 1, r"\mathbb": 1, r"\overline": 1}
"""Number of arguments of a command."""
_FONTS = {
    **dict.fromkeys([r"\text", r"\textbf", r"\textit", r"\textrm", r"\textnormal", r"\mbox"], False),
    **dict.fromkeys([r"\mathrm", r"\mathbf", r"\mathit"], True),
}
"""Commands that set words; the value says whether a single letter in them is a symbol and not a unit."""
_SPELLINGS = {
    "": r"\left \right \left. \right. \displaystyle \boxed \fbox \approx ≈ \! \( \) \[ \] $ \$ € £ ¥ ₹ ¢ “ ” \big \Big",
    " ": r"\, \; \: \> ~ \quad \qquad",
    r"\frac": r"\dfrac \tfrac \cfrac",
    r"\binom": r"\dbinom \tbinom",
    r"\leq": r"\le \leqslant ≤",
    r"\geq": r"\ge \geqslant ≥",
    r"\neq": r"\ne ≠",
    r"\emptyset": r"\varnothing ∅",
    r"\{": r"\lbrace",
    r"\}": r"\rbrace",
    "%": r"\%",
    "°": r"\degree",
    "-": "\N{MINUS SIGN} \N{EN DASH}",
    ",": "\N{FULLWIDTH COMMA}",
    ";": "\N{FULLWIDTH SEMICOLON}",
    "(": "\N{FULLWIDTH LEFT PARENTHESIS}",
    ")": "\N{FULLWIDTH RIGHT PARENTHESIS}",
    r"\cup": "\N{UNION}",
    r"\times": "\N{MULTIPLICATION SIGN}",
    r"\cdot": "·",
    r"\pm": "±",
    r"\pi": "π",
    r"\sqrt": "√",
    r"\infty": "∞",
}
_SPELLING = {r"\ ": " ", **{old: new for new, olds in _SPELLINGS.items() for old in olds.split()}}
_MENDS = {"\x08": r"\b", "\x0c": r"\f", "\t": r"\t", "rac": r"\frac"}
"""Commands whose backslash was read as an escape; twelve rows of Omni-MATH have these."""
_MENDED = re.compile(r"[\x08\x0c\t](?=[a-z]{3})|(?<![a-zA-Z\\\x0c])rac(?=\{)")
_THOUSANDS = re.compile(r"(?<=\d),\s*\\!\s*(?=\d{3})")
_DECIMAL_COMMA = re.compile(r"(?<=\d)\{,\}(?=\d)(?!\d{3}(?!\d))")
"""A decimal comma, as in ``1{,}5``, which no group of three digits follows."""
_GROUPED = re.compile(
    r"^(?:[a-zA-Z] ?= ?)?-?\d{1,3}(?:[, ]\d{3})+(?=$|\.|%| ?\\)|^-?\d{1,3}(?:['\u2019]\d{3})+(?=$|\.)"
)
_SCIENTIFIC = re.compile(r"^([+-]?\d{1,300}(?:\.\d{0,300})?)[eE]\+?(-?\d{1,3})$")
_REPEATING = re.compile(r"(\d{0,50})\.(\d{0,50})\\overline\{(\d{1,50})\}")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_PERCENT = re.compile(r"\\text\{ ?percent ?\}|\bpercent\b")
_AND = re.compile(r"\\text\{[ ,]*(?:and|or|AND|OR) ?\}|\b(?:and|or|AND|OR)\b")
_SYMBOLS = re.compile(r"\\text\{((?:[^\W\d_]?[^{}\w]|\d)*[^\W\d_]?)\}")
_WORDS_AFTER = re.compile(rf"^(.*(?:[\d)}}]|\\pi)) ?\\text\{{(?![^{{}}]*{NOT_COUNTED})[^{{}}]*\}}(?:\^\{{[23]\}})?$")
"""Words behind a number, which say what it counts."""
_MARKED = re.compile(r"""\s*(?P<mark>\*{1,3}|__|[`"'])(?P<text>[^*`"']+)(?P=mark)[.\s]*""", re.DOTALL)
"""Bold, italic and code of Markdown, or quotes, around a whole answer."""
_ROOT = re.compile(r"(?:√|(?<![a-zA-Z\\])sqrt) ?\(([^()]*)\)")
_NAMES = {"pi": r"\pi ", **dict.fromkeys(("inf", "infinity", "oo"), r"\infty ")}
_NAMED = re.compile(r"(?<![a-zA-Z\\])(?:pi|inf|infinity|oo)(?![a-zA-Z])", re.IGNORECASE)
_UNDERSCORED = re.compile(r"[+-]?\d{1,3}(?:_\d{3})+(?:\.\d*)?")
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_FRACTIONS = re.compile("[¼-¾⅐-⅞]")
_EXPONENTS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_MAGNITUDE = re.compile(
    rf"(?<![\d.,])(?P<number>\d{{1,3}}(?:,\d{{3}})+|\d+(?:\.\d+)?) ?(?:\\text\{{ ?(?P<word>{'|'.join(_EXPONENTS)})\}}"
    rf"|(?P<plain>{'|'.join(_EXPONENTS)})\b)"
)
