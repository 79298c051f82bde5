r"""Units at the end of an answer, and currency signs: an answer may omit its unit, but not have another one."""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

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
_LETTERS = ("g", "h", "l", "m", "s")
"""One-letter units, which are variables unless set as words."""
_WORDS = r"[A-Za-z°][A-Za-z/°. ]*"
_TRAILING = re.compile(
    rf"^(?P<number>.*(?:[\d)}}]|\\pi)) ?(?:\\text\{{ ?(?P<set>{_WORDS})\}}|(?P<plain>{_WORDS}))"
    r"(?:\^\{(?P<power>[23])\})?$"
)
_JOINED = r"\b(?:and|or|to|times|plus|minus|over|by|mod|base|squared|cubed)\b"
_IDEOGRAPH = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]"
_MANY = "十百千万亿萬億兆半만억천백조"
"""Signs after a number that multiply it."""
_COUNTED = re.compile(
    rf"(?P<number>[\W\d_]*\d)(?: (?P<letter>[{''.join(_LETTERS)}])| (?!.*{NOT_COUNTED})(?!.*{_JOINED})"
    rf"(?=.*(?:[^\WA-Z\d_]{{3}}|[\u0400-\u04ff]{{2}}))[^\W\d_](?:[^\W\d_]| )*| ?(?!.*[{_MANY}]){_IDEOGRAPH}+)"
)
_CODES = re.compile(r"(?:(US ?\\?\$|USD)|(EUR)|(GBP)|(INR|Rs\b\.?)) ?(?=\.?\d)")
_MONEY = re.compile(r"\\\$|[€£¥₹](?= ?\.?\d)|(?<=\d)[€£¥₹¢]|(?<=\d )[€£¥₹¢]")


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
    is_variable = name in _LETTERS and found["set"] is None
    if is_variable or (singular not in _MEANINGS and singular not in _UNNAMED):
        return MeasuredAnswer(text, NO_UNIT)
    return MeasuredAnswer(found["number"], _make_unit(singular, power))


def parse_count(text: str) -> MeasuredAnswer | None:
    """Return the number of a canonical answer that counts things (``12 apples``) or has a one-letter unit, or None."""
    found = _COUNTED.fullmatch(text)
    return MeasuredAnswer(found["number"], _make_unit(found["letter"] or "", 1)) if found else None


def _make_unit(name: str, power: int) -> Unit:
    return frozenset((kind, power, size**power) for kind, size in _MEANINGS.get(name, []))


def with_signs(text: str) -> str:
    """Return an answer with currency signs for codes before a number, such as ``US$5``, ``EUR 5`` and ``Rs. 5``."""
    return _CODES.sub(lambda found: (r"\$", "€", "£", "₹")[(found.lastindex or 1) - 1], text)


def find_currency(text: str) -> Unit:
    r"""Return the currency whose sign stands before or after a number; a single ``$`` is no delimiter of LaTeX."""
    found = _MONEY.search(text)
    sign = found[0].lstrip("\\") if found else "$" if text.count("$") == 1 else None
    return _make_unit(sign or "", 1)


def iter_sizes(one: Unit, other: Unit) -> Iterator[tuple[Fraction, Fraction]]:
    """Yield the sizes of two units in each dimension that both have; none if they measure different things."""
    for kind, power, size in one:
        yield from ((size, second) for dimension, exponent, second in other if (dimension, exponent) == (kind, power))
