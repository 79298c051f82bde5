"""Files of rows for ``curate init --data``: their columns, a sample of rows, and the values of a column."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from curation.config import SourceConfig
from curation.config.inputs import COMMA
from curation.domains import attempt
from curation.domains.turns import read_cell_text
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
        """Count the values of a column, as texts, in all rows or until there are more than ``MOST_VALUES`` values.

        Missing values are left out.
        """
        found: Counter[str] = Counter()
        for file in self.files:
            for batch in read_rows(file, columns=[column]):
                found.update(to_text(row[column]) for row in to_raw_rows(batch) if row.get(column) is not None)
                if len(found) > MOST_VALUES:
                    return found
        return found

    def has_numbers(self, column: str) -> bool:
        """Return whether all sampled values of a column are numbers, or texts that are numbers."""
        values = self.values(column)
        return bool(values) and all(attempt(float, value)[0] is not None for value in values)

    def length(self, column: str) -> float:
        """Return the mean length of a column's texts or chat messages, in characters; 0 if it has other values."""
        values = self.values(column)
        read = (attempt(read_cell_text, value)[0] for value in values if isinstance(value, str | list))
        texts = [text for text in read if text is not None]
        return sum(map(len, texts)) / len(texts) if texts and len(texts) == len(values) else 0.0

    def require(self, column: str, option: str) -> str:
        """Return the column that the user named by an option, if it exists.

        Raises:
            SourceError: there is no such column; the message names the existing ones.
        """
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
    """Count and sample the rows of a file, folder or glob; use the first delimiter with which CSV can be read.

    Raises:
        SourceError: the files cannot be read, have no rows, or have no column in common.
    """
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
    words = column.replace("-", "_").casefold().split("_")
    return words[-1] in IDS or words[-1].endswith("id")


def to_text(value: Any) -> str:
    """Return a value as text, with whole floats as integers, since columns with nulls hold integers as floats."""
    is_integer = isinstance(value, float) and value.is_integer()
    return str(int(value) if is_integer else value).strip()
