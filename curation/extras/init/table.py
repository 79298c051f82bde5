"""Files of rows for ``curate init --data``: their columns, a sample of rows, and what columns hold.

A column's role is guessed from its name or, for answers, from its values: lists of labels, objects, or texts.
"""

import json
import keyword
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from curation.config import SourceConfig
from curation.config.external import GivenConfig
from curation.config.inputs import COMMA
from curation.domains import attempt, parse_list
from curation.domains.given import GRADES
from curation.errors import SourceError
from curation.json_types import Json
from curation.sources import SourceFile, discover, find_nearest_column, read_rows, read_rows_at, to_raw_rows
from curation.sources.readers import DelimiterError

SAMPLE_ROWS = 1_000
"""Maximum number of sampled rows, evenly spaced in the files."""
MOST_VALUES = 1_000
"""Number of distinct values of a column beyond which reading it stops."""
DELIMITERS = (COMMA, ";", "\t", "|")
IDS = ("id", "ids", "key", "uuid", "guid", "index", "url", "uri", "path", "file", "date", "time", "timestamp")
"""Last words of the names of columns that identify a row or its origin."""
CONFIDENCES = ("confidence", "conf", "score", "probability", "prob", "certainty", "logprob")
"""Last words of the names of columns with the confidence of a label."""
COMPLETIONS = ("prediction", "predicted", "pred", "completion", "output", "response", "generated", "guess")
"""Words in the names of columns with a model's answer."""
GRADINGS = ("ok", "right", "correct", "grade", "is_right", "is_correct")
"""Names of columns that say whether a model's answer is right."""
NUMBER_SHARE = 0.8
"""Minimum share of numeric answers for which answers are compared as numbers."""


@dataclass(frozen=True, kw_only=True)
class TableFiles:
    """A file, folder or glob of rows."""

    path: str
    delimiter: str
    files: tuple[SourceFile, ...]
    columns: tuple[str, ...]
    """The columns that all files have."""
    sample: tuple[Json, ...]
    """Sampled rows, with None for missing values."""

    @property
    def num_rows(self) -> int:
        """Number of rows of all files."""
        return sum(file.num_rows for file in self.files)

    def values(self, column: str) -> list[Any]:
        """Return the non-missing sampled values of a column; an empty list if there is no such column."""
        return [row[column] for row in self.sample if row.get(column) is not None]

    def filled(self, column: str) -> float:
        """Return the share of sampled rows with a value in a column; 0 if there is no such column."""
        return len(self.values(column)) / max(1, len(self.sample))

    def counts(self, column: str) -> Counter[str]:
        """Count the values of a column, as texts, in all rows or until there are more than ``MOST_VALUES`` values."""
        found: Counter[str] = Counter()
        for batch in (batch for file in self.files for batch in read_rows(file, columns=[column])):
            found.update(_to_text(row[column]) for row in to_raw_rows(batch) if row.get(column) is not None)
            if len(found) > MOST_VALUES:
                break
        return found

    def require(self, column: str, option: str) -> str:
        """Return the column that the user named by an option; a ``SourceError`` if there is none."""
        if column in self.columns:
            return column
        close = find_nearest_column(column, self.columns)
        hint = f"; did you mean {close!r}?" if close else ""
        raise SourceError(f"{self.path}: has no column {column!r} for {option} (it has: {self.listed}){hint}")

    @property
    def listed(self) -> str:
        """The columns as text for messages."""
        return ", ".join(self.columns) or "none"


def look(path: str) -> TableFiles:
    """Count and sample the rows of a file, folder or glob; use the first delimiter with which CSV can be read."""
    first: SourceError | None = None
    for delimiter in DELIMITERS:
        try:
            files = tuple(discover(SourceConfig(path=path, delimiter=delimiter)))
        except SourceError as error:
            first = error if first is None or isinstance(first, DelimiterError) else first
            continue
        columns = tuple(name for name in files[0].schema if all(name in file.schema for file in files))
        if not columns:
            raise SourceError(f"{path}: its {len(files)} files have no column in common; give one file")
        num_rows = sum(file.num_rows for file in files)
        sampled_N = np.unique(np.linspace(0, num_rows - 1, min(num_rows, SAMPLE_ROWS)).astype(np.int64))
        sample = tuple(row.raw for row in read_rows_at(files, sampled_N))
        used = delimiter if any(file.format == "csv" for file in files) else COMMA
        return TableFiles(path=path, delimiter=used, files=files, columns=columns, sample=sample)
    assert first is not None
    raise first


