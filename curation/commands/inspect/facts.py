"""The facts of one Lance table: columns, versions, fragments, error rows by kind, a sample of rows."""

import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from curation.commands.inspect.find import FoundTable
from curation.errors import REFUSALS, TableError, describe_lance_error, get_error_kind
from curation.escaping import escape_text
from curation.json_types import Json
from curation.tables.schemas import ERROR

NUM_VERSIONS = 20
"""Maximum number of versions to show, newest first; a table that is being written has thousands."""

LONG = 8
"""Maximum length of a list that is shown in full; a longer one is shown as its size and norm."""
WIDTH = 100
"""Maximum length of a value or a message, in characters; longer ones are truncated."""


def examine(
    uri: str,
    *,
    version: int | None = None,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    rows: int = 5,
) -> Json:
    """Return the facts of a version of a table, as ``curate inspect --json`` prints them.

    ``where`` is an SQL expression, whose rows are ``matching``; ``errors`` and ``sample`` are of them. ``errors`` are
    the kinds of error rows, most frequent first, None without an error column. ``sample`` has the ``columns`` of the
    first ``rows`` rows; a long list of numbers in it is ``{"size": n, "norm": euclidean}``. ``num_versions`` counts the
    versions up to this one, of which ``versions`` are at most ``NUM_VERSIONS``, newest first. ``fragments`` have the
    ``rows`` of the smallest and the largest one, and the ``bytes`` of all files on disk.

    Raises:
        TableError: there is no such table, version or column, or Lance refuses the expression.
    """
    dataset = _open(uri, version)
    names = dataset.schema.names
    for name in columns or ():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"it has: {', '.join(names)}"
            raise TableError(f"{uri}: has no column {name!r}; {hint}")
    try:
        known = [item for item in dataset.versions() if item["version"] <= dataset.version]
        num_rows = int(dataset.count_rows())
        matching = num_rows if where is None else _count_matching(dataset, where)
        errors = _count_errors(dataset, where) if ERROR.name in names else None
        wanted = None if columns is None else list(columns)
        sample = dataset.to_table(columns=wanted, filter=where, limit=rows).to_pylist() if rows else []
        fields = dataset.schema
        return {
            "uri": uri,
            "version": dataset.version,
            "rows": num_rows,
            "matching": matching,
            "where": where,
            "columns": [{"name": f.name, "type": _format_type(f.type), "nullable": f.nullable} for f in fields],
            "num_versions": len(known),
            "versions": _list_versions(uri, known),
            "fragments": _count_fragments(dataset),
            "errors": errors,
            "sample": [_shorten(row) for row in sample],
        }
    except REFUSALS as error:
        if isinstance(error, TableError):
            raise
        raise TableError(f"{uri}: cannot be read ({describe_lance_error(error) or strip_locations(error)})") from error


def strip_locations(error: Exception) -> str:
    """Return Lance's message without locations in its own source code."""
    return re.sub(r",? *\S+\.rs:\d+:\d+", "", str(error)).removeprefix("Invalid user input: ")


def _open(uri: str, version: int | None) -> Any:
    try:
        newest = lance.dataset(uri)
    except REFUSALS as error:
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
    except REFUSALS as error:
        raise TableError(
            f"--where {where!r}: {strip_locations(error)}; columns of {dataset.uri}: {', '.join(dataset.schema.names)}"
        ) from error


def _count_errors(dataset: Any, where: str | None) -> list[Json]:
    failed = f"{ERROR.name} IS NOT NULL"
    scanner = dataset.scanner(columns=[ERROR.name], filter=failed if where is None else f"({where}) AND {failed}")
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for batch in scanner.to_batches():
        for text in batch.column(ERROR.name).to_pylist():
            kind = get_error_kind(text)
            counts[kind] += 1
            examples.setdefault(kind, text)
    return [{"kind": kind, "rows": rows, "example": examples[kind]} for kind, rows in counts.most_common()]


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


