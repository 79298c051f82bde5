"""Counts what a reader of the code has to carry: ``python docs/size.py [CHECKOUT] [--list NAME] [--check]``.

The numbers of docs/architecture.md's house: product lines, functions that are long or take much, ``Any``, class names
that are defined more than once, imports within functions. They say where to look, and no more than that. A second
checkout, for instance ``git worktree add ../before COMMIT``, is counted for a comparison. ``--check`` holds the lines
of each package against its budget.
"""

import argparse
import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

PRODUCT = ("curation", "train", "tune")
MOST_PARAMETERS, MOST_LINES = 8, 60
SHORT_FILE, SHORT_FUNCTION = 60, 6
TEMPLATES = frozenset({".css", ".html", ".j2", ".js", ".yaml"})
"""Endings of the product's files that are no Python and have logic or texts."""
BUDGETS: dict[str, int] = {
    "curation": 2_045,
    "curation/cluster": 705,
    "curation/commands": 2_450,
    "curation/config": 3_670,
    "curation/domains": 3_645,
    "curation/extras": 6_415,
    "curation/filter": 2_345,
    "curation/metrics": 1_585,
    "curation/models": 910,
    "curation/passes": 1_800,
    "curation/pipeline": 2_750,
    "curation/report": 3_835,
    "curation/rundir": 1_570,
    "curation/selection": 2_120,
    "curation/signals": 500,
    "curation/sources": 1_440,
    "curation/stages": 5_290,
    "curation/storage": 1_500,
    "curation/tables": 1_605,
    "curation/teachers": 4_535,
    "curation/telemetry": 410,
    "curation/trust": 2_100,
    "train": 2_935,
    "tune": 860,
    "templates": 1_465,
}
"""The most lines of a package, and of all templates.

A change lowers what it makes smaller; who needs more says in the commit what for.
"""
IDIOMS = frozenset({"Made"})
"""Class names that stages define in their class on purpose."""


def count(root: Path) -> dict[str, list[str]]:
    """Places by what is counted; a place is ``path:line name``.

    Raises:
        FileNotFoundError: the folder is no checkout of the project.
    """
    found: dict[str, list[str]] = {name: [] for name in NAMES}
    classes: dict[str, list[str]] = defaultdict(list)
    for path, tree in _trees(root):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id == "Any":
                found["uses of Any"].append(f"{path}:{node.lineno}")
            elif isinstance(node, ast.ClassDef) and node.name not in IDIOMS:
                classes[node.name].append(f"{path}:{node.lineno} {node.name}")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                place = f"{path}:{node.lineno} {node.name}"
                if (number := _num_parameters(node)) > MOST_PARAMETERS:
                    found[f"functions of more than {MOST_PARAMETERS} parameters"].append(f"{place}: {number}")
                if (number := (node.end_lineno or node.lineno) - node.lineno + 1) > MOST_LINES:
                    found[f"functions of more than {MOST_LINES} lines"].append(f"{place}: {number}")
        found["imports within functions"] += [f"{path}:{line}" for line in sorted(_inner_imports(tree))]
    found[f"files of fewer than {SHORT_FILE} lines"] = [
        f"{path.relative_to(root)}: {number}"
        for path in _files(root)
        if 1 < (number := len(path.read_text().splitlines())) < SHORT_FILE
    ]
    found[f"functions of at most {SHORT_FUNCTION} lines with one caller"] = _called_once(root)
    found["class names in two places or more"] = [
        f"{name}: {', '.join(place.rpartition(' ')[0] for place in places)}"
        for name, places in sorted(classes.items())
        if len(places) > 1
    ]
    return found


NAMES = (
    f"functions of more than {MOST_PARAMETERS} parameters",
    f"functions of more than {MOST_LINES} lines",
    f"functions of at most {SHORT_FUNCTION} lines with one caller",
    f"files of fewer than {SHORT_FILE} lines",
    "uses of Any",
    "class names in two places or more",
    "imports within functions",
)


