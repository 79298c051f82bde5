"""docs/architecture.md and its picture: drawn from the code as it is, and naming files and functions that exist."""

import ast
import re
import runpy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "architecture.py"))


def defined(path: Path) -> set[str]:
    """Functions and classes of a file, and methods as ``Class.method``."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return found


def test_the_picture_is_drawn_from_the_code_as_it_is(script: dict[str, Any]):
    assert script["draw"]() == (ROOT / "docs" / "architecture.svg").read_text(), "run `python docs/architecture.py`"


def test_the_picture_shows_every_module_once(script: dict[str, Any]):
    picture = ElementTree.parse(ROOT / "docs" / "architecture.svg")
    shown = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text") if text.get("font-weight")][1:]
    top = [path for path in (ROOT / "curation").iterdir() if path.name != "__init__.py"]
    files = {path.name for path in top if path.suffix == ".py"}
    folders = {f"{path.name}/" for path in top if (path / "__init__.py").is_file()}
    assert sorted(shown) == sorted({*files, *folders, "train/", "tune/"})


def test_every_step_is_on_the_picture(script: dict[str, Any]):
    numbers = [int(number) for number in re.findall(r"^## (\d+)\. ", PAGE, re.MULTILINE)]
    assert numbers == list(range(1, 11))
    assert {step for steps in script["steps_of"](PAGE).values() for step in steps} == set(numbers)


def test_files_that_the_page_names_exist():
    """Code, and whatever is below a top folder of the checkout; tables and models are a run's."""
    top = {path.name for path in ROOT.iterdir() if path.is_dir()}
    named = {
        name
        for name in re.findall(r"`([\w./-]+)`", PAGE)
        if name.endswith((".py", ".toml")) or ("/" in name and name.split("/")[0] in top)
    }
    assert len(named) > 30
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    links = re.findall(r"\]\(([^)#]+)", PAGE)
    assert [link for link in links if not (ROOT / "docs" / link).is_file()] == []


def test_functions_that_the_page_names_exist():
    """A function stands behind its file: `` `file.py` `function` ``."""
    pairs = re.findall(r"`([\w./-]+\.py)`\s+`([\w.]+)`", PAGE)
    assert len(pairs) > 40
    assert [pair for pair in pairs if pair[1] not in defined(ROOT / pair[0])] == []
