"""Refuses docstrings and names that a newcomer has to guess at: ``python docs/words.py [CHECKOUT]``, in ``make check``.

A docstring begins with a noun or a verb, not with a preposition or a pronoun that points at its own code; that of a
function begins with a verb in the imperative ("Return ...", "Compute ..."), unless it is a property. The name of a
module's function and of a private method begins with a verb, too. A name is the field's term; a class has its name for
itself. docs/reference and docs/configuration.md are made of these docstrings.

``--draw SEED`` prints 20 docstrings, 20 names and 20 messages that are drawn at random, to be judged by a reader.
"""

import argparse
import ast
import random
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

PRODUCT = ("curation", "train", "tune")
IDIOMS = frozenset({"Made"})
"""Class names that stages define in their class on purpose."""
OPENINGS = frozenset({"Of", "By", "As", "Its", "That", "What", "Those"})
"""First words that no docstring has."""
NO_VERB = re.compile(
    "(A|About|All|An|At|Both|Each|Every|Everything|For|From|How|In|It|Itself|None|Equal|Nothing|One|Only|Rows|Some|The|Their|There"
    "|These|They|This|Whether|When|Where|Which|Who|Whose|Why|With|Without|[^A-Z].*|[A-Z][a-z]*(ds|kes|des|tes|ns))$"
)
"""First words that no function's docstring has."""
PROPERTIES = frozenset({"property", "cached_property"})
NO_CALLS = PROPERTIES | {"contextmanager", "command", "group", "field_validator", "model_validator", "field_serializer"}
"""Decorators of functions that are not called by their names."""
VERBS = frozenset(
    re.findall(
        r"\w+",
        """
        accept add advance afford align allocate annotate answer append apply as ask assign attempt average bar
        beat bin bound break build buy calibrate call can cast change charge check choose claim clean clip close
        closes cluster collate collect combine come commit compact compare compile complete compute concat
        conclude convert copy count crash create cut decide decode decompose delete derive describe detect digest
        discover divide draft draw drop echo emit encode end enter equals escape estimate evaluate examine exchange
        exercise expand explain export fail feed fetch fill filter find fine fingerprint finish fit flatten fold
        follow forecast foresee forget format free from gather get give go grade group grow guard has hash hash64
        hide hold hurry import include init insert inspect invert invoke is isolate iter join judge keep kill
        label launch learn leave let limit list load locate log look main make map mark mask match matches measure
        merge mix mount move name narrow needs nest normalise note notice open order override overrule pack parse
        pass permute pickle pin place plan pool praise predict prefer prepare preview probe project prompt propose
        publish push put quote raise rank rate reach read rebuild recall receive record redact reduce refuse reinforce
        release remove rename render renew replace report require resample resolve restore result review rewrite
        roll round run sample save say scale scan score seal search select send serialise serve set settle shift
        shorten show shuffle sign sleep solve sort spend spill split spread squeeze stack start step stop store
        stream strip subtract suggest sum summarise sync take takes tally tell test tidy to tokenise tokenize
        train translate trim truncate trust try tune unpack update upload use uses validate verify wait walk warn watch
        weigh widen withhold work wrap write yield zero
        """,
    )
)
"""First words of functions' names; ``with_`` and ``without_`` return a copy so changed. A new one is added here."""
NO_VERBS = frozenset({"auc", "brier", "ece", "with", "without"})
"""First words of functions that mathematics or Python names so."""
FIXED = frozenset(
    {
        "active",
        "completion_batch",
        "dtypes",
        "error_batch",
        "features",
        "figures",
        "lines",
        "ok",
        "parts",
        "plain_identity",
        "sections",
        "session",
        "setting",
    }
)
"""Functions that docs, configurations or a registry call by a noun."""
NAMES = {
    "Asked": "TeacherUse",
    "Others": "HelperModels",
    "by_rays_names": "ray_resources",
    "misfit": "schema_problem",
    "taught_the_format": "adapted_teacher",
    "told": "words",
    "whole": "the noun that it is said of, such as integer or full_name",
}
"""Names that no function, class, argument, variable or module has, and what to write instead."""


