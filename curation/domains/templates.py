"""Jinja templates over a row's columns, in a sandbox whose work is bounded.

The language is a part of Jinja's: output, ``if``, ``for``, ``set``, arithmetic, ``~``, tests, ``range``, and the
filters and methods named here. What could make a text of any length, run for ever or leave the sandbox (macros,
includes, ``**``, ``format``, ``center``, other methods) is refused when the template is made, or fails the row. A
template may be a stranger's, as a trust package brings one.
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

from curation.errors import ConfigError, RowError
from curation.escaping import message

MOST_CHARACTERS = 1_000_000
"""Characters of a rendered text, and of any text that a template makes on the way."""
MOST_WORK = 10_000_000
"""Characters that the rendering of one row makes in all; a turn of a loop counts as ``TURN``."""
TURN = 1_000
MOST_SOURCE = 100_000
"""Characters of a template."""
ROW = "row"
"""The name under which a template finds all columns, for those whose names are no identifiers: ``row['the text']``."""

_FOR_MISSING = ("default", "d")
_FILTERS = [
    "abs",
    "capitalize",
    "count",
    "default",
    "d",
    "dictsort",
    "escape",
    "e",
    "first",
    "float",
    "int",
    "items",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "sort",
    "string",
    "striptags",
    "title",
    "trim",
    "unique",
    "upper",
    "wordcount",
]
_METHODS = frozenset(
    [
        "strip",
        "lstrip",
        "rstrip",
        "upper",
        "lower",
        "title",
        "capitalize",
        "split",
        "rsplit",
        "splitlines",
        "partition",
        "rpartition",
        "startswith",
        "endswith",
        "removeprefix",
        "removesuffix",
        "count",
        "find",
        "rfind",
        "isdigit",
        "isalpha",
        "get",
        "items",
        "keys",
        "values",
        "isoformat",
    ]
)
_NODES: tuple[type[nodes.Node], ...] = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.If,
    nodes.For,
    nodes.Assign,
    nodes.Name,
    nodes.Const,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Slice,
    nodes.Filter,
    nodes.Test,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.CondExpr,
    nodes.List,
    nodes.Tuple,
    nodes.Dict,
    nodes.Pair,
    nodes.Keyword,
    nodes.Concat,
    nodes.Add,
    nodes.Sub,
    nodes.Mul,
    nodes.Div,
    nodes.FloorDiv,
    nodes.Mod,
    nodes.Neg,
    nodes.Pos,
    nodes.Call,
)
_NUMBERS = (int, float)
MOST_NUMBER = 10**30
"""The largest number that a product may have: powers of integers would grow without end."""


class Template:
    """A template over the columns of a row.

    Args:
        source: the template's text.
        key: where it stands in the configuration, for messages.

    Raises:
        ConfigError: its syntax is wrong, it uses something that is not allowed, or it reads no column.
    """

    def __init__(self, source: str, *, key: str) -> None:
        if not isinstance(source, str) or not source.strip():
            raise ConfigError(f"{key}: {source!r} is no template; give a text with {{{{ column }}}} in it")
        if len(source) > MOST_SOURCE:
            raise ConfigError(f"{key}: has {len(source):,} characters, more than {MOST_SOURCE:,}; shorten it")
        environment = _Environment()
        _budget.left = MOST_WORK  # of what is computed once, when it is compiled
        try:
            tree = environment.parse(source)
            _check(tree)
            self.columns = tuple(sorted(_columns(tree)))
            """The columns that it reads, sorted."""
            code = environment.compile(_counted(tree))
            self._template = jinja2.Template.from_code(environment, code, environment.globals)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"{key}: line {error.lineno}: {error.message}; correct the template") from error
        except RecursionError:
            raise ConfigError(f"{key}: its expressions are nested too deep; make it simpler") from None
        if not self.columns:
            raise ConfigError(f"{key}: reads no column, so that all rows have one prompt; put {{{{ column }}}} in it")

    def render(self, row: Mapping[str, object]) -> str:
        """The text of a row.

        Raises:
            RowError: ``null_field``: it writes a value that is missing; ``too_long``: it is longer, or costs more work,
                than allowed; ``bad_template``: an expression fails for this row.
        """
        values = {name: row[name] for name in self.columns if name in row}
        _budget.left = MOST_WORK
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
            raise RowError(f"bad_template: {type(error).__name__}: {message(error)}") from error
        return "".join(parts)


class _Budget(threading.local):
    left = MOST_WORK

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise RowError(
                f"too_long: the template makes more than {MOST_WORK:,} characters for this row (a turn of a loop "
                f"counts as {TURN:,})"
            )


_budget = _Budget()


def _spend_on(*values: Any) -> None:
    """Pay for reading values."""
    _budget.spend(sum(len(value) for value in values if isinstance(value, str | list | tuple | dict | range)))


def _made(value: object) -> Any:
    """A value that an expression made, where it is not too long."""
    if isinstance(value, str | list | tuple):
        if len(value) > MOST_CHARACTERS:
            raise RowError(f"too_long: an expression of the template has more than {MOST_CHARACTERS:,} characters")
        _budget.spend(len(value))
    return value


def _present(value: object) -> Any:
    if value is None:
        raise RowError("null_field: the template writes a value that is missing in this row")
    return value


def _turns(values: Iterable[object]) -> Iterator[Any]:
    """The values of a loop, each of which costs a turn."""
    for value in values:
        _budget.spend(TURN)
        yield value


def _concat(parts: Iterable[object]) -> str:
    texts = [str(_present(part)) for part in parts]
    _budget.spend(sum(map(len, texts)))  # before they are joined
    return str(_made("".join(texts)))


def _join(values: Iterable[object], between: str = "", attribute: str | None = None) -> str:
    found = [value if attribute is None else value[attribute] for value in _turns(values)]
    texts = [str(_present(value)) for value in found]
    _budget.spend(sum(map(len, texts)) + len(str(between)) * len(texts))
    return str(_made(str(between).join(texts)))


def _tojson(value: object) -> str:
    """A value as JSON; Jinja's own filter escapes signs of HTML, and indents as far as it is told."""
    text = json.dumps(_present(value), ensure_ascii=False, default=str)
    _budget.spend(len(text))
    return str(_made(text))


