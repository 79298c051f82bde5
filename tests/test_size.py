"""The counts of docs/size.py on code with known ones."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SIZE = runpy.run_path(str(ROOT / "docs" / "size.py"))
CODE = (
    """\
from typing import Any


class Twice:
    def nine(self, a, b, c, d, e, f, g, *, h, i: Any) -> None:
        def inner() -> None:
            import json

    def eight(self, a, b, c, d, e, f, g, *, h) -> None: ...


class Made: ...


async def long() -> Any:
    from json import (
        dumps,
    )
"""
    + "    print()\n" * 57
)


def test_each_is_counted_once_where_it_stands(tmp_path):
    for folder in ("curation", "train", "tune"):
        (tmp_path / folder).mkdir()
    (tmp_path / "curation" / "one.py").write_text(CODE)
    (tmp_path / "train" / "two.py").write_text("class Twice: ...\nclass Made: ...\ndef Any(): ...\n")
    (tmp_path / "tune" / "three.py").write_text(
        'def _one():\n    """Text."""\n    return 1\n\n\ndef _two():\n    return _one()\n\n\nprint(_two(), _two())\n'
    )
    (tmp_path / "curation" / "page.html.j2").write_text("<p>\n</p>\n")
    found = SIZE["count"](tmp_path)
    assert {name: sorted(places) for name, places in found.items()} == {
        "functions of more than 8 parameters": ["curation/one.py:5 nine: 9"],
        "functions of more than 60 lines": ["curation/one.py:15 long: 61"],
        "functions of at most 6 lines with one caller": ["tune/three.py:1 _one"],
        "files of fewer than 60 lines": ["train/two.py: 3", "tune/three.py: 10"],
        "uses of Any": ["curation/one.py:15", "curation/one.py:5"],
        "class names in two places or more": ["Twice: curation/one.py:4, train/two.py:1"],
        "imports within functions": ["curation/one.py:16", "curation/one.py:7"],
    }
    assert SIZE["num_lines"](tmp_path) == {"curation": len(CODE.splitlines()), "train": 3, "tune": 10, "templates": 2}
    assert SIZE["code_lines_a_function"](tmp_path) == (3 + 2 + 2 + 61 + 2 + 2 + 2) / 7
    SIZE["BUDGETS"] |= {"curation": 1000, "train": 3, "tune": 9}
    (line,) = SIZE["over_budget"](tmp_path)
    assert line.startswith("tune: 10 lines, budget 9; make it smaller")


def test_a_folder_without_the_product_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="name a checkout of the project"):
        SIZE["count"](tmp_path)
