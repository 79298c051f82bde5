"""What a test asserts, read from its code: the texts and numbers that must have come about for it to pass.

They stand in ``assert`` and in ``pytest.raises(match=...)``, of the test and of the helpers of its file that it calls.
A name stands for what the test, a ``parametrize`` above it or the file gives it. Not counted: what an assertion denies
(``not in``, ``not``, ``!=``), what it gives to the code under test (the arguments of calls, but of those that look for
a text), and what stands in a text of the file beside all that.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
LOOK_FOR = {"startswith", "endswith", "search", "match", "fullmatch", "escape", "any", "all", "count", "fromkeys"}
"""Calls whose arguments are what is looked for."""
GAP = "\0"
"""Within a text: what is put in when the test runs."""


class Asserted(NamedTuple):
    """What a test asserts."""

    texts: frozenset[str]
    """Regular expressions without their escapes; ``GAP`` stands for what is put in."""
    numbers: frozenset[int]

    def says(self, parts: list[str]) -> bool:
        """Whether each part stands in a text."""
        return bool(parts) and all(any(part in text for text in self.texts) for part in parts)


class Unknown(Exception):
    """There is no such test, or it never runs."""


def asserted(name: str) -> Asserted:
    """What the test ``file::function`` below tests/ asserts.

    Raises:
        Unknown: there is no such file or function, or it is skipped or expected to fail wherever it runs.
    """
    file, _, function = name.partition("::")
    path = TESTS / file
    if not path.is_file():
        raise Unknown(f"{file}: there is no such file")
    return asserted_in(path.read_text(), function)


def asserted_in(code: str, function: str) -> Asserted:
    """What a function of this code asserts; see :func:`asserted`."""
    module = _parsed(code)
    test = module.functions.get(function)
    if test is None:
        raise Unknown(f"{function}: there is no such test")
    marks = [ast.unparse(mark) for mark in test.decorator_list]
    if any(re.search(r"mark\.(skip|xfail)\b", mark) for mark in marks):
        raise Unknown(f"{function}: is skipped or expected to fail")
    texts: set[str] = set()
    numbers: set[int] = set()
    for node in _of_function(module, test, {function}):
        text = _text(node)
        if text is not None:
            texts.add(text)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
            numbers.add(node.value)
    return Asserted(frozenset(texts), frozenset(numbers))


class _Module(NamedTuple):
    functions: dict[str, ast.FunctionDef]
    names: dict[str, ast.expr]
    """What the file's own names are."""


@cache
def _parsed(code: str) -> _Module:
    body = ast.parse(code).body
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    return _Module(functions, dict(_given(body)))


def _given(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """The names that statements give a value, also within blocks."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                yield node.targets[0].id, node.value


def _of_function(module: _Module, function: ast.FunctionDef, seen: set[str]) -> Iterator[ast.expr]:
    names = {**module.names, **dict(_given(function.body))}
    given = [value for mark in function.decorator_list for value in _parametrized(mark)]
    for node in ast.walk(function):
        found: list[ast.expr] = []
        if isinstance(node, ast.Assert):
            found = [node.test]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("raises"):
            found = [word.value for word in node.keywords if word.arg == "match"]
        for item in found:
            yield from _constants(item, names, given, frozenset())
        if isinstance(node, ast.Name) and node.id in module.functions and node.id not in seen:
            seen.add(node.id)
            yield from _of_function(module, module.functions[node.id], seen)


def _parametrized(mark: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Name and value of each parameter of a ``parametrize``."""
    if not (isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("parametrize") and len(mark.args) > 1):
        return
    names, rows = mark.args[:2]
    known = [item.value for item in names.elts if isinstance(item, ast.Constant)] if hasattr(names, "elts") else []
    single = isinstance(names, ast.Constant)
    for row in getattr(rows, "elts", []):
        if isinstance(names, ast.Constant):
            yield str(names.value), row
        elif not single and hasattr(row, "elts"):
            yield from zip(map(str, known), row.elts, strict=False)


def _constants(
    node: ast.expr, names: dict[str, ast.expr], given: list[tuple[str, ast.expr]], seen: frozenset[str]
) -> Iterator[ast.expr]:
    """The constants that an assertion asks for."""
    match node:
        case ast.Constant() | ast.JoinedStr():
            yield node
        case ast.Name(id=name) if name not in seen:
            own = [names[name]] if name in names else []
            for value in [value for known, value in given if known == name] or own:
                yield from _constants(value, names, given, seen | {name})
        case ast.UnaryOp(op=ast.Not()):
            return
        case ast.Compare(ops=ops) if any(isinstance(op, ast.NotIn | ast.NotEq) for op in ops):
            return
        case ast.Call(func=func, args=args):
            for item in args if ast.unparse(func).rpartition(".")[2] in LOOK_FOR else ():
                yield from _constants(item, names, given, seen)
        case ast.Subscript(value=value):  # what stands in the brackets is a key
            yield from _constants(value, names, given, seen)
        case _:
            for item in ast.iter_child_nodes(node):
                if isinstance(item, ast.expr):
                    yield from _constants(item, names, given, seen)
                elif isinstance(item, ast.comprehension):
                    yield from _constants(item.iter, names, given, seen)


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.replace("\\", "")
    if isinstance(node, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values]
        return "".join(parts).replace("\\", "")
    return None
