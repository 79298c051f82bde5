"""``curate inspect``: finds tables of a run, by path or stage, and shows what is in one."""

import difflib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import lance
import pyarrow as pa

from curation.commands.printing import format_size
from curation.errors import REFUSALS, RunDirError, TableError, describe_lance_error, get_error_kind
from curation.escaping import escape_text
from curation.json_types import Json
from curation.refs import iter_table_refs
from curation.rundir.manifest import Manifest, record_in
from curation.storage.paths import Place, list_files, to_place, walk
from curation.tables.schemas import ERROR
from curation.tables.versions import VERSIONS

NUM_LISTED, NUM_SEARCHED = 20, 2_000
"""Maximum numbers of tables that an error lists, and of folders that are searched for them."""
_FOLDER = re.compile(r"(.+)-[0-9a-f]{8}(?:\.\d+)?")
"""Name of a stage's directory: the stage and the fingerprint of its inputs (``Manifest.directory_of``)."""
NUM_VERSIONS = 20
"""Maximum number of versions to show, newest first; a table that is being written has thousands."""

LONG = 8
"""Maximum length of a list that is shown in full; a longer one is shown as its size and norm."""
WIDTH = 100
"""Maximum length of a value or a message, in characters; longer ones are truncated."""


class FoundTable(NamedTuple):
    """A table of a run; ``version`` and ``rows`` are None if it is not on record or cannot be opened."""

    name: str
    """``STAGE``, or ``STAGE/TABLE`` for a stage that wrote several; the path for a table that no stage recorded."""
    uri: str
    version: int | None
    rows: int | None
    state: str
    """``done``; ``missing``: on record but gone; ``not on record``: from a running stage, or from older settings."""


def find(path: str, name: str | None = None) -> tuple[str, int | None]:
    """Return the URI of a table and its recorded version, None for the newest; raise a ``TableError`` without one."""
    table = Path(path)
    if name is None and ("://" in path or (table / VERSIONS).is_dir()):
        return path, None
    if name is None:
        folder = table if table.is_dir() else table.absolute().parent
        near_by = islice(iter_tables(folder, NUM_SEARCHED), NUM_LISTED + 1)
        there = f"tables under {folder}: {_format_names([os.path.relpath(str(other), folder) for other in near_by])}"
        what = "is not a Lance table (it has no _versions)" if table.exists() else "no such table"
        raise TableError(f"{path}: {what}; {there if folder.is_dir() else f'nor is there a folder {folder}'}")
    record = record_of(path)
    if record is None:
        raise TableError(f"{path}: is not a run directory (no manifest.json), so it has no stage {name!r}")
    refs: dict[str, tuple[str, int | None]] = {}
    for known, uri, version in _iter_named(record):
        refs.setdefault(known, (uri, version))
    if name in refs:
        return refs[name]
    below = [known for known in refs if known.startswith(f"{name}/")]
    if len(below) == 1:
        return refs[below[0]]
    if below:
        raise TableError(f"{path}: stage {name} wrote several tables, name one: {', '.join(sorted(below))}")
    raise TableError(f"{path}: no table of the run is called {name!r}; {suggest(name, list(refs))}")


def record_of(path: str) -> Place | None:
    """Return the folder with the record of a run directory or of a filter's output; None if the path is neither."""
    try:
        return record_in(to_place(path))
    except RunDirError:  # a URL that Lance supports and a run does not
        return None


def list_tables(directory: Place) -> list[FoundTable]:
    """Return the tables of a run: those on record in the order of the stages, then those that no stage recorded."""
    found = []
    for name, uri, version in _iter_named(directory):
        rows = None
        with suppress(ValueError, OSError):
            rows = int(lance.dataset(uri, version=version).count_rows())
        state = "not on record" if version is None else "missing" if rows is None else "done"
        found.append(FoundTable(name, uri, version, rows, state))
    return found


def _iter_named(directory: Place) -> Iterator[tuple[str, str, int | None]]:
    """Yield name, URI and version of the tables on record, then those that no stage recorded, the newest first."""
    seen = set()
    for stage, record in Manifest.load(directory).stages.items():
        refs = list(iter_table_refs(record.outputs))
        for ref in refs:
            place = to_place(ref.uri)
            seen.add(str(place.resolve()))
            yield (stage if len(refs) == 1 else f"{stage}/{place.stem}"), ref.uri, ref.version
    others = [path for path in iter_tables(directory) if str(path.resolve()) not in seen]
    for path in sorted(
        others, key=lambda path: max((f.modified for f in list_files(path / VERSIONS)), default=0), reverse=True
    ):
        folder = _FOLDER.fullmatch(os.path.relpath(str(path.parent), str(directory)))
        yield (str(path) if folder is None else f"{folder[1]}/{path.stem}"), str(path), None


