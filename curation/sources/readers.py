"""Reads Parquet, JSONL, CSV and Lance in row order, one range at a time.

CSV has no types: its values are text, empty fields null. A JSONL column that mixes types within a batch becomes text
too, so that the domain can refuse one odd row; missing values (``curation.sources.missing``) become null first. Both
formats have marked record positions, so that reading a range in the middle costs no more than its own bytes.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curation.errors import SourceError
from curation.sources.missing import present
from curation.sources.paths import filesystem
from curation.sources.source_file import SourceFile

MARK_ROWS = 10_000
BATCH_ROWS = 8_192
_HEAD_ROWS = 1_000
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The measured properties of a file; fields as in ``SourceFile``, plus the ``version`` of a Lance table."""

    num_rows: int
    schema: dict[str, str]
    marks: tuple[int, ...] = ()
    version: str = ""


def measure(path: str, form: str) -> Shape:
    """Count the rows of a file and name its columns.

    Raises:
        SourceError: the file cannot be read as ``form``.
    """
    try:
        if form == "parquet":
            fs, inner = filesystem(path)
            with fs.open_input_file(inner) as file:
                parquet = pq.ParquetFile(file)
                return Shape(num_rows=parquet.metadata.num_rows, schema=_types(parquet.schema_arrow))
        if form == "lance":
            dataset = _lance(path)
            return Shape(
                num_rows=dataset.count_rows(), schema=_types(dataset.schema), version=f"version {dataset.version}"
            )
        return _measure_text(path, form)
    except SourceError:
        raise
    except (pa.ArrowException, OSError, ValueError, csv.Error) as error:
        raise SourceError(f"{path}: cannot be read as {form}: {' '.join(str(error).split())}") from error


def read_rows(
    file: SourceFile, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows ``start`` to ``stop`` of a file in their order, as batches of the named columns (those it has).

    Raises:
        SourceError: a record cannot be read (with its line), or the file has fewer rows than counted before.
    """
    stop = file.num_rows if stop is None else min(stop, file.num_rows)
    wanted = list(file.schema) if columns is None else [name for name in columns if name in file.schema]
    if start >= stop:
        return
    num_rows = 0
    try:
        for batch in _READERS[file.format](file, start, stop, wanted):
            num_rows += batch.num_rows
            yield batch
    except SourceError:
        raise
    except (pa.ArrowException, OSError, ValueError, csv.Error) as error:
        problem = " ".join(str(error).split())
        raise SourceError(f"{file.path}: cannot be read as {file.format}: {problem}") from error
    if num_rows != stop - start:
        raise SourceError(
            f"{file.path}: changed while it was read: rows {start} to {stop} are {num_rows} now; run again"
        )


def _parquet(file: SourceFile, start: int, stop: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    fs, inner = filesystem(file.path)
    with fs.open_input_file(inner) as opened:
        parquet = pq.ParquetFile(opened)
        first = 0
        for group in range(parquet.num_row_groups):
            last = first + parquet.metadata.row_group(group).num_rows
            if first < stop and start < last:
                for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
                    low, high = max(start - first, 0), min(stop - first, batch.num_rows)
                    if low < high:
                        yield batch.slice(low, high - low)
                    first += batch.num_rows
            first = last
            if first >= stop:
                return


def _lance_rows(file: SourceFile, start: int, stop: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    dataset = _lance(file.path, int(file.modified.removeprefix("version ")))
    scanner = dataset.scanner(
        columns=columns, offset=start, limit=stop - start, scan_in_order=True, batch_size=BATCH_ROWS
    )
    yield from scanner.to_batches()


def _jsonl(file: SourceFile, start: int, stop: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    records = _range(file, start, stop)
    while rows := list(islice(records, BATCH_ROWS)):
        values = [_object(file.path, number, record) for number, record in rows]
        yield pa.RecordBatch.from_arrays(
            [_column([present(row.get(name)) for row in values]) for name in columns], columns
        )


def _csv(file: SourceFile, start: int, stop: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    names = list(file.schema)
    records = _range(file, start, stop)
    while rows := list(islice(records, BATCH_ROWS)):
        values = [_fields(record) for _, record in rows]
        for (number, _), fields in zip(rows, values, strict=True):
            if len(fields) != len(names):
                raise SourceError(
                    f"{file.path}: record {number} has {len(fields)} fields, the header {len(names)}; fix the file"
                )
        arrays = [pa.array([fields[names.index(name)] or None for fields in values], pa.string()) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, columns)


_READERS = {"parquet": _parquet, "lance": _lance_rows, "jsonl": _jsonl, "csv": _csv}


def _types(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def _lance(path: str, version: int | None = None) -> Any:
    import lance

    return lance.dataset(path.removeprefix("file://"), version=version)


def _measure_text(path: str, form: str) -> Shape:
    records = _records(path, form, 0)
    names: list[str] = []
    if form == "csv":
        _, _, header = next(records, (0, 0, b""))
        names = _fields(header)
        if len(set(names)) != len(names):
            raise SourceError(f"{path}: names a column twice in its header ({', '.join(names)}); rename one")
    num_rows, marks, keys = 0, [], dict.fromkeys(names)
    for offset, line, record in records:
        if num_rows % MARK_ROWS == 0:
            marks.append(offset)
        if form == "jsonl" and num_rows < _HEAD_ROWS:
            keys |= dict.fromkeys(_object(path, line, record))
        num_rows += 1
    return Shape(num_rows=num_rows, schema=dict.fromkeys(keys, "text" if form == "csv" else "json"), marks=tuple(marks))


def _range(file: SourceFile, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """The records ``start`` to ``stop`` of a JSONL or CSV file with their numbers, from 1."""
    mark = start // MARK_ROWS
    skipped = start - mark * MARK_ROWS
    records = _records(file.path, file.format, file.marks[mark])
    for number, (_, _, record) in enumerate(islice(records, skipped, skipped + stop - start), start + 1):
        yield number, record


def _records(path: str, form: str, offset: int) -> Iterator[tuple[int, int, bytes]]:
    """The records of a file from a byte on, without blank ones: where each starts, its number and its bytes."""
    fs, inner = filesystem(path)
    with fs.open_input_file(inner) as file:
        file.seek(offset)
        number, parts, odd, start = 0, [], False, offset
        for line in _lines(file):
            offset += len(line)
            parts.append(line)
            # A quoted CSV field may hold line ends; doubled quotes inside it keep the parity.
            odd ^= form == "csv" and line.count(b'"') % 2 == 1
            if not odd:
                record = (parts[0] if len(parts) == 1 else b"".join(parts)).removeprefix(_BOM if start == 0 else b"")
                if record.strip():
                    number += 1
                    yield start, number, record
                parts, start = [], offset
        if parts:
            raise SourceError(f"{path}: the quoted field that starts at byte {start} never ends; close the quote")


def _lines(file: pa.NativeFile) -> Iterator[bytes]:
    """The lines of an open file with their ends, read a mebibyte at a time."""
    rest = b""
    while block := file.read(1 << 20):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


def _object(path: str, number: int, record: bytes) -> dict[str, Any]:
    try:
        value = json.loads(record)
    except ValueError as error:
        raise SourceError(f"{path}: record {number} is not JSON ({error}); fix the file") from error
    if not isinstance(value, dict):
        raise SourceError(f"{path}: record {number} is not a JSON object but {type(value).__name__}; fix the file")
    return value


def _fields(record: bytes) -> list[str]:
    return next(csv.reader([record.decode()]), [])


def _column(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError):
        return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode(errors="replace").decode()