def num_lines(root: Path) -> dict[str, int]:
    """Return the lines of the product's Python files by package, and of its ``templates``."""
    found: Counter[str] = Counter()
    for path in _files(root):
        *folders, _ = path.relative_to(root).parts
        found["/".join(folders[:2])] += len(path.read_text().splitlines())
    others = (path for folder in PRODUCT for path in (root / folder).rglob("*") if path.suffix in TEMPLATES)
    return dict(sorted(found.items())) | {"templates": sum(len(path.read_text().splitlines()) for path in others)}


def over_budget(root: Path) -> list[str]:
    """Return a line for each package that has more lines than its budget, or none."""
    lines = num_lines(root)
    return [
        f"{package}: {number:,} lines, budget {BUDGETS.get(package, 0):,}; make it smaller, or raise the budget in "
        "docs/size.py and say in the commit what for"
        for package, number in lines.items()
        if number > BUDGETS.get(package, 0)
    ]


def code_lines_a_function(root: Path) -> float:
    """Return the mean number of lines of a function, without its docstring."""
    lengths = []
    for _, tree in _trees(root):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths.append(_num_code_lines(node))
    return sum(lengths) / len(lengths)


def _num_code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first, *more = node.body
    has_text = ast.get_docstring(node, clean=False) is not None
    if has_text and not more:
        return 1
    body = more if has_text else [first]
    return 1 + (node.end_lineno or node.lineno) - body[0].lineno + 1


def _called_once(root: Path) -> list[str]:
    """Functions of a module, hidden in it, that are short and named once beside their definition."""
    found = []
    for path, tree in _trees(root):
        uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("_") or node.decorator_list:
                continue
            if uses[node.name] == 1 and _num_code_lines(node) <= SHORT_FUNCTION + 1:
                found.append(f"{path}:{node.lineno} {node.name}")
    return found


def _files(root: Path) -> list[Path]:
    found = sorted(path for folder in PRODUCT for path in (root / folder).rglob("*.py"))
    if not found:
        raise FileNotFoundError(f"{root}: no Python file under {', '.join(PRODUCT)}; name a checkout of the project")
    return found


def _trees(root: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in _files(root):
        yield path.relative_to(root), ast.parse(path.read_text())


def _num_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Parameters that a caller gives."""
    given = [*node.args.posonlyargs, *node.args.args]
    is_bound = bool(given) and given[0].arg in ("self", "cls")
    return len(given) - is_bound + len(node.args.kwonlyargs)


def _inner_imports(tree: ast.Module) -> set[int]:
    """The lines of imports within functions, each once."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    inner = (node for function in functions for node in ast.walk(function))
    return {node.lineno for node in inner if isinstance(node, ast.Import | ast.ImportFrom)}


def main() -> None:
    """Print the counts, or the places of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="?", default=Path(__file__).parents[1])
    parser.add_argument("--list", choices=NAMES, help="print the places of a count")
    parser.add_argument("--check", action="store_true", help="fail where a package is over its budget")
    given = parser.parse_args()
    if given.check:
        if over := over_budget(given.checkout):
            parser.exit(1, "\n".join([*over, ""]))
        return
    try:
        found = count(given.checkout)
    except FileNotFoundError as error:
        parser.error(str(error))
    if given.list is not None:
        print("\n".join(found[given.list]))
        return
    lines = num_lines(given.checkout)
    for package, number in lines.items():
        print(f"{number:8,} {package}, budget {BUDGETS.get(package, 0):,}")
    python = sum(lines.values()) - lines["templates"]
    print(f"{python:8,} lines in {len(_files(given.checkout)):,} Python files of {', '.join(PRODUCT)}")
    print(f"{code_lines_a_function(given.checkout):8.1f} code lines a function")
    for name, places in found.items():
        print(f"{len(places):8,} {name}")


if __name__ == "__main__":
    main()
