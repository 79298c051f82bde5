"""The sandbox of templates: Jinja's, with the filters and methods named here, and a bound on what a row may cost.

A template may be a stranger's. A text grows no longer than ``MOST_CHARACTERS``, a row makes no more than ``MOST_WORK``
characters in all, and numbers stay below ``MOST_NUMBER``.
"""

import functools
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment

from curation.domains.turns import read_cell_text
from curation.errors import RowError

MOST_CHARACTERS = 1_000_000
"""The maximum number of characters of a rendered text, and of any text made while it is rendered."""
MOST_WORK = 10_000_000
"""The maximum number of characters made while one row is rendered; an iteration of a loop counts as ``TURN``."""
TURN = 1_000
_FOR_MISSING = ("default", "d")
# fmt: off
_FILTERS = [
    "abs", "capitalize", "count", "default", "d", "dictsort", "escape", "e", "first", "float", "int", "items", "last",
    "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr", "sort",
    "string", "striptags", "title", "trim", "unique", "upper", "wordcount",
]
_OF_TEXT = frozenset(["lower", "string", "striptags", "title", "trim", "upper", "wordcount"])
_METHODS = frozenset([
    "strip", "lstrip", "rstrip", "upper", "lower", "title", "capitalize", "split", "rsplit", "splitlines",
    "partition", "rpartition", "startswith", "endswith", "removeprefix", "removesuffix", "count", "find", "rfind",
    "isdigit", "isalpha", "get", "items", "keys", "values", "isoformat",
])
# fmt: on
_NUMBERS = (int, float)
MOST_NUMBER = 10**30
"""The largest number that a product may have: powers of integers would grow without end."""


class WorkBudget(threading.local):
    """The work left for the row that the current thread renders."""

    left = MOST_WORK

    def refill(self) -> None:
        """Restore the whole budget, before another row is rendered."""
        self.left = MOST_WORK

    def spend(self, amount: int) -> None:
        """Subtract an amount of work from the budget.

        Raises:
            RowError: ``too_long``: nothing is left.
        """
        self.left -= amount
        if self.left < 0:
            raise RowError(
                f"too_long: the template makes more than {MOST_WORK:,} characters for this row (a turn of a loop "
                f"counts as {TURN:,})"
            )


budget = WorkBudget()


def _spend_on(*values: object) -> None:
    """Spend the work of reading values."""
    budget.spend(sum(len(value) for value in values if isinstance(value, str | list | tuple | dict | range)))


def _bound_value(value: object) -> Any:
    """Return an expression's value if it is not too long."""
    if isinstance(value, str | list | tuple):
        if len(value) > MOST_CHARACTERS:
            raise RowError(f"too_long: an expression of the template has more than {MOST_CHARACTERS:,} characters")
        budget.spend(len(value))
    return value


def _require_present(value: object) -> Any:
    if value is None:
        raise RowError("null_field: the template writes a value that is missing in this row")
    return value


def _to_writable(value: object) -> Any:
    """Return a value that a template may write; lists and objects would appear in Python syntax, except in messages."""
    if not isinstance(value, Iterable) or isinstance(value, str | jinja2.Undefined):
        return _require_present(value)
    try:
        return read_cell_text(value)
    except RowError:
        raise RowError(
            f"not_a_text: the template writes a value that is {type(value).__name__}; write its items by a loop, or "
            "the filters join or tojson"
        ) from None


def _iter_turns(values: Iterable[object]) -> Iterator[Any]:
    """Yield the values of a loop, each at the cost of a turn."""
    for value in values:
        budget.spend(TURN)
        yield value


def _concat(parts: Iterable[object]) -> str:
    texts = [str(_to_writable(part)) for part in parts]
    budget.spend(sum(map(len, texts)))  # before they are joined
    return str(_bound_value("".join(texts)))


def _join(values: Iterable[object], between: str = "", attribute: str | None = None) -> str:
    found = [value if attribute is None else value[attribute] for value in _iter_turns(values)]
    texts = [str(_to_writable(value)) for value in found]
    budget.spend(sum(map(len, texts)) + len(str(between)) * len(texts))
    return str(_bound_value(str(between).join(texts)))


