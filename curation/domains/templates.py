"""Jinja templates over a row's columns, in a sandbox whose work is bounded.

The language is a small part of Jinja's: output, ``if``, ``for``, comparisons and tests, items, attributes and slices of
columns, and the filters of :data:`FILTERS`. There is no arithmetic and no call, so only filters and loops make work: a
text has at most ``MOST_CHARACTERS``, and a row makes at most ``MOST_WORK`` characters in all. Anything else is refused
when the template is made. Templates may be untrusted: a trust package brings one.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from curation.domains import read_cell_text
from curation.errors import ConfigError, RowError
from curation.escaping import format_error

MOST_CHARACTERS = 1_000_000
"""The maximum number of characters of a rendered text, and of any text made while it is rendered."""
MOST_WORK = 10_000_000
"""The maximum number of characters made while one row is rendered; an iteration of a loop counts as ``TURN``."""
TURN = 1_000
MOST_SOURCE = 100_000
"""Maximum length of a template, in characters."""
ROW = "row"
"""The name by which a template finds all columns, also those whose names are no identifiers: ``row['the text']``."""


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


def _to_text(value: object) -> str:
    """Return the text of a value; ``RowError`` of a missing one, and of lists and objects other than chat messages."""
    if value is None:
        raise RowError("null_field: the template writes a value that is missing in this row")
    if not isinstance(value, Iterable) or isinstance(value, str | jinja2.Undefined):
        return str(value)
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


def _join(values: Iterable[object], between: str = "") -> str:
    parts = [_to_text(value) for value in _iter_turns(values)]
    budget.spend(sum(map(len, parts)) + len(str(between)) * len(parts))  # before they are joined
    return str(between).join(parts)


def _replace(text: str, old: str, new: str) -> str:
    budget.spend(text.count(str(old)) * len(str(new)))
    return text.replace(str(old), str(new))


_OF_TEXT: Mapping[str, Callable[..., str]] = {
    "lower": str.lower,
    "replace": _replace,
    "trim": str.strip,
    "truncate": lambda text, length=255: text if len(text) <= int(length) else f"{text[: int(length)]}...",
    "upper": str.upper,
}
_OF_VALUES: Mapping[str, Callable[..., Any]] = {
    "join": _join,
    "length": len,
    "tojson": lambda value: json.dumps(value, ensure_ascii=False, default=str),
}
FILTERS = ("default", *sorted({**_OF_TEXT, **_OF_VALUES}))
"""The filters that a template may use."""


def _filter_bounded(function: Callable[..., Any], of_text: bool, value: object, *arguments: object) -> Any:
    """Apply a filter at the cost of the lengths of its input and text; ``RowError``: ``null_field``, ``too_long``."""
    if value is None or of_text:
        value = _to_text(value)
    budget.spend(len(value) if isinstance(value, str | list | tuple | dict) else 1)
    found = function(value, *arguments)
    if isinstance(found, str) and len(found) > MOST_CHARACTERS:
        raise RowError(f"too_long: an expression of the template has more than {MOST_CHARACTERS:,} characters")
    budget.spend(len(found) if isinstance(found, str) else 0)
    return found


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with :data:`FILTERS` alone: no functions, and no methods of values."""

    def __init__(self) -> None:
        super().__init__(undefined=jinja2.StrictUndefined, finalize=_to_text, autoescape=False)
        self.globals = {}
        self.filters = {
            "default": self.filters["default"],
            "_turns": _iter_turns,
            **{name: partial(_filter_bounded, function, True) for name, function in _OF_TEXT.items()},
            **{name: partial(_filter_bounded, function, False) for name, function in _OF_VALUES.items()},
        }

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Return whether a template may read an attribute: data alone."""
        return super().is_safe_attribute(obj, attr, value) and not callable(value)


# fmt: off
_NODES: tuple[type[nodes.Node], ...] = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Name, nodes.Const, nodes.Getattr,
    nodes.Getitem, nodes.Slice, nodes.Filter, nodes.Test, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not,
    nodes.Neg, nodes.CondExpr, nodes.List, nodes.Tuple,
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
            for node in tree.find_all(nodes.Node):
                is_ours = isinstance(node, nodes.Filter) and node.name.startswith("_")
                if not isinstance(node, _NODES) or is_ours or (isinstance(node, nodes.For) and node.recursive):
                    raise jinja2.TemplateSyntaxError(
                        f"{type(node).__name__} cannot be used in a prompt, but if, for, comparisons, columns and the "
                        f"filters {', '.join(FILTERS)}",
                        getattr(node, "lineno", 1),
                    )
            self.columns = tuple(sorted(_find_columns(tree)))
            """The columns that it reads, sorted."""
            for loop in tree.find_all(nodes.For):
                loop.iter = nodes.Filter(loop.iter, "_turns", [], [], None, None, lineno=loop.lineno)
            code = environment.compile(tree)
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


def _find_columns(tree: nodes.Template) -> set[str]:
    """Return the columns that a template reads: its free names, and the constant keys of ``row``, its only use."""
    names = meta.find_undeclared_variables(tree)
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
