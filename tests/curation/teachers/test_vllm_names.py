"""How much of vLLM's inside the teacher reads, counted in its source."""

import ast
from pathlib import Path

from curation import teachers
from curation.teachers.vllm_names import RUNNER, STEP

FOLDER = Path(teachers.__file__).parent


def read_of(tree: ast.AST, *roots: str) -> set[str]:
    """Return the dotted attributes that are read of the expressions ``roots``."""
    found = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {name.removeprefix(f"{root}.") for name in found for root in roots if name.startswith(f"{root}.")}


def test_few_private_names_are_read_and_all_are_looked_for_at_the_start():
    worker = ast.parse((FOLDER / "vllm_worker.py").read_text())
    names = read_of(worker, "runner", "self.model_runner")
    longest = {name for name in names if not any(other.startswith(f"{name}.") for other in names)}
    assert longest == set(RUNNER) and read_of(worker, "state") == set(STEP)
    assert len(RUNNER) + len(STEP) <= 6
    for file in ("vllm_tap.py", "trie.py"):
        assert "runner." not in (FOLDER / file).read_text(), "the worker hands over what the tap reads"