def _to_json(value: object) -> str:
    """Return a value as JSON; Jinja's own filter escapes HTML and allows any indentation."""
    text = json.dumps(_require_present(value), ensure_ascii=False, default=str)
    budget.spend(len(text))
    return str(_bound_value(text))


def _replace(text: str, old: str, new: str) -> str:
    text, old, new = str(_to_writable(text)), str(old), str(new)
    budget.spend(len(text) + text.count(old) * len(new))
    return str(_bound_value(text.replace(old, new)))


def _truncate(text: str, length: int = 255) -> str:
    text, length = str(_to_writable(text)), int(length)
    return text if len(text) <= length else f"{text[:length]}..."


def _round(value: float, digits: int = 0) -> float:
    return round(float(value), max(-300, min(300, int(digits))))


def _sum(values: Iterable[float]) -> float:
    return sum(value if isinstance(value, _NUMBERS) else float(value) for value in _iter_turns(values))


def _make_range(*bounds: int) -> range:
    found = range(*bounds)
    if len(found) > MOST_WORK // TURN:
        raise RowError(f"too_long: range{bounds} has more than {MOST_WORK // TURN:,} numbers")
    return found


class BoundedEnvironment(SandboxedEnvironment):
    """Jinja's sandbox with the filters and methods that are named, and arithmetic whose results are bounded."""

    intercepted_binops = frozenset({"+", "*", "%", "//", "/", "-"})

    def __init__(self) -> None:
        super().__init__(undefined=jinja2.StrictUndefined, finalize=_to_writable, autoescape=False)
        known: dict[str, Callable[..., Any]] = {
            name: _bound_filter(self.filters[name], missing=name in _FOR_MISSING, of_text=name in _OF_TEXT)
            for name in _FILTERS
        }
        own = {
            "join": _join,
            "replace": _replace,
            "round": _round,
            "sum": _sum,
            "tojson": _to_json,
            "truncate": _truncate,
        }
        self.filters = {**known, **own, "_turns": _iter_turns, "_concat": _concat}
        self.globals = {"range": _make_range}

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Return whether a template may read an attribute: data, or an allowed method."""
        safe = super().is_safe_attribute(obj, attr, value)
        return safe and (not callable(value) or attr in _METHODS)

    def wrap_str_format(self, value: object) -> None:
        """Return None: ``format`` is not allowed, as a width makes a text of any length."""

    def call(self, context: Any, function: Any, *arguments: Any, **named: Any) -> Any:
        """Return the result of a method, at the cost of the length of its text or list."""
        _spend_on(getattr(function, "__self__", None))
        return _bound_value(super().call(context, function, *arguments, **named))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator, bounded where texts and lists are added or numbers multiplied."""
        numbers = all(isinstance(side, _NUMBERS) for side in (left, right))
        if operator in "*%" and not numbers:
            raise SecurityError(f"{operator} takes numbers")
        if operator == "+" and not numbers:
            _spend_on(left, right)  # before they are added
        found = _bound_value(super().call_binop(context, operator, left, right))
        if isinstance(found, int) and abs(found) > MOST_NUMBER:
            raise SecurityError(f"a number is larger than {MOST_NUMBER:.0e}")
        return found


def _bound_filter(function: Callable[..., Any], *, missing: bool, of_text: bool) -> Callable[..., Any]:
    """Return a Jinja filter with a bounded result and the marks by which Jinja passes it a context.

    ``missing``: the filter accepts missing values, of which others would make a text. ``of_text``: it makes a text of
    any value.
    """

    @functools.wraps(function)
    def filtered(*arguments: object, **named: object) -> Any:
        if of_text:
            arguments = (_to_writable(arguments[0]), *arguments[1:])
        _spend_on(*(arguments if missing else map(_require_present, arguments)))
        return _bound_value(function(*arguments, **named))

    return filtered
