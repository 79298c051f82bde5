"""Numbers in words, and sentences on a generation's result, made by the Jinja macros of ``sentences.j2``."""

import re

from jinja2 import Environment, PackageLoader, StrictUndefined

from curation.arms import ARMS, REFERENCE_ARM, is_free
from curation.json_types import Json, JsonView
from curation.metrics import Estimate
from curation.report.record import BASE, TEACHER

MODELS = {TEACHER: "weak teacher", BASE: "student's base"}
"""Words for tested models that are not arms."""


def format_percent(value: float) -> str:
    """Return a share as a percentage with one decimal and a non-breaking space."""
    return f"{100 * value:.1f}\u00a0%"


def format_points(value: float) -> str:
    """Return a difference of shares in percentage points, signed."""
    return f"{100 * value:+.1f}".replace("-", "\u2212")


def format_difference(value: float, low: float, high: float) -> str:
    """Return a difference of shares in points, its 95 % interval in parentheses."""
    return f"{format_points(value)} points ({format_points(low)} to {format_points(high)})"


def format_interval(estimate: JsonView) -> str:
    """Return an estimate as a percentage, its 95 % interval in brackets."""
    return f"{format_percent(estimate['value'])} [{100 * estimate['low']:.1f}, {100 * estimate['high']:.1f}]"


def format_number(estimate: Estimate) -> str:
    """Return a number with its interval."""
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def format_lead(estimate: Estimate) -> str:
    """Return a negative difference as the lead of the other side, in percentage points with its interval."""
    value, low, high = (100 * -bound for bound in (estimate.value, estimate.high, estimate.low))
    return f"{value:.1f} points [{low:.1f}, {high:.1f}]"


def format_duration(seconds: float) -> str:
    """Return seconds in words: ``0.4 s``, ``38 s``, ``6 min 20 s``, ``2 h 05 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def describe_name(name: str) -> str:
    """Return the words for an arm, a trust function or a tested model."""
    return ARMS[name].words if name in ARMS else MODELS.get(name, name.replace("_", " "))


FILTERS: Json = {
    "count": lambda value: f"{value:,}",
    "percent": format_percent,
    "points": format_points,
    "signed": lambda value: f"{value:+.3f}".replace("-", "\u2212"),
    "interval": format_interval,
    "p": lambda value: "p < 0.001" if value < 0.001 else f"p = {value:.2g}",
    "number": format_number,
    "lead": format_lead,
    "name": describe_name,
}
"""Filters of the templates of texts."""


def make_environment(package: str, *, autoescape: bool = False, keep_trailing_newline: bool = False) -> Environment:
    """Return an environment of the templates in a package's folder, which raises on undefined names."""
    return Environment(
        loader=PackageLoader(package, "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=autoescape,
        keep_trailing_newline=keep_trailing_newline,
    )


WORDS = make_environment("curation.report")
WORDS.filters.update(FILTERS)
WORDS.tests["free_signal"] = lambda name: is_free(str(name))


def render_sentences(macro: str, *args: object) -> list[str]:
    """Return the sentences of a macro of ``sentences.j2``, each on one line; a blank line ends a sentence."""
    text: str = getattr(WORDS.get_template("sentences.j2").module, macro)(*args)
    # Spaces that do not break are kept.
    return [joined for part in re.split(r"\n\s*\n", text) if (joined := re.sub("[ \n]+", " ", part).strip(" "))]


def describe_results(generation: JsonView) -> list[str]:
    """Return sentences on the selection, the student and its teacher, and on what was not measured."""
    arms = {arm["name"]: arm for arm in generation["arms"]}
    main = arms.get(REFERENCE_ARM) or next(iter(arms.values()), None)
    return [] if main is None else render_sentences("results", generation, main, arms)
