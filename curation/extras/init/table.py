"""Files of rows for ``curate init --data``: their columns, a sample of rows, and what columns hold.

Columns are told by their names or, for answers, by their values: sets of labels (lists in the cells, or texts with a
separator between recurring labels), JSON objects, or free texts.
"""

import json
import keyword
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from curation.config import SourceConfig
from curation.config.given import GivenConfig
from curation.config.inputs import COMMA
from curation.domains import attempt, parse_list, read_cell_text, to_one_line
from curation.domains.given import GRADES
from curation.domains.label_sets import SetFormat, split_names
from curation.errors import RowError, SourceError
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
SEPARATORS = (";", "|", ",")
EMPTIES = ("none", "no label", "n/a", "-")
"""Words for a row without labels, if they never occur beside another label."""
LEAST_SHARE = 0.02
"""Minimum share of cells that contain a sign for it to be a separator of labels."""
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

    def batches(self, column: str) -> Iterator[list[Any]]:
        """Yield the non-missing values of a column in all rows, batch by batch."""
        for file in self.files:
            for batch in read_rows(file, columns=[column]):
                yield [row[column] for row in to_raw_rows(batch) if row.get(column) is not None]

    def counts(self, column: str) -> Counter[str]:
        """Count the values of a column, as texts, in all rows or until there are more than ``MOST_VALUES`` values."""
        found: Counter[str] = Counter()
        for values in self.batches(column):
            found.update(map(_to_text, values))
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
        wanted_N = np.unique(np.linspace(0, num_rows - 1, min(num_rows, SAMPLE_ROWS)).astype(np.int64))
        sample = tuple(row.raw for row in read_rows_at(files, wanted_N))
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


@dataclass(frozen=True, kw_only=True)
class LabelColumn:
    """A column of sets of labels."""

    form: SetFormat
    counts: Counter[str]
    """Number of rows by label."""
    num_rows: int
    is_list: bool
    """Whether the cells are lists, which leaves no doubt."""


def label_column(table: TableFiles, column: str) -> LabelColumn | None:
    """Return the labels of a column whose cells hold several labels each, or ``None`` if they do not."""
    sample = table.values(column)
    if not sample:
        return None
    if is_list_column(table, column):
        return _read_column(table, column, SetFormat(), is_list=True)
    for separator in SEPARATORS:
        form = SetFormat(separator=separator)
        joint = [value for value in sample if isinstance(value, str) and separator in value]
        if len(joint) < max(2, LEAST_SHARE * len(sample)):
            continue
        if (found := _read_column(table, column, form, is_list=False)) is None:
            continue
        sets_of: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        for names in (split_names(to_one_line(value), form) for value in sample):
            for name in names:
                sets_of[name].add(tuple(sorted(names)))
        # Most labels of cells with several recur in other sets, unlike parts of a name.
        sets_of_joint = [sets for sets in sets_of.values() if any(len(names) > 1 for names in sets)]
        if 2 * sum(len(sets) > 1 for sets in sets_of_joint) > len(sets_of_joint):
            return found
    return None


def is_list_column(table: TableFiles, column: str) -> bool:
    """Return whether all filled cells are lists of labels (not objects, such as turns), as values or as JSON text."""
    lists = [parse_list(value) if isinstance(value, str) else value for value in table.values(column)]
    return bool(lists) and all(
        isinstance(items, list) and not any(isinstance(item, Mapping) for item in items) for items in lists
    )


def _read_column(table: TableFiles, column: str, form: SetFormat, *, is_list: bool) -> LabelColumn | None:
    """Return the labels of all rows; ``None`` if a row repeats a label or cannot be split, or there are too many."""
    counts: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    num_rows = 0
    for value in (value for batch in table.batches(column) for value in batch):
        names, _ = attempt(split_names, value, form)
        if names is None or len({*names}) < len(names):
            return None
        counts.update(names)
        alone.update(names if len(names) == 1 else ())
        num_rows += 1
        if len(counts) > MOST_VALUES:
            return None
    for name in counts:
        if name.casefold() in EMPTIES and alone[name] == counts[name]:
            form = form.model_copy(update={"empty": name})
            del counts[name]
            break
    if len(counts) < 2:
        return None
    if is_list and any(form.separator in name for name in counts):
        unused = (sign for sign in SEPARATORS if not any(sign in name for name in counts))
        form = form.model_copy(update={"separator": next(unused, form.separator)})  # else the domain refuses it
    return LabelColumn(form=form, counts=counts, num_rows=num_rows, is_list=is_list)


def has_objects(table: TableFiles, column: str) -> bool:
    """Return whether all filled cells of a column are objects or lists of objects, as values or as JSON text."""
    values = table.values(column)
    return bool(values) and all(_find_objects(value) for value in values)


def free_text(table: TableFiles, texts: Sequence[str], answer: str) -> tuple[dict[str, Any], str]:
    """Return the section ``domain`` for free-text answers, and a description of their check."""
    shown = "\n".join(_write_expression(name) for name in texts)
    section: dict[str, Any] = {"name": "text", "reference": answer}
    if has_objects(table, answer):
        cells = [_find_objects(value) for value in table.values(answer)]
        is_list = any(isinstance(_load_json(value), list) for value in table.values(answer))
        keys = ", ".join(dict.fromkeys(name for cell in cells for found in cell for name in found))
        what = "a list of JSON objects" if is_list else "a JSON object"
        prompt, check, same = f"{shown}\n\nReply with {what} with the keys {keys}.\nJSON:", "json", "is the same JSON"
    else:
        prompt, check, same = f"{shown}\nAnswer:", "normalised", "has the same words"
        values = [str(value).strip() for value in table.values(answer)]
        if sum(re.fullmatch(r"[-+]?\d[\d,]*(\.\d+)?", value) is not None for value in values) >= NUMBER_SHARE * len(
            values
        ):
            check, same = "number", "has the same last number"
    why = f"an answer is right if it {same} (check: {check}; a program of yours may check, too)"
    return section | {"prompt": prompt, "check": check}, why


def _find_objects(value: object) -> list[Mapping[str, Any]]:
    """Return the objects in a cell; an empty list for chat messages and anything else."""
    found = _load_json(value)
    items = found if isinstance(found, list) else [found]
    if not items or not all(isinstance(item, Mapping) and item for item in items):
        return []
    try:
        read_cell_text(items)
    except RowError:
        return items
    return []  # turns of a conversation


def _load_json(value: object) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _write_expression(column: str) -> str:
    """Return the expression by which a template inserts a column."""
    is_plain = column.isidentifier() and not keyword.iskeyword(column)
    plain = is_plain and column.casefold() not in ("row", "range", "loop", "true", "false", "none")
    return f"{{{{ {column} }}}}" if plain else f"{{{{ row[{json.dumps(column, ensure_ascii=False)}] }}}}"
