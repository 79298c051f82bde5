"""Sets of labels: rows of a classification that may have several classes, or none.

Each class is a yes/no question about the row. A row's label is the set of classes answered by yes, as a text: their
names in the order of the classes.
"""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from curation.domains import format_cell, parse_list, to_one_line
from curation.domains.identity import fold_lookalikes
from curation.errors import ConfigError, RowError
from curation.escaping import quote_text

MOST_NAMED = 8
"""Maximum number of classes that a message names."""


SEPARATOR, EMPTY = ",", "none"
"""The sign between the labels of a row, where they are a text, and the word for a row without labels."""


def split_names(value: Any) -> list[str]:
    """Return the names in a cell, which is a list, a list as text or a separated text; ``RowError`` of an empty one."""
    items = value if isinstance(value, list | tuple) else parse_list(text := format_cell(value))
    if items is None:
        items = text.split(SEPARATOR)
    names = ["" if item is None else to_one_line(item) for item in items]
    if names == [EMPTY]:
        return []
    if "" in names:
        raise RowError(
            f"bad_label: {quote_text(str(value))} has an empty label; take it out, or write {EMPTY} for no label"
        )
    return names


def make_class_error(what: str, name: str, classes: Collection[str], note: str = "") -> RowError:
    """Return the error of a name that is no class, with a hint at one that differs in case alone or is the nearest."""
    alike = [other for other in classes if other.casefold() == name.casefold()]
    near = alike or difflib.get_close_matches(name, classes, n=1)
    hint = f"; did you mean {quote_text(near[0])}?" if near else ""
    known = ", ".join(list(classes)[:MOST_NAMED]) + (", ..." if len(classes) > MOST_NAMED else "")
    return RowError(
        f"bad_label: {what} is not one of the {len(classes)} classes {known} (domain.classes, or the labels of the "
        f"labelled split{note}){hint}"
    )


class LabelSets:
    """The sets of some classes, and the questions by which a model is asked for one.

    Args:
        words: each class with the words that it is asked by.
    """

    def __init__(self, words: Mapping[str, str]) -> None:
        for name in words:
            if SEPARATOR in name:
                raise ConfigError(
                    f"domain.classes: {name!r} holds {SEPARATOR!r}, which separates the labels of a row; rename it in "
                    "the files, too"
                )
        if EMPTY in words:
            raise ConfigError(f"domain.classes: {EMPTY!r} means no label; rename the class, in the files, too")
        self._words = words
        self.classes, self.empty = tuple(words), EMPTY
        """The classes, in order, and the label of a row without classes."""
        self._by_folded = {fold_lookalikes(name): name for name in words}

    def label_of(self, value: object) -> str:
        """Return the set in a cell as a text; ``RowError`` of a label that is no class, empty, or there twice."""
        found = split_names(value)
        names = [name if name in self._words else self._by_folded.get(fold_lookalikes(name), name) for name in found]
        for place, name in enumerate(names):
            if name not in self._words:
                note = f"; the separator is {SEPARATOR!r}"
                raise make_class_error(f"{quote_text(name)} of {quote_text(str(value))}", name, self._words, note)
            if name in names[:place]:
                raise RowError(f"bad_label: {quote_text(name)} stands twice in {quote_text(str(value))}; keep one")
        return self._join_names(names)

    def _join_names(self, names: Collection[str]) -> str:
        return f"{SEPARATOR} ".join(name for name in self._words if name in names) or EMPTY

    def options(self) -> tuple[str, ...]:
        """Return yes and no for each class in turn, each a line after the prompt."""
        return tuple(self._format_line(name, word) for name in self._words for word in ("yes", "no"))

    def _format_line(self, name: str, word: str) -> str:
        return f"\n{self._words[name]}: {word}"

    def answer(self, label: str) -> str:
        """Return the answers that state a set: a line for each class."""
        names = split_names(label)
        return "".join(self._format_line(name, "yes" if name in names else "no") for name in self._words)

    def parse(self, completion: str) -> str | None:
        """Return the set that a line for each class states, in any order; ``None`` if a class has no line, or two."""
        lines = [fold_lookalikes(line) for line in completion.strip().split("\n")]
        if len(lines) != len(self._words):
            return None
        stated = set(lines)
        yes = {name for name in self._words if fold_lookalikes(self._format_line(name, "yes")) in stated}
        no = {name for name in self._words if fold_lookalikes(self._format_line(name, "no")) in stated}
        return self._join_names(yes) if yes | no == set(self._words) and not yes & no else None
