"""``curate inspect``: finds tables of a run, by path or stage, and shows what is in one."""

import reprlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import lance

from curation.errors import REFUSALS, RunDirError, TableError, describe_lance_error
from curation.escaping import escape_text
from curation.refs import iter_table_refs
from curation.rundir.manifest import Manifest, record_in
from curation.storage.paths import Place, to_place, walk
from curation.tables.versions import VERSIONS

SHORT = reprlib.Repr()
"""Writes a value on one line, with long texts and lists cut."""
SHORT.maxstring = SHORT.maxother = 100


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
    if name is None:
        return path, None
    record = record_of(path)
    if record is None:
        raise TableError(f"{path}: is not a run directory (no manifest.json), so it has no stage {name!r}")
    refs = {known: (uri, version) for known, uri, version in _iter_named(record)}
    found = [name] if name in refs else [known for known in refs if known.startswith(f"{name}/")]
    if len(found) > 1:
        raise TableError(f"{path}: stage {name} wrote several tables, name one: {', '.join(sorted(found))}")
    if not found:
        raise TableError(f"{path}: no table of the run is called {name!r}; there are {', '.join(refs) or 'none'}")
    return refs[found[0]]


def record_of(path: str) -> Place | None:
    """Return the folder with the record of a run directory or of a filter's output; None if the path is neither."""
    try:
        return record_in(to_place(path))
    except RunDirError:  # a URL of a kind that Lance reads, and that cannot hold a run
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
    """Yield name, URI and version of the tables on record, then those that no stage recorded."""
    seen = set()
    for stage, record in Manifest.load(directory).stages.items():
        refs = list(iter_table_refs(record.outputs))
        for ref in refs:
            place = to_place(ref.uri)
            seen.add(str(place.resolve()))
            yield (stage if len(refs) == 1 else f"{stage}/{place.stem}"), ref.uri, ref.version
    for root, folders, _ in walk(directory):
        if VERSIONS in folders:
            path = to_place(root)
            if str(path.resolve()) not in seen:
                yield str(path), str(path), None
            folders.clear()  # a table has no table inside
        folders.sort()


def describe_table(
    uri: str, version: int | None, *, where: str | None = None, columns: Sequence[str] | None = None, rows: int = 5
) -> list[str]:
    """Return lines on a table: its version (default: the newest), number of rows, columns and first rows.

    ``where`` is an SQL expression; only rows that match it are shown.

    Raises:
        TableError: there is no such table or column, or Lance refuses the expression.
    """
    try:
        dataset = lance.dataset(uri, version=version)
    except REFUSALS as error:
        why = describe_lance_error(error) or error
        raise TableError(f"{uri}: is no Lance table ({why}); `curate inspect RUN_DIR` lists those of a run") from error
    try:
        num_rows, matching = dataset.count_rows(), dataset.count_rows(filter=where)
        names = None if columns is None else list(columns)
        shown = dataset.to_table(columns=names, filter=where, limit=rows).to_pylist() if rows else []
    except REFUSALS as error:
        why = describe_lance_error(error) or error
        raise TableError(f"{uri}: cannot be read ({why}); its columns are {', '.join(dataset.schema.names)}") from error
    lines = [
        f"{uri}, version {dataset.version}",
        f"rows       {num_rows:,}{'' if where is None else f', {matching:,} where {where}'}",
        "columns",
        *_align([(of.name, f"{of.type}{'' if of.nullable else ', not null'}") for of in dataset.schema]),
    ]
    if shown:
        lines.append(f"sample     {len(shown):,} of {matching:,} rows")
    for row in shown:
        lines += ["  -", *_align([(name, SHORT.repr(value)) for name, value in row.items()], "    ")]
    return lines


def format_tables(found: Sequence[FoundTable]) -> list[str]:
    """Return the tables of a run, one line each."""
    rows = [("table", "rows", "version", "")]
    for item in found:
        count = "" if item.rows is None else f"{item.rows:,}"
        rows.append((item.name, count, "" if item.version is None else str(item.version), item.state))
    return _align(rows, "")


def _align(rows: Sequence[tuple[str, ...]], indent: str = "  ") -> list[str]:
    """Return each row as a line, with its cells in columns as wide as their longest cell."""
    rows = [tuple(map(escape_text, row)) for row in rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))] if rows else []
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
