"""The facts of one Lance table: columns, versions, fragments, error rows by kind, a sample of rows."""

import difflib
import math
import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any, NamedTuple

import lance
import pyarrow as pa

from curation.errors import TableError, describe_lance_error, get_error_kind
from curation.json_types import Json
from curation.tables.schemas import ERROR

NUM_VERSIONS = 20
"""Maximum number of versions to show, newest first; a table that is being written has thousands."""

LONG = 8
"""Maximum length of a list that is shown in full; a longer one is shown as its size and norm."""


@dataclass(frozen=True, kw_only=True)
class TableQuery:
    """The part of a table to show."""

    version: int | None = None
    where: str | None = None
    """An SQL expression that filters error rows and the sample."""
    columns: tuple[str, ...] | None = None
    """The columns of the sample."""
    rows: int = 5
    """Number of rows in the sample."""


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A column and its Arrow type."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version of a table: its time of commit (UTC, ISO 8601), its number of rows, and its changes in words."""

    version: int
    time: str
    rows: int
    change: str


@dataclass(frozen=True, kw_only=True)
class Fragments:
    """The fragments of a version: ``rows`` of the smallest and the largest one, and ``bytes`` of all files on disk."""

    count: int
    rows: tuple[int, int]
    deleted_rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ErrorKind:
    """The number of error rows of one kind, and the message of the first."""

    kind: str
    rows: int
    example: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts of one version of a table."""

    uri: str
    version: int
    rows: int
    matching: int
    """The number of rows that match ``where``; all rows without a filter."""
    where: str | None
    columns: list[TableColumn]
    num_versions: int
    """The number of versions up to this one."""
    versions: list[Version]
    """At most ``NUM_VERSIONS`` versions, newest first."""
    fragments: Fragments
    errors: list[ErrorKind] | None
    """Kinds of error rows that match ``where``, most frequent first; None if the table has no error column."""
    sample: list[Json]
    """First matching rows; a long list of numbers is ``{"size": n, "norm": euclidean}``."""


def examine(uri: str, question: TableQuery) -> Facts:
    """Return the facts of a table.

    Raises:
        TableError: there is no such table, version or column, or Lance refuses the expression.
    """
    dataset = _open(uri, question.version)
    names = dataset.schema.names
    for name in question.columns or ():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"it has: {', '.join(names)}"
            raise TableError(f"{uri}: has no column {name!r}; {hint}")
    try:
        known = [item for item in dataset.versions() if item["version"] <= dataset.version]
        rows = int(dataset.count_rows())
        matching = rows if question.where is None else _count_matching(dataset, question.where)
        errors = _count_errors(dataset, question.where) if ERROR.name in names else None
        columns = None if question.columns is None else list(question.columns)
        shown = dataset.to_table(columns=columns, filter=question.where, limit=question.rows) if question.rows else None
        return Facts(
            uri=uri,
            version=dataset.version,
            rows=rows,
            matching=matching,
            where=question.where,
            columns=[TableColumn(name=f.name, type=_format_type(f.type), nullable=f.nullable) for f in dataset.schema],
            num_versions=len(known),
            versions=_list_versions(dataset, known),
            fragments=_count_fragments(dataset),
            errors=errors,
            sample=[] if shown is None else [_shorten(row) for row in shown.to_pylist()],
        )
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, TableError):
            raise
        raise TableError(f"{uri}: cannot be read ({describe_lance_error(error) or strip_locations(error)})") from error


def strip_locations(error: Exception) -> str:
    """Return Lance's message without locations in its own source code."""
    return re.sub(r",? *\S+\.rs:\d+:\d+", "", str(error)).removeprefix("Invalid user input: ")


def _open(uri: str, version: int | None) -> Any:
    try:
        newest = lance.dataset(uri)
    except (OSError, RuntimeError, ValueError) as error:
        raise TableError(
            f"{uri}: is not a Lance table ({describe_lance_error(error) or strip_locations(error)})"
        ) from error
    if version is None:
        return newest
    known = [item["version"] for item in newest.versions()]
    if version not in known:
        raise TableError(f"{uri}: has no version {version}; there are {len(known)}, {known[0]} to {known[-1]}")
    return lance.dataset(uri, version=version)