def _replace(text: str, old: str, new: str) -> str:
    text, old, new = str(_present(text)), str(old), str(new)
    _budget.spend(len(text) + text.count(old) * len(new))
    return str(_made(text.replace(old, new)))


def _truncate(text: str, length: int = 255) -> str:
    text, length = str(_present(text)), int(length)
    return text if len(text) <= length else f"{text[:length]}..."


def _round(value: float, digits: int = 0) -> float:
    return round(float(value), max(-300, min(300, int(digits))))


def _sum(values: Iterable[float]) -> float:
    return sum(value if isinstance(value, _NUMBERS) else float(value) for value in _turns(values))


def _range(*bounds: int) -> range:
    found = range(*bounds)
    if len(found) > MOST_WORK // TURN:
        raise RowError(f"too_long: range{bounds} has more than {MOST_WORK // TURN:,} numbers")
    return found


class _Environment(SandboxedEnvironment):
    """Jinja's sandbox with the filters and methods that are named, and arithmetic whose results are bounded."""

    intercepted_binops = frozenset({"+", "*", "%", "//", "/", "-"})

    def __init__(self) -> None:
        super().__init__(undefined=jinja2.StrictUndefined, finalize=_present, autoescape=False)
        known: dict[str, Callable[..., Any]] = {
            name: _bounded(self.filters[name], missing=name in _FOR_MISSING) for name in _FILTERS
        }
        own = {
            "join": _join,
            "replace": _replace,
            "round": _round,
            "sum": _sum,
            "tojson": _tojson,
            "truncate": _truncate,
        }
        self.filters = {**known, **own, "_turns": _turns, "_concat": _concat}
        self.globals = {"range": _range}

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Data may be read; of methods only the named ones."""
        safe = super().is_safe_attribute(obj, attr, value)
        return safe and (not callable(value) or attr in _METHODS)

    def wrap_str_format(self, value: object) -> None:
        """None: ``format`` is no method of the language, as a width makes a text of any length."""

    def call(self, context: Any, function: Any, *arguments: Any, **named: Any) -> Any:
        """The result of a method, which costs as many characters as the text or list has whose method it is."""
        _spend_on(getattr(function, "__self__", None))
        return _made(super().call(context, function, *arguments, **named))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """The result, where it is bounded: texts and lists are added, and numbers multiplied."""
        numbers = all(isinstance(side, _NUMBERS) for side in (left, right))
        if operator in "*%" and not numbers:
            raise SecurityError(f"{operator} takes numbers")
        if operator == "+" and not numbers:
            _spend_on(left, right)  # before they are added
        found = _made(super().call_binop(context, operator, left, right))
        if isinstance(found, int) and abs(found) > MOST_NUMBER:
            raise SecurityError(f"a number is larger than {MOST_NUMBER:.0e}")
        return found


def _bounded(function: Callable[..., Any], *, missing: bool) -> Callable[..., Any]:
    """A filter of Jinja's whose result is bounded; it keeps the marks by which Jinja passes it a context.

    ``missing``: it is given missing values too, of which others would make a text.
    """

    @functools.wraps(function)
    def filtered(*arguments: Any, **named: Any) -> Any:
        _spend_on(*(arguments if missing else map(_present, arguments)))
        return _made(function(*arguments, **named))

    return filtered


def _check(tree: nodes.Template) -> None:
    """Refuse what is not of the language.

    Raises:
        TemplateSyntaxError: names it and its line.
    """
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


def _columns(tree: nodes.Template) -> set[str]:
    """The columns that a template reads: its free names, and the constant keys of ``row``.

    Raises:
        TemplateSyntaxError: ``row`` is used otherwise, so that nobody knows which columns are read.
    """
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


def _counted(tree: nodes.Template) -> nodes.Template:
    """The template whose loops count their turns, and whose ``~`` counts characters."""
    for node in tree.find_all(nodes.For):
        node.iter = _filter(node.iter, "_turns")
    counted: nodes.Template = _without_concat(tree)
    return counted


def _without_concat(node: Any) -> Any:
    for field, value in node.iter_fields():
        if isinstance(value, list):
            setattr(node, field, [_without_concat(item) if isinstance(item, nodes.Node) else item for item in value])
        elif isinstance(value, nodes.Node):
            setattr(node, field, _without_concat(value))
    return _filter(nodes.List(node.nodes, lineno=node.lineno), "_concat") if isinstance(node, nodes.Concat) else node


def _filter(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
