"""The words that docs/words.py refuses, on code that has one of each."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORDS = runpy.run_path(str(ROOT / "docs" / "words.py"))

CODE = '''"""What a module holds."""

WIDTH = 3
"""Of a row."""


class Row:
    """A row."""

    width: int = 3
    """Its width."""

    def cells(self, wide):
        """Cells of the row; what is empty is left out."""
        those = [wide]
        """That is no field."""
        return those
'''


@pytest.fixture
def checkout(tmp_path) -> Path:
    for part in ("curation", "train", "tune"):
        (tmp_path / part).mkdir()
    (tmp_path / "curation" / "rows.py").write_text(CODE)
    return tmp_path


def test_docstrings_that_begin_with_a_preposition_or_a_pronoun_are_refused_with_their_places(checkout):
    found = list(WORDS["refused"](checkout))
    places = [line.split(": ", 1)[0] for line in found]
    assert places == ["curation/rows.py:1", "curation/rows.py:4", "curation/rows.py:11"]
    assert found[0].endswith("a docstring begins with 'What'; begin with a noun or a verb")


def test_names_on_the_list_are_refused_as_modules_arguments_and_variables(checkout):
    WORDS["NAMES"].update({"rows": "table", "wide": "width", "those": "cells"})
    found = [line for line in WORDS["refused"](checkout) if "docstring" not in line]
    for name in ("rows", "wide", "those"):
        WORDS["NAMES"].pop(name)
    assert [line.split(":")[1] for line in found] == ["1", "13", "15"]
    assert found[1] == "curation/rows.py:13: 'wide' is no name; write width"


def test_a_class_name_is_refused_where_it_stands_a_second_time_unless_it_is_an_idiom(checkout):
    (checkout / "train" / "table.py").write_text("class Row: ...\n\n\nclass Made: ...\n")
    (checkout / "tune" / "table.py").write_text("class Made: ...\n")
    found = [line for line in WORDS["refused"](checkout) if "class" in line]
    assert found == [
        "train/table.py:1: a class Row stands at curation/rows.py:7 too; give one a name that says what it is"
    ]


def test_a_folder_without_the_product_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no folder curation"):
        list(WORDS["refused"](tmp_path))


def test_functions_and_private_methods_begin_with_a_verb_unless_a_decorator_calls_them(checkout):
    (checkout / "tune" / "functions.py").write_text(
        "def told(): ...\n\n\ndef tell(): ...\n\n\n@contextmanager\ndef session_of(): ...\n\n\n"
        "class Table:\n    def _cells(self): ...\n\n    def cells(self): ...\n\n    @property\n"
        "    def _width(self): ...\n"
    )
    found = [line.split(";")[0] for line in WORDS["refused"](checkout) if "tune" in line and "is called" in line]
    assert found == [
        "tune/functions.py:1: a function is called told",
        "tune/functions.py:12: a function is called _cells",
    ]
