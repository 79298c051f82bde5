"""Normalisation of an answer in LaTeX to one spelling, its tokens and brackets, and the unit or currency that it has.

An answer may omit its unit, but not have another one.
"""

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

MAX_DEPTH = 50
"""The maximum depth of nested brackets."""


Unit = frozenset[tuple[str, int, Fraction]]
"""The meanings of a unit: a dimension, its power, and the unit's size in it. Pounds are a mass or money."""

_SIZES = {
    "time": "1 s sec second; 60 min minute; 3600 h hr hour; 86400 day; 604800 wk week; 1/1000 ms millisecond",
    "months": "1 mo month; 12 yr year",
    "length": "1/1000 mm millimeter millimetre; 1/100 cm centimeter centimetre; 1/10 dm decimeter decimetre; "
    "1 m meter metre; 1000 km kilometer kilometre; 127/5000 in inch inches; 381/1250 ft foot feet; 1143/1250 yd yard; "
    "201168/125 mi mile",
    "mass": "1/1000 mg milligram; 1 g gram gramme; 1000 kg kilogram kilo; 1000000 tonne; 45359237/100000 lb pound; "
    "45359237/1600000 oz ounce",
    "volume": "1/1000 ml milliliter millilitre; 1/100 cl; 1 l liter litre",
    "volume, us": "1 cup; 2 pint; 4 quart; 16 gal gallon",
    "speed": "1 m/s meter/second metre/second; 5/18 km/h kph kmh km/hr km/hour kilometer/hour kilometre/hour; "
    "1397/3125 mph mi/h mile/hour; 381/1250 ft/s feet/second foot/second",
    "frequency": "1 hz hertz; 1000 khz; 1000000 mhz; 1000000000 ghz",
    "power": "1 watt; 1000 kw kilowatt",
    "energy": "1 joule; 1000 kj kilojoule; 3600000 kwh",
    "memory": "1 byte; 1000 kb; 1000000 mb; 1000000000 gb",
    "memory, binary": "1 byte; 1024 kb; 1048576 mb; 1073741824 gb",
    "dollars": "1 $ dollar usd; 1/100 ¢ cent",
    "euros": "1 € euro eur; 1/100 cent",
    "pounds": "1 £ pound gbp; 1/100 penny pence",
    "yen": "1 ¥ yen jpy",
    "rupees": "1 ₹ rupee inr",
    "degrees": "1 ° degree deg",
    "radians": "1 radian rad",
    "degrees celsius": "1 °c celsius degreecelsius degreescelsius degree °",
    "degrees fahrenheit": "1 °f fahrenheit degreefahrenheit degreesfahrenheit degree °",
}
"""Names of units by dimension, after each unit's size."""

_MEANINGS: dict[str, list[tuple[str, Fraction]]] = {}
for _dimension, _listed in _SIZES.items():
    for _size, *_names in map(str.split, _listed.split("; ")):
        for _name in _names:
            _MEANINGS.setdefault(_name, []).append((_dimension, Fraction(_size)))