def is_id(column: str) -> bool:
    """Return whether a column's name suggests that the column identifies rows or their origin."""
    last = _split_words(column)[-1]
    return last in IDS or last.endswith("id")


def find_given_columns(
    labelled: TableFiles, answer: str, common: Sequence[str], answers: Sequence[str]
) -> GivenConfig | None:
    """Return the columns of labels made elsewhere; ``None`` unless exactly one column can hold the labels.

    The file must also have a column of confidences. The labels are values of the column ``answer``, or their column is
    named like a model's answer, or, if ``answer`` is a grade, like one of ``answers``.
    """
    named = [name for name in common if _split_words(name)[-1] in CONFIDENCES and labelled.values(name)]
    sure = [name for name in named if all(attempt(float, value)[0] is not None for value in labelled.values(name))]
    if not sure:
        return None
    others = [name for name in common if name not in (answer, *sure) and not is_id(name)]
    golds = {*labelled.counts(answer)}
    is_grade = answer.casefold() in GRADINGS and {gold.lower() for gold in golds} <= {*GRADES}
    alike = [] if is_grade else [name for name in others if {*labelled.counts(name)} <= golds]
    known = [*COMPLETIONS, *(answers if is_grade else ())]
    found = alike or [name for name in others if name.casefold() in known or {*_split_words(name)} & {*COMPLETIONS}]
    if len(found) != 1:
        return None
    return GivenConfig(completion=found[0], confidence=tuple(sure), grade=answer if is_grade else None)


def _split_words(name: str) -> list[str]:
    return name.replace("-", "_").casefold().split("_")


def _to_text(value: Any) -> str:
    """Return a value as text, with whole floats as integers, since columns with nulls hold integers as floats."""
    is_integer = isinstance(value, float) and value.is_integer()
    return str(int(value) if is_integer else value).strip()


def has_lists(table: TableFiles, column: str) -> bool:
    """Return whether all filled cells are lists of labels (not objects, such as turns), as values or as JSON text."""
    lists = [parse_list(value) if isinstance(value, str) else value for value in table.values(column)]
    return bool(lists) and all(
        isinstance(items, list) and not any(isinstance(item, Mapping) for item in items) for items in lists
    )


def has_objects(table: TableFiles, column: str) -> bool:
    """Return whether all filled cells of a column are objects."""
    values = table.values(column)
    return bool(values) and all(isinstance(value, Mapping) for value in values)


def describe_free_text(table: TableFiles, texts: Sequence[str], answer: str) -> tuple[dict[str, Any], str]:
    """Return the section ``domain`` for free-text answers, and a description of their check."""
    shown = "\n".join(map(_format_expression, texts))
    values = [str(value).strip() for value in table.values(answer)]
    numbers = [value for value in values if re.fullmatch(r"[-+]?\d[\d,]*(\.\d+)?", value)]
    ending, check, same = "Answer:", "normalised", "has the same words"
    if has_objects(table, answer):
        ending, check, same = "JSON:", "json", "is the same JSON"
    elif len(numbers) >= NUMBER_SHARE * len(values):
        check, same = "number", "has the same last number"
    why = f"an answer is right if it {same} (check: {check}; a program of yours may check, too)"
    return {"name": "text", "reference": answer, "prompt": f"{shown}\n{ending}", "check": check}, why


def _format_expression(column: str) -> str:
    """Return the expression by which a template inserts a column."""
    is_plain = column.isidentifier() and not keyword.iskeyword(column)
    plain = is_plain and column.casefold() not in ("row", "range", "loop", "true", "false", "none")
    return f"{{{{ {column} }}}}" if plain else f"{{{{ row[{json.dumps(column, ensure_ascii=False)}] }}}}"