def refused(root: Path) -> Iterator[str]:
    """Lines ``path:line: what is wrong, and the mend``.

    Raises:
        FileNotFoundError: the folder is no checkout of the project.
    """
    classes: dict[str, str] = {}
    for part in PRODUCT:
        if not (root / part).is_dir():
            raise FileNotFoundError(f"{root}: has no folder {part}")
        for path in sorted((root / part).rglob("*.py")):
            place, tree = path.relative_to(root), ast.parse(path.read_text())
            if path.stem in NAMES:
                yield f"{place}:1: a module is called {path.stem}; call it {NAMES[path.stem]}"
            for line, text in _docstrings(tree):
                if (word := text.split(maxsplit=1)[0].rstrip(",.:;")) in OPENINGS:
                    yield f"{place}:{line}: a docstring begins with {word!r}; begin with a noun or a verb"
            for line, word in _functions(tree):
                if NO_VERB.match(word):
                    yield f"{place}:{line}: a function's docstring begins with {word!r}; begin with a verb: Return ..."
            for line, name in _function_names(tree):
                if name.strip("_").split("_")[0] not in VERBS | NO_VERBS and name not in FIXED:
                    yield f"{place}:{line}: a function is called {name}; begin with a verb (VERBS in docs/words.py)"
            for line, name in sorted(set(_names(tree))):
                if name in NAMES:
                    yield f"{place}:{line}: {name!r} is no name; write {NAMES[name]}"
            for line, name in _classes(tree):
                if (first := classes.setdefault(name, f"{place}:{line}")) != f"{place}:{line}":
                    yield f"{place}:{line}: a class {name} stands at {first} too; give one a name that says what it is"


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings of modules, classes and functions, and those under fields and constants, with their lines."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        own = node.body[:1]
        fields = [] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else _after_fields(node.body)
        for found in [*own, *fields]:
            if isinstance(found, ast.Expr) and isinstance(found.value, ast.Constant):
                text = found.value.value
                if isinstance(text, str) and text.strip():
                    yield found.lineno, text


def _functions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the first words of the docstrings of functions, properties left out, with their lines."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or PROPERTIES & set(_decorators(node)):
            continue
        if text := ast.get_docstring(node):
            yield node.body[0].lineno, text.split(maxsplit=1)[0].rstrip(",.:;")


def _function_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield names of a module's functions and of private methods, less :data:`NO_CALLS`, with their lines."""
    methods = [(node, True) for owner in ast.walk(tree) if isinstance(owner, ast.ClassDef) for node in owner.body]
    for node, is_method in [*((node, False) for node in tree.body), *methods]:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("__"):
            continue
        if not (is_method and not node.name.startswith("_")) and not NO_CALLS & set(_decorators(node)):
            yield node.lineno, node.name


def _decorators(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for found in function.decorator_list:
        found = found.func if isinstance(found, ast.Call) else found
        yield found.id if isinstance(found, ast.Name) else getattr(found, "attr", "")


def _after_fields(body: list[ast.stmt]) -> list[ast.stmt]:
    return [after for before, after in pairwise(body) if isinstance(before, ast.Assign | ast.AnnAssign)]


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names that the module defines, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def _classes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Classes that the module defines, with their lines, less those whose name is an idiom."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name not in IDIOMS:
            yield node.lineno, node.name


def draw(root: Path, seed: int, each: int = 20) -> Iterator[str]:
    """Yield ``each`` docstrings, names of functions and classes, and messages of errors and logs, drawn at random."""
    found: dict[str, list[str]] = {"docstring": [], "name": [], "message": []}
    for path in sorted(path for part in PRODUCT for path in (root / part).rglob("*.py")):
        place, tree = path.relative_to(root), ast.parse(path.read_text())
        found["docstring"] += [f"{place}:{line}: {text}" for line, text in _docstrings(tree)]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("__"):
                found["name"].append(f"{place}:{node.lineno}: {node.name}")
            elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                found["message"].append(f"{place}:{node.lineno}: {ast.unparse(node.exc.args[-1])}")
            elif isinstance(node, ast.Call) and re.match(
                r"(log\.(info|warning|error)|click\.echo)$", ast.unparse(node.func)
            ):
                found["message"] += [f"{place}:{node.lineno}: {ast.unparse(text)}" for text in node.args[:1]]
    chance = random.Random(seed)
    for kind, population in found.items():
        yield f"\n{each} of {len(population):,} {kind}s:"
        yield from chance.sample(population, each)


def main() -> None:
    """Print what is refused, or with ``--draw`` a sample; the exit status says whether anything is refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--draw", type=int, metavar="SEED")
    given = parser.parse_args()
    if given.draw is not None:
        print("\n".join(draw(given.checkout, given.draw)))
        return
    found = list(refused(given.checkout))
    print("\n".join(found) or "no docstring or name is refused")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
