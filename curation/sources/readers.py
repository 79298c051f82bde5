"""Readers of Parquet, JSONL, CSV and Lance, in row order, one range at a time.

CSV has no types: its values are text, empty fields null. A value of JSONL keeps its row's own type (Arrow's type
``json``, which ``curation.sources.missing`` turns into Python values), whatever other rows hold: one Arrow type per
column would add keys to objects and make integers floats. For both formats the positions of some records are known
(``SourceFile.marks``), so that reading a range in the middle costs little more than its own bytes.
"""

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any, NamedTuple

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curation.arrays import Int64s
from curation.errors import SourceError
from curation.escaping import format_error, quote_text
from curation.json_types import Json
from curation.sources.missing import as_json, to_raw_rows
from curation.sources.paths import compute_content_digest, get_filesystem, naming_errors, read_stamp
from curation.sources.records import MAX_RECORD, iter_records, parse_csv_header, parse_record
from curation.sources.source_file import TEXTS, SourceFile

MARK_ROWS = 10_000
BATCH_ROWS = 8_192
_HEAD_ROWS = 1_000
NEAR_ROWS = 256
"""Maximum distance between requested rows that one read covers."""
READERS = 8
"""Number of concurrent reads, which mostly wait for the store."""


def measure(file: SourceFile) -> SourceFile:
    """Return a file with the number of its rows, its columns and, for a text format, where its records start.

    ``SourceError``: it cannot be read in its format.
    """
    with naming_errors(file.path, f"cannot be read as {file.format}: {{}}"):
        if file.format in TEXTS:
            return _measure_text(file)
        if file.format == "lance":
            dataset = _open_lance(file.path)
            schema, num_rows = dataset.schema, dataset.count_rows()
            file = replace(file, modified=f"version {dataset.version}")
        else:
            fs, inner = get_filesystem(file.path)
            with fs.open_input_file(inner) as opened:
                parquet = pq.ParquetFile(opened)
                schema, num_rows = parquet.schema_arrow, parquet.metadata.num_rows
                _require_distinct(file.path, schema.names)
                _require_cells(file.path, parquet.metadata)
        return replace(file, num_rows=num_rows, schema={field.name: str(field.type) for field in schema})