NO_UNIT: Unit = frozenset()
NOT_COUNTED = (
    r"(?:[\d=]|\b(?:if|for|when|where|otherwise|is|are|such|with|more|less|[AaPp]\.?[Mm]|hundred|thousand|million|billion"
    r"|trillion|(?i:lakh|crore|tausend|million[ei]n?|milliard\w*|mille|mil|mill[oó]n|millones|тысяч\w*|милли\w*)|dozen|half|halves|third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth)s?\b)"
)
"""Words after a number that do not name what is counted."""
_UNNAMED = ("unit",)
"""Words that stand for any unit."""
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_ONE_LETTER = ("g", "h", "l", "m", "s")
"""One-letter units, which are variables unless set as words."""
_UNIT_WORDS = r"[A-Za-z°][A-Za-z/°. ]*"
_TRAILING = re.compile(
    rf"^(?P<number>.*(?:[\d)}}]|\\pi)) ?(?:\\text\{{ ?(?P<set>{_UNIT_WORDS})\}}|(?P<plain>{_UNIT_WORDS}))"
    r"(?:\^\{(?P<power>[23])\})?$"
)
_JOINED = r"\b(?:and|or|to|times|plus|minus|over|by|mod|base|squared|cubed)\b"
_IDEOGRAPH = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]"
_MANY = "十百千万亿萬億兆半만억천백조"
"""Signs after a number that multiply it."""
_COUNTED = re.compile(
    rf"(?P<number>[\W\d_]*\d)(?: (?P<letter>[{''.join(_ONE_LETTER)}])| (?!.*{NOT_COUNTED})(?!.*{_JOINED})"
    rf"(?=.*(?:[^\WA-Z\d_]{{3}}|[\u0400-\u04ff]{{2}}))[^\W\d_](?:[^\W\d_]| )*| ?(?!.*[{_MANY}]){_IDEOGRAPH}+)"
)
_CODES = re.compile(r"(?:(US ?\\?\$|USD)|(EUR)|(GBP)|(INR|Rs\b\.?)) ?(?=\.?\d)")
_MONEY = re.compile(r"\\\$|[€£¥₹](?= ?\.?\d)|(?<=\d)[€£¥₹¢]|(?<=\d )[€£¥₹¢]")


class Exploded(Exception):
    """An error for answers that cannot be compared within the limits."""


class MeasuredAnswer(NamedTuple):
    """An answer without its unit, and the unit, which is ``NO_UNIT`` if none is known."""

    text: str
    unit: Unit


def without_unit(text: str) -> MeasuredAnswer:
    """Take a known unit from the end of an answer in canonical spelling; a letter is one where it is set as a word."""
    found = _TRAILING.fullmatch(text)
    if found is None:
        return MeasuredAnswer(text, NO_UNIT)
    words = (found["set"] or found["plain"]).lower().replace(".", "").replace(" per ", "/").split()
    power = int(found["power"] or 1)
    if len(words) > 1 and words[0] in _POWERS and power == 1:
        power = _POWERS[words.pop(0)]
    name = "".join(words)
    singular = "/".join(part if part in _MEANINGS else part.removesuffix("s") for part in name.split("/"))
    is_variable = name in _ONE_LETTER and found["set"] is None
    if is_variable or (singular not in _MEANINGS and singular not in _UNNAMED):
        return MeasuredAnswer(text, NO_UNIT)
    return MeasuredAnswer(found["number"], _make_unit(singular, power))


def parse_count(text: str) -> MeasuredAnswer | None:
    """Return the number of a canonical answer that counts things (``12 apples``) or has a one-letter unit, or None."""
    found = _COUNTED.fullmatch(text)
    return MeasuredAnswer(found["number"], _make_unit(found["letter"] or "", 1)) if found else None


def _make_unit(name: str, power: int) -> Unit:
    return frozenset((kind, power, size**power) for kind, size in _MEANINGS.get(name, []))


def read_currency(text: str) -> MeasuredAnswer:
    r"""Return an answer with signs for codes of currencies (``US$5``, ``EUR 5``, ``Rs. 5``), and its currency.

    The sign stands before or after a number; a single ``$`` is no delimiter of LaTeX.
    """
    text = _CODES.sub(lambda found: (r"\$", "€", "£", "₹")[(found.lastindex or 1) - 1], text)
    found = _MONEY.search(text)
    sign = found[0].lstrip("\\") if found else "$" if text.count("$") == 1 else ""
    return MeasuredAnswer(text, _make_unit(sign, 1))