def _list_versions(uri: str, known: list[Json]) -> list[Json]:
    """Return the newest of the ``known`` versions, each with its time of commit (UTC) and its change in words."""
    versions: list[Json] = []
    before: tuple[list[str], int, int] | None = None
    for place, item in enumerate(known):
        if place < len(known) - NUM_VERSIONS - 1:
            continue
        columns = lance.dataset(uri, version=item["version"]).schema.names
        rows, fragments = (int(item["metadata"][f"total_{name}"]) for name in ("rows", "fragments"))
        change = "created" if item["version"] == 1 else "the oldest that is kept"  # older ones were cleaned up
        change += f": {_format_count(len(columns), 'column')}, {_format_count(rows, 'row')}"
        if before is not None:
            names, num_rows, num_fragments = before
            added = ", ".join(name for name in columns if name not in names)
            dropped = ", ".join(name for name in names if name not in columns)
            parts = [f"columns added: {added}"] if added else []
            parts += [f"columns dropped: {dropped}"] if dropped else []
            parts += [f"{rows - num_rows:+,} rows"] if rows != num_rows else []
            parts += [f"{fragments - num_fragments:+,} fragments"] if fragments != num_fragments else []
            change = ", ".join(parts) or "rewritten: the same columns and number of rows"
        if before is not None or place == 0:
            time = item["timestamp"].astimezone(UTC).isoformat(timespec="seconds")
            versions.append({"version": item["version"], "time": time, "rows": rows, "change": change})
        before = columns, rows, fragments
    return versions[::-1]


def _count_fragments(dataset: Any) -> Json:
    items = dataset.get_fragments()
    rows = [int(item.count_rows()) for item in items]
    num_bytes = 0
    for file in (file for item in items for file in item.metadata.files):
        path = Path(dataset.uri) / "data" / file.path
        if file.file_size_bytes:
            num_bytes += int(file.file_size_bytes)
        elif path.exists():  # an older writer left the size out
            num_bytes += path.stat().st_size
    deleted = sum(item.num_deletions for item in items)
    smallest_and_largest = [min(rows, default=0), max(rows, default=0)]
    return {"count": len(items), "rows": smallest_and_largest, "deleted_rows": deleted, "bytes": num_bytes}


def _format_type(kind: pa.DataType) -> str:
    """Return an Arrow type in numpy's names, e.g. ``float16[1024]``."""
    if pa.types.is_fixed_size_list(kind):
        return f"{_format_type(kind.value_type)}[{kind.list_size}]"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"{_format_type(kind.value_type)}[]"
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))


def _format_count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def format_facts(facts: Json) -> str:
    """Return the facts of a table (:func:`examine`), section by section."""
    fragments, versions, errors, sample = (facts[name] for name in ("fragments", "versions", "errors", "sample"))
    low, high = fragments["rows"]
    each = f", {low:,} rows each" if low == high else f", {low:,} to {high:,} rows each"
    deleted = f", {fragments['deleted_rows']:,} rows deleted" if fragments["deleted_rows"] else ""
    number, shown = fragments["count"], len(versions)
    matching = "" if facts["where"] is None else f", {facts['matching']:,} where {facts['where']}"
    last = f", the last {shown}:" if shown < facts["num_versions"] else ""
    lines = [
        f"{facts['uri']}, version {facts['version']}",
        f"rows       {facts['rows']:,}{matching}",
        f"fragments  {number:,}{each if number else ''}{deleted}, {format_size(fragments['bytes'])} on disk",
        f"versions   {facts['num_versions']:,}{last}",
        *_align([(str(of["version"]), of["time"], f"{of['rows']:,} rows", of["change"]) for of in versions]),
        "columns",
        *_align([(of["name"], of["type"], "" if of["nullable"] else "not null") for of in facts["columns"]]),
    ]
    if errors is not None:
        lines.append(f"error rows {sum(of['rows'] for of in errors):,}")
        lines += _align([(of["kind"], f"{of['rows']:,}", f"e.g. {_cut(of['example'])}") for of in errors])
    if sample:
        lines.append(f"sample     {len(sample):,} of {facts['matching']:,} rows")
    for row in sample:
        lines += ["  -", *_align([(name, _format_value(value)) for name, value in row.items()], "    ")]
    return "\n".join(lines)


def format_tables(found: Sequence[FoundTable]) -> str:
    """Return the tables of a run, one line each."""
    rows = [("table", "rows", "version", "")]
    for item in found:
        count = "" if item.rows is None else f"{item.rows:,}"
        rows.append((item.name, count, "" if item.version is None else str(item.version), item.state))
    return "\n".join(_align(rows, ""))


def format_size(num_bytes: int) -> str:
    """Return a number of bytes as text in binary units."""
    value = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "bytes" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def _align(rows: Sequence[tuple[str, ...]], indent: str = "  ") -> list[str]:
    """Return each row as a line, with its cells in columns as wide as their longest cell."""
    rows = [tuple(map(escape_text, row)) for row in rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))] if rows else []
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _format_value(value: object) -> str:
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, dict) and value.keys() == {"size", "norm"}:
        return f"{value['size']:,} numbers, norm {_format_value(value['norm'])}"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list):
        return f"[{', '.join(map(_format_value, value))}]"
    return _cut(json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    line = json.dumps(text, ensure_ascii=False)[1:-1]  # line ends as \n, so that a value stays on one line
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
