"""Draws public names with their docstrings, and messages of errors, for a reader to judge.

``python docs/draw.py --seed 1``: a third of the draw are messages. Equal seeds draw equal places of equal code.
"""

import argparse
import ast
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

PRODUCT = ("curation", "train", "tune")


def find_docstrings(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[int, str]]:
    """Yield public classes, functions, fields and constants that have a docstring, as line and ``name: docstring``."""
    for node, after in pairwise([*body, ast.Pass()]):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name, text = node.name, ast.get_docstring(node)
        elif isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(after, ast.Expr):
            name = ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])
            text = getattr(after.value, "value", None)
        else:
            continue
        if not name.startswith("_") and isinstance(text, str):
            yield node.lineno, f"{owner}{name}: {' '.join(text.split())}"
        if isinstance(node, ast.ClassDef) and not name.startswith("_"):
            yield from find_docstrings(node.body, f"{owner}{node.name}.")


def find_messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the messages of errors as code, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Raise(exc=ast.Call(args=[ast.JoinedStr() | ast.Constant(), *_]) as error):
                yield node.lineno, ast.unparse(error)


def draw(root: Path, seed: int, number: int) -> list[str]:
    """Return lines ``path:line text``, a third of them messages."""
    docstrings, messages = [], []
    for path in sorted(path for part in PRODUCT for path in (root / part).rglob("*.py")):
        tree, place = ast.parse(path.read_text()), path.relative_to(root)
        docstrings += [f"{place}:{line} {text}" for line, text in find_docstrings(tree.body)]
        messages += [f"{place}:{line} {text}" for line, text in find_messages(tree)]
    chance = random.Random(seed)
    return chance.sample(docstrings, number - number // 3) + chance.sample(messages, number // 3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=60)
    given = parser.parse_args()
    print("\n".join(draw(Path(__file__).resolve().parents[1], given.seed, given.number)))