def parse_measured(text: str) -> MeasuredAnswer:
    r"""Return an answer in a canonical spelling, and its unit; ``Exploded`` if brackets are nested too deep.

    It has no delimiters, sizes, cosmetic spaces, units or thousands separators. Arguments of ``\frac``, ``\sqrt``,
    ``^``, ``_`` are in braces, words in ``\text{}``.
    """
    text, money = read_currency(strip_markdown(text))
    # numbers as programs and people write them: 1_000, 2**3, sqrt(2), 10³, 1½
    if re.fullmatch(r"[+-]?\d{1,3}(?:_\d{3})+(?:\.\d*)?", text.strip()):
        text = text.replace("_", "")
    text = _ROOT.sub(r"\\sqrt{\1}", text.replace("**", "^"))
    text = _NAMED.sub(lambda found: _NAMES[found[0].lower()], text)
    if not text.isascii():
        text = _SUPERSCRIPTS.sub(lambda found: f"^{{{unicodedata.normalize('NFKC', found[0])}}}", text)
        text = _FRACTIONS.sub(_convert_vulgar, text)
        text = text.replace("\N{FRACTION SLASH}", "/")
    text = _MENDED.sub(lambda found: _MENDS[found[0]], text)
    if r"\begin" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z])", r"\\", text)
    depths = list_depths(_THOUSANDS.sub("", _DECIMAL_COMMA.sub(".", text)))
    if any(abs(depth) > MAX_DEPTH for _, depth in depths):
        raise Exploded
    text = re.sub(r"\s+", " ", _rebuild([token for token, _ in depths])).strip(" =").rstrip(_ENDS)
    while text.startswith("{") and text.endswith("}") and not closes_bracket(text[1:-1]):
        text = text[1:-1].strip().rstrip(_ENDS)
    if re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", text):
        text = re.sub(r"(\d+(?:\.\d+)?)°", r"\\frac{\1\\pi}{180}", text)
    text = _MAGNITUDE.sub(lambda found: f"{found[1].replace(',', '')}e{_EXPONENTS[found[2] or found[3]]}", text)
    text, unit = without_unit(text)
    text = _AND.sub(",", re.sub(r"\\text\{ ?percent ?\}|\bpercent\b", "%", text.replace("°", "")))
    text = _SYMBOLS.sub(r"\1", _WORDS_AFTER.sub(r"\1", text)).strip(" =").rstrip(_ENDS)
    text = re.sub(r"(\d{0,50})\.(\d{0,50})\\overline\{(\d{1,50})\}", _convert_repeating, text)
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


def _convert_vulgar(found: re.Match[str]) -> str:
    top, _, over = unicodedata.normalize("NFKC", found[0]).partition("\N{FRACTION SLASH}")
    return rf"\frac{{{top}}}{{{over}}}"


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
_AND = re.compile(r"\\text\{[ ,]*(?:and|or|AND|OR) ?\}|\b(?:and|or|AND|OR)\b")
_SYMBOLS = re.compile(r"\\text\{((?:[^\W\d_]?[^{}\w]|\d)*[^\W\d_]?)\}")
_WORDS_AFTER = re.compile(rf"^(.*(?:[\d)}}]|\\pi)) ?\\text\{{(?![^{{}}]*{NOT_COUNTED})[^{{}}]*\}}(?:\^\{{[23]\}})?$")
"""Words behind a number, which say what it counts."""
_MARKED = re.compile(r"""\s*(?P<mark>\*{1,3}|__|[`"'])(?P<text>[^*`"']+)(?P=mark)[.\s]*""", re.DOTALL)
"""Bold, italic and code of Markdown, or quotes, around a whole answer."""
_ROOT = re.compile(r"(?:√|(?<![a-zA-Z\\])sqrt) ?\(([^()]*)\)")
_NAMES = {"pi": r"\pi ", **dict.fromkeys(("inf", "infinity", "oo"), r"\infty ")}
_NAMED = re.compile(r"(?<![a-zA-Z\\])(?:pi|inf|infinity|oo)(?![a-zA-Z])", re.IGNORECASE)
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_FRACTIONS = re.compile("[¼-¾⅐-⅞]")
_EXPONENTS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_MAGNITUDE = re.compile(
    rf"(?<![\d.,])(?P<number>\d{{1,3}}(?:,\d{{3}})+|\d+(?:\.\d+)?) ?(?:\\text\{{ ?(?P<word>{'|'.join(_EXPONENTS)})\}}"
    rf"|(?P<plain>{'|'.join(_EXPONENTS)})\b)"
)