def _count_matching(dataset: Any, where: str) -> int:
    try:
        return int(dataset.count_rows(filter=where))
    except (OSError, RuntimeError, ValueError) as error:
        raise TableError(
            f"--where {where!r}: {strip_locations(error)}; columns of {dataset.uri}: {', '.join(dataset.schema.names)}"
        ) from error


def _count_errors(dataset: Any, where: str | None) -> list[ErrorKind]:
    failed = f"{ERROR.name} IS NOT NULL"
    scanner = dataset.scanner(columns=[ERROR.name], filter=failed if where is None else f"({where}) AND {failed}")
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for batch in scanner.to_batches():
        for text in batch.column(ERROR.name).to_pylist():
            kind = get_error_kind(text)
            counts[kind] += 1
            examples.setdefault(kind, text)
    return [ErrorKind(kind=kind, rows=rows, example=examples[kind]) for kind, rows in counts.most_common()]


def _shorten(value: object) -> Any:
    """Return a value for JSON, with long lists as their size and, if numeric, their norm."""
    if isinstance(value, dict):
        return {name: _shorten(part) for name, part in value.items()}
    if isinstance(value, list):
        if len(value) <= LONG:
            return [_shorten(part) for part in value]
        numbers = [part for part in value if isinstance(part, int | float) and not isinstance(part, bool)]
        return {"size": len(value)} | ({"norm": _shorten(math.hypot(*numbers))} if numbers else {})
    if isinstance(value, bytes):
        return {"size": len(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _list_versions(dataset: Any, known: list[Json]) -> list[Version]:
    """Return the newest of the ``known`` versions, each with its changes from the previous one."""
    versions: list[Version] = []
    before: _State | None = None
    for place, item in enumerate(known):
        if place < len(known) - NUM_VERSIONS - 1:
            continue
        columns = lance.dataset(dataset.uri, version=item["version"]).schema.names
        counts = {name: int(item["metadata"][f"total_{name}"]) for name in ("rows", "fragments")}
        now = _State(columns=columns, **counts)
        if before is not None or place == 0:
            time = item["timestamp"].astimezone(UTC).isoformat(timespec="seconds")
            what = "created" if item["version"] == 1 else "the oldest that is kept"  # older ones were cleaned up
            start = f"{what}: {_format_count(len(now.columns), 'column')}, {_format_count(now.rows, 'row')}"
            change = start if before is None else _change(before, now)
            versions.append(Version(version=item["version"], time=time, rows=now.rows, change=change))
        before = now
    return versions[::-1]


class _State(NamedTuple):
    """The properties by which two versions are compared."""

    columns: list[str]
    rows: int
    fragments: int


def _change(before: _State, now: _State) -> str:
    """Return the change of a version against the previous one, in words."""
    added = [name for name in now.columns if name not in before.columns]
    dropped = [name for name in before.columns if name not in now.columns]
    parts = [f"columns added: {', '.join(added)}"] if added else []
    parts += [f"columns dropped: {', '.join(dropped)}"] if dropped else []
    parts += [f"{now.rows - before.rows:+,} rows"] if now.rows != before.rows else []
    parts += [f"{now.fragments - before.fragments:+,} fragments"] if now.fragments != before.fragments else []
    return ", ".join(parts) or "rewritten: the same columns and number of rows"


def _count_fragments(dataset: Any) -> Fragments:
    items = dataset.get_fragments()
    rows = [int(item.count_rows()) for item in items]
    return Fragments(
        count=len(items),
        rows=(min(rows, default=0), max(rows, default=0)),
        deleted_rows=sum(item.num_deletions for item in items),
        bytes=sum(_get_file_bytes(dataset.uri, file) for item in items for file in item.metadata.files),
    )


def _get_file_bytes(uri: str, file: Any) -> int:
    """Return the recorded size of a file, or, if an older writer left it out, the size on disk."""
    if file.file_size_bytes:
        return int(file.file_size_bytes)
    path = Path(uri) / "data" / file.path
    return path.stat().st_size if path.exists() else 0


def _format_type(kind: pa.DataType) -> str:
    """Return an Arrow type in numpy's names, e.g. ``float16[1024]``."""
    if pa.types.is_fixed_size_list(kind):
        return f"{_format_type(kind.value_type)}[{kind.list_size}]"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"{_format_type(kind.value_type)}[]"
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))


def _format_count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
