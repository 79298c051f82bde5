"""Jinja templates over a row's columns, in a sandbox whose work is bounded.

The language is a part of Jinja's: output, ``if``, ``for``, ``set``, arithmetic, ``~``, tests, ``range``, and the
filters and methods that :mod:`curation.domains.template_sandbox` names. What could make a text of any length, run for
ever or leave the sandbox (macros, includes, ``**``, ``format``, ``center``, other methods) is refused when the template
is made, or fails the row. A template may be a stranger's, as a trust package brings one.
"""

from collections.abc import Mapping
from typing import Any

import jinja2
from jinja2 import meta, nodes

from curation.domains.template_sandbox import MOST_CHARACTERS, BoundedEnvironment, budget
from curation.errors import ConfigError, RowError
from curation.escaping import format_error

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

    Raises:
        ConfigError: its syntax is wrong, it uses something that is not allowed, or it reads no column.
    """

    def __init__(self, source: str, *, key: str) -> None:
        if not isinstance(source, str) or not source.strip():
            raise ConfigError(f"{key}: {source!r} is not a template; give a text with {{{{ column }}}} in it")
        if len(source) > MOST_SOURCE:
            raise ConfigError(f"{key}: has {len(source):,} characters, more than {MOST_SOURCE:,}; shorten it")
        environment = BoundedEnvironment()
        budget.refill()  # of what is computed once, when it is compiled
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
        """Return the text of a row.

        Raises:
            RowError: ``null_field``: it writes a value that is missing; ``too_long``: it is longer, or costs more work,
                than allowed; ``bad_template``: an expression fails for this row.
        """
        values = {name: row[name] for name in self.columns if name in row}
        budget.refill()
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
    """Refuse a template that uses anything outside the language.

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


def _find_columns(tree: nodes.Template) -> set[str]:
    """Return the columns that a template reads: its free names, and the constant keys of ``row``.

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