def iter_tables(directory: Place, most: int | None = None) -> Iterator[Place]:
    """Yield the Lance tables under a directory, among at most ``most`` folders; does not descend into tables."""
    for root, folders, _ in islice(walk(directory), most):
        if VERSIONS in folders:
            yield to_place(root)
            folders.clear()
        folders.sort()


def suggest(name: str, known: list[str]) -> str:
    """Return the names that are like a wrong one, or else those that there are."""
    near = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"there are: {_format_names(known)}"


def _format_names(names: list[str]) -> str:
    more = ", ..." if len(names) > NUM_LISTED else ""
    return ", ".join(names[:NUM_LISTED]) + more if names else "none"


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
    versions up to this one, of which ``versions`` has at most ``NUM_VERSIONS``, newest first. ``fragments`` have the
    ``rows`` of the smallest and the largest one, and the ``bytes`` of all files on disk.

    Raises:
        TableError: there is no such table, version or column, or Lance refuses the expression.
    """
    try:
        dataset = lance.dataset(uri)
    except REFUSALS as error:
        raise TableError(f"{uri}: is not a Lance table ({_explain(error)})") from error
    versions: list[Any] = dataset.versions()
    numbers = [item["version"] for item in versions]
    if version is not None:
        if version not in numbers:
            raise TableError(
                f"{uri}: has no version {version}; there are {len(numbers)}, {numbers[0]} to {numbers[-1]}"
            )
        dataset = lance.dataset(uri, version=version)
    names = dataset.schema.names
    for name in columns or ():
        if name not in names:
            raise TableError(f"{uri}: has no column {name!r}; {suggest(name, names)}")
    known = [item for item in versions if item["version"] <= dataset.version]
    try:
        num_rows = int(dataset.count_rows())
        matching = num_rows if where is None else int(dataset.count_rows(filter=where))
        wanted = None if columns is None else list(columns)
        sample = dataset.to_table(columns=wanted, filter=where, limit=rows).to_pylist() if rows else []
        return {
            "uri": uri,
            "version": dataset.version,
            "rows": num_rows,
            "matching": matching,
            "where": where,
            "columns": [{"name": f.name, "type": _format_type(f.type), "nullable": f.nullable} for f in dataset.schema],
            "num_versions": len(known),
            "versions": [
                {
                    "version": item["version"],
                    "time": item["timestamp"].astimezone(UTC).isoformat(timespec="seconds"),
                    "rows": int(item["metadata"]["total_rows"]),
                }
                for item in known[: -NUM_VERSIONS - 1 : -1]
            ],
            "fragments": _count_fragments(dataset),
            "errors": _count_errors(dataset, where) if ERROR.name in names else None,
            "sample": [_shorten(row) for row in sample],
        }
    except REFUSALS as error:
        if where is not None:
            raise TableError(f"--where {where!r}: {_explain(error)}; columns of {uri}: {', '.join(names)}") from error
        raise TableError(f"{uri}: cannot be read ({_explain(error)})") from error


def _explain(error: Exception) -> str:
    return describe_lance_error(error) or str(error).removeprefix("Invalid user input: ")


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


def _count_fragments(dataset: Any) -> Json:
    items = dataset.get_fragments()
    rows = [int(item.count_rows()) for item in items]
    return {
        "count": len(items),
        "rows": [min(rows, default=0), max(rows, default=0)],
        "deleted_rows": sum(item.num_deletions for item in items),
        "bytes": sum(int(file.file_size_bytes or 0) for item in items for file in item.metadata.files),
    }


def _format_type(kind: pa.DataType) -> str:
    """Return an Arrow type in numpy's names, e.g. ``float16[1024]``."""
    if pa.types.is_fixed_size_list(kind):
        return f"{_format_type(kind.value_type)}[{kind.list_size}]"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"{_format_type(kind.value_type)}[]"
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))


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
        *_align([(str(of["version"]), of["time"], f"{of['rows']:,} rows") for of in versions]),
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
