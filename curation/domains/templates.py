"""Jinja templates over a row's columns, in a sandbox whose work is bounded.

The language is a part of Jinja's: output, ``if``, ``for``, ``set``, arithmetic, ``~``, tests, ``range``, and the
filters and methods named here. What could make a text of any length, run for ever or leave the sandbox (macros,
includes, ``**``, ``format``, ``center``, other methods) is refused when the template is made, or fails the row: a text
grows no longer than ``MOST_CHARACTERS``, a row makes no more than ``MOST_WORK`` characters in all, and numbers stay
below ``MOST_NUMBER``. A template may be a stranger's, as a trust package brings one.
"""

import functools
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment

from curation.domains.turns import read_cell_text
from curation.errors import ConfigError, RowError
from curation.escaping import format_error

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

    def spend(self, amount: int) -> None:
        """Subtract an amount of work from the budget; ``RowError`` ``too_long`` if nothing is left."""
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


def _concat(parts: Iterable[object], between: str = "") -> str:
    texts = [str(_to_writable(part)) for part in parts]
    budget.spend(sum(map(len, texts)) + len(between) * len(texts))  # before they are joined
    return str(_bound_value(between.join(texts)))


def _join(values: Iterable[object], between: str = "", attribute: str | None = None) -> str:
    parts = [value if attribute is None else value[attribute] for value in _iter_turns(values)]
    return _concat(parts, str(between))


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
        own = {"join": _join, "replace": _replace, "round": _round, "sum": _sum, "tojson": _to_json}
        self.filters = {**known, **own, "truncate": _truncate, "_turns": _iter_turns, "_concat": _concat}
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


MOST_SOURCE = 100_000
"""Maximum length of a template, in characters."""
ROW = "row"
"""The name by which a template finds all columns, also those whose names are no identifiers: ``row['the text']``."""

# fmt: off
_NODES: tuple[type[nodes.Node], ...] = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign, nodes.Name, nodes.Const,
    nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Filter, nodes.Test, nodes.Compare, nodes.Operand, nodes.And,
    nodes.Or, nodes.Not, nodes.CondExpr, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.Concat,
    nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Neg, nodes.Pos, nodes.Call,
)
# fmt: on


class Template:
    """A template over the columns of a row.

    Args:
        source: the template's text.
        key: where it stands in the configuration, for messages.
    """

    def __init__(self, source: str, *, key: str) -> None:
        if not isinstance(source, str) or not source.strip():
            raise ConfigError(f"{key}: {source!r} is not a template; give a text with {{{{ column }}}} in it")
        if len(source) > MOST_SOURCE:
            raise ConfigError(f"{key}: has {len(source):,} characters, more than {MOST_SOURCE:,}; shorten it")
        environment = BoundedEnvironment()
        budget.left = MOST_WORK  # of what is computed once, when it is compiled
        try:
            tree = environment.parse(source)
            _check(tree)
            self.columns = tuple(sorted(_find_columns(tree)))
            """The columns that it reads, sorted."""
            for loop in tree.find_all(nodes.For):
                loop.iter = _make_filter(loop.iter, "_turns")
            code = environment.compile(_without_concat(tree))
            self._template = jinja2.Template.from_code(environment, code, environment.globals)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"{key}: line {error.lineno}: {error.message}; correct the template") from error
        except RecursionError:
            raise ConfigError(f"{key}: its expressions are nested too deep; make it simpler") from None
        if not self.columns:
            raise ConfigError(f"{key}: reads no column, so that all rows have one prompt; put {{{{ column }}}} in it")

    def render(self, row: Mapping[str, object]) -> str:
        """Return the text of a row; ``RowError``: ``null_field``, ``too_long`` (also of work), ``bad_template``."""
        values = {name: row[name] for name in self.columns if name in row}
        budget.left = MOST_WORK
        parts, length = [], 0
        try:
            for part in self._template.generate({**values, ROW: values}):
                length += len(part)
                if length > MOST_CHARACTERS:
                    raise RowError(f"too_long: the rendered text has more than {MOST_CHARACTERS:,} characters")
                parts.append(part)
        except RowError:
            raise
        except (Exception, RecursionError) as error:  # the template's own expressions may raise anything
            raise RowError(f"bad_template: {type(error).__name__}: {format_error(error)}") from error
        return "".join(parts)


def _check(tree: nodes.Template) -> None:
    """Raise ``TemplateSyntaxError`` for a template that uses anything outside the language."""
    for node in tree.find_all(nodes.Node):
        what = type(node).__name__
        if isinstance(node, nodes.Call):
            function = node.node
            known = isinstance(function, nodes.Getattr) or (
                isinstance(function, nodes.Name) and function.name == "range"
            )
            if known and node.dyn_args is None and node.dyn_kwargs is None:
                continue
            what = f"the call of {getattr(function, 'name', 'an expression')}"
        elif isinstance(node, nodes.For) and node.recursive:
            what = "a recursive loop"
        elif isinstance(node, nodes.Filter) and node.name.startswith("_"):
            what = f"the filter {node.name}"
        elif isinstance(node, _NODES):
            continue
        elif isinstance(node, nodes.Pow):
            what = "**"
        raise jinja2.TemplateSyntaxError(f"{what} cannot be used in a prompt", getattr(node, "lineno", 1))


def _find_columns(tree: nodes.Template) -> set[str]:
    """Return the columns that a template reads: its free names, and the constant keys of ``row``, its only use."""
    names = meta.find_undeclared_variables(tree) - {"range"}
    if ROW not in names:
        return names
    keys, uses = set(), 0
    reads: list[Any] = [*tree.find_all(nodes.Getitem), *tree.find_all(nodes.Getattr)]
    for node in reads:
        if isinstance(node.node, nodes.Name) and node.node.name == ROW:
            key = node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)
            if isinstance(key, str):
                keys.add(key)
                uses += 1
    if uses < sum(name.name == ROW for name in tree.find_all(nodes.Name)):
        raise jinja2.TemplateSyntaxError(f"{ROW} takes the name of a column, as {ROW}['the text']", 1)
    return (names - {ROW}) | keys


def _without_concat(node: Any) -> Any:
    """Return the node with a filter that counts characters in place of ``~``."""
    for field, value in node.iter_fields():
        if isinstance(value, list):
            setattr(node, field, [_without_concat(item) if isinstance(item, nodes.Node) else item for item in value])
        elif isinstance(value, nodes.Node):
            setattr(node, field, _without_concat(value))
    return (
        _make_filter(nodes.List(node.nodes, lineno=node.lineno), "_concat") if isinstance(node, nodes.Concat) else node
    )


def _make_filter(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