def read_rows(
    file: SourceFile, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows ``start`` to ``stop`` of a file in their order, as batches of the named columns (those it has).

    ``SourceError``: a record cannot be read (with its line), rows are missing, or the file is not the one that was
    found.
    """
    if file.format not in _READERS:
        raise SourceError(f"{file.path}: an earlier version read it as {file.format}; start another run")
    stop = file.num_rows if stop is None else min(stop, file.num_rows)
    wanted = list(file.schema) if columns is None else [name for name in columns if name in file.schema]
    if start >= stop:
        return
    num_rows = 0
    with naming_errors(file.path, f"cannot be read as {file.format}: {{}}"):
        for batch in _READERS[file.format](file, start, stop, wanted):
            batch = _require_text(file, batch, start + num_rows)
            num_rows += batch.num_rows
            yield batch
    if num_rows != stop - start:
        raise SourceError(
            f"{file.path}: changed while it was read: rows {start} to {stop} are {num_rows} now; run again"
        )
    if file.format == "lance":
        return  # the version that was found has been read, whatever became of the table
    # The file may have been replaced since it was found: Ray has started in between.
    with naming_errors(file.path, "existed before, and cannot be read now: {}"):
        fs, inner = get_filesystem(file.path)
        size, modified = read_stamp(fs, fs.get_file_info(inner))
        is_same = (size, modified) == (file.size, file.modified)
        content = compute_content_digest(file.path, size) if is_same and file.content else file.content
    if not is_same or content != file.content:
        change = "its size and time are the same, but its bytes differ"
        if not is_same:
            change = f"it had {file.size:,} bytes of {file.modified}, and has {size:,} of {modified}"
        raise SourceError(
            f"{file.path}: was replaced after it was found: {change}; none of its rows is kept: restore it, or start "
            "another run"
        )


def _require_distinct(path: str, names: Sequence[str]) -> None:
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise SourceError(f"{path}: names a column twice ({quote_text(twice[0])}); rename one")


class DelimiterError(SourceError):
    """A CSV file whose header seems to use another delimiter."""


_DELIMITERS = {",": "','", ";": "';'", "\t": "tabs", "|": "'|'"}
"""Names of CSV delimiters in messages."""


def _require_delimiter(path: str, names: Sequence[str], delimiter: str) -> None:
    """Refuse a header of one column that contains another delimiter, since only the user knows which is meant."""
    for sign, named in _DELIMITERS.items():
        parts = names[0].rstrip(sign).split(sign)
        if len(names) == 1 and len(parts) > 1 and all(part.strip() for part in parts):
            raise DelimiterError(
                f"{path}: read with {_DELIMITERS.get(delimiter, quote_text(delimiter))} between fields, the header is "
                f"one column, {quote_text(names[0])}: its fields are separated by {named}; set delimiter: "
                f"{json.dumps(sign)} in its source"
            )


def _require_cells(path: str, metadata: pq.FileMetaData) -> None:
    """Refuse values larger than ``MAX_RECORD``, since a few kilobytes can hold one of a gigabyte."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in map(group.column, range(group.num_columns)):
            size = column.total_uncompressed_size / max(1, column.num_values)
            if size > MAX_RECORD:
                raise SourceError(
                    f"{path}: row group {number}, column {quote_text(column.path_in_schema)}: a value takes "
                    f"{size:,.0f} bytes on average, and {MAX_RECORD:,} are read at most; leave such rows out"
                )


def _require_text(file: SourceFile, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
    """Return the batch with plain texts for Arrow's views, which many Arrow functions do not take; refuse wrong texts.

    Parquet and Lance do not check that bytes that are declared as text are UTF-8.
    """
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    schema = pa.schema([field.with_type(plain.get(field.type, field.type)) for field in batch.schema])
    batch = batch if schema == batch.schema else batch.cast(schema)
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        for row in range(batch.num_rows):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                try:
                    column.slice(row, 1).validate(full=True)
                except pa.ArrowInvalid as error:
                    raise SourceError(
                        f"{file.path}: row {start + row + 1}, column {quote_text(name)}: {format_error(error)}; fix "
                        "the file"
                    ) from error
        raise
    return batch


def _read_parquet(file: SourceFile, start: int, stop: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    fs, inner = get_filesystem(file.path)
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


def _read_lance(file: SourceFile, start: int, stop: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    dataset = _open_lance(file.path, int(file.modified.removeprefix("version ")))
    rows = {"offset": start, "limit": stop - start, "scan_in_order": True, "batch_size": BATCH_ROWS}
    yield from dataset.scanner(columns=columns, **rows).to_batches()


def _read_text(file: SourceFile, start: int, stop: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    mark, names = start // MARK_ROWS, list(file.schema)
    first = mark * MARK_ROWS
    records = islice(iter_records(file, file.marks[mark], first + 1), start - first, stop - first)
    found = (parse_record(file, number, record, names) for number, (_, record) in enumerate(records, start + 1))
    while rows := list(islice(found, BATCH_ROWS)):
        values = [[row.get(name) for row in rows] for name in columns]
        arrays = [
            pa.array([text or None for text in of], pa.string()) if file.format == "csv" else as_json(of)
            for of in values
        ]
        yield pa.RecordBatch.from_arrays(arrays, columns)


_READERS = {"parquet": _read_parquet, "lance": _read_lance, **dict.fromkeys(TEXTS, _read_text)}


def _open_lance(path: str, version: int | None = None) -> Any:
    return lance.dataset(get_filesystem(path)[1] if path.startswith("file://") else path, version=version)


def _measure_text(file: SourceFile) -> SourceFile:
    is_csv = file.format == "csv"
    names: list[str] = []
    found = iter_records(file, 0, number=0 if is_csv else 1)
    if is_csv:
        if (header := next(found, None)) is None:
            raise SourceError(
                f"{file.path}: is empty, without even a header; write the columns' names in line 1, or leave it out"
            )
        names = parse_csv_header(file, header[1])
        _require_delimiter(file.path, names, file.delimiter)
        _require_distinct(file.path, names)
    num_rows, marks, kinds = 0, [], dict.fromkeys(names, "text")
    for num_rows, (offset, record) in enumerate(found, 1):
        row = _inspect_record(file, num_rows, record, names)
        _require_no_export(file.path, num_rows, row)
        if (num_rows - 1) % MARK_ROWS == 0:
            marks.append(offset)
        if not is_csv:
            kinds |= dict.fromkeys(row, "json")  # the last row may have a key that no other has
    return replace(file, num_rows=num_rows, schema=kinds, marks=tuple(marks))


def _inspect_record(file: SourceFile, number: int, record: bytes, names: list[str]) -> Json:
    """Return a record, after the first ones only as far as its keys need; its faults are reported when it is read."""
    if number <= _HEAD_ROWS:
        return parse_record(file, number, record, names)
    if file.format == "csv":
        has_end = b"\n" in record.rstrip()  # which quotes may have swallowed
        return parse_record(file, number, record, names) if has_end or b"choices" in record else {}
    try:
        value = json.loads(record)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


_CHOICES = re.compile(r"""\s*\{\s*["']choices["']""")


def _require_no_export(path: str, number: int, row: Json) -> None:
    """Refuse exports of Prodigy and Label Studio: a rejected task would become a labelled row, and choices a class."""
    is_answered = row.get("answer") in ("accept", "reject", "ignore")
    if is_answered and ("_task_hash" in row or isinstance(row.get("accept"), list)):
        raise SourceError(
            f"{path}: record {number} is a task of Prodigy, answered by {row['answer']}; write the accepted ones as "
            'rows (several choices stay a list): jq -c \'select(.answer == "accept") | {text, label: (.label // '
            "if .accept[1] then .accept else .accept[0] end)}' OLD > NEW"
        )
    if isinstance(row.get("data"), dict) and isinstance(row.get("annotations"), list):
        raise SourceError(
            f"{path}: record {number} is a task of Label Studio; write rows, here of the first choice of the first "
            "annotator: jq -c '{text: .data.text, label: .annotations[0].result[0].value.choices[0]}' OLD > NEW"
        )
    for name, value in row.items():
        is_text = isinstance(value, str) and _CHOICES.match(value)
        if is_text or (isinstance(value, dict) and value.keys() == {"choices"}):
            raise SourceError(
                f"{path}: record {number}, column {quote_text(name)} has choices as Label Studio writes them; write "
                "the label there, or, with domain.multi: true, the list of labels"
            )


class SampledRow(NamedTuple):
    """A row of a source."""

    file: int
    """The file's number."""
    row: int
    raw: Json


def read_rows_at(
    files: Sequence[SourceFile], positions_N: Int64s, columns: Sequence[str] | None = None
) -> list[SampledRow]:
    """Return the rows at these positions of a source, counted through its files by number, in the requested order.

    Only parts with a requested row are read: of Parquet the row group up to the row, of JSONL and CSV at most 10,000
    records.
    """
    in_order = sorted(files, key=lambda file: file.index)
    ends = np.cumsum([file.num_rows for file in in_order])
    order_N = np.argsort(positions_N, kind="stable")
    sorted_N = np.asarray(positions_N)[order_N]
    file_N = np.searchsorted(ends, sorted_N, side="right")
    row_N = sorted_N - (ends - [file.num_rows for file in in_order])[file_N]

    def read(span: slice) -> list[SampledRow]:
        file, wanted = in_order[int(file_N[span.start])], row_N[span]
        first = int(wanted[0])
        found: list[tuple[int, Json]] = []
        for batch in read_rows(file, first, int(wanted[-1]) + 1, columns):
            here = wanted[(wanted >= first) & (wanted < first + batch.num_rows)]
            found += zip(here.tolist(), to_raw_rows(batch.take(pa.array(here - first))), strict=True)
            first += batch.num_rows
        return [SampledRow(file.index, row, raw) for row, raw in found]

    breaks = np.flatnonzero((np.diff(file_N) != 0) | (np.diff(row_N) > NEAR_ROWS)) + 1
    edges = pairwise([0, *breaks.tolist(), len(row_N)])
    spans = [slice(start, stop) for start, stop in edges if stop > start]
    with ThreadPoolExecutor(READERS) as pool:
        read_all = [row for rows in pool.map(read, spans) for row in rows]
    return [read_all[place] for place in np.argsort(order_N).tolist()]
