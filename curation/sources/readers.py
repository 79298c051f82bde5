"""Readers of Parquet, JSONL, JSON, CSV and Lance, in row order, one range at a time.

CSV has no types: its values are text, empty fields null. A value of JSONL and JSON keeps its row's own type (Arrow's
type ``json``, which ``curation.sources.missing`` turns into Python values), whatever other rows hold: one Arrow type
per column would add keys to objects and make integers floats. These formats have marked record positions, so that
reading a range in the middle costs no more than its own bytes.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq

from curation.errors import SourceError
from curation.escaping import format_error, quote_text
from curation.json_types import Json
from curation.sources.forms import FORMS, ROWS, FlatRow
from curation.sources.missing import as_json
from curation.sources.paths import compute_content_digest, get_filesystem, naming_errors, read_stamp
from curation.sources.records import MAX_RECORD, iter_records, parse_csv_fields, parse_csv_header, parse_json_object
from curation.sources.source_file import PLAIN, TEXTS, Dialect, SourceFile

MARK_ROWS = 10_000
BATCH_ROWS = 8_192
_HEAD_ROWS = 1_000


@dataclass(frozen=True, kw_only=True)
class FileShape:
    """The measured properties of a file; fields as in ``SourceFile``, plus the ``version`` of a Lance table."""

    num_rows: int
    schema: dict[str, str]
    marks: tuple[int, ...] = ()
    version: str = ""
    dialect: Dialect = PLAIN
    left_out: Mapping[str, int] = field(default_factory=dict)


def measure(path: str, form: str, dialect: Dialect = PLAIN) -> FileShape:
    """Count the rows of a file and name its columns; ``dialect`` is what is known of how CSV is written.

    Raises:
        SourceError: the file cannot be read as ``form``.
    """
    with naming_errors(path, f"cannot be read as {form}: {{}}"):
        if form == "parquet":
            fs, inner = get_filesystem(path)
            with fs.open_input_file(inner) as file:
                parquet = pq.ParquetFile(file)
                _require_distinct(path, parquet.schema_arrow.names)
                _require_cells(path, parquet.metadata)
                return FileShape(num_rows=parquet.metadata.num_rows, schema=_get_types(parquet.schema_arrow))
        if form == "lance":
            dataset = _open_lance(path)
            version = f"version {dataset.version}"
            return FileShape(num_rows=dataset.count_rows(), schema=_get_types(dataset.schema), version=version)
        return _measure_text(path, form, dialect)


def read_rows(
    file: SourceFile, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows ``start`` to ``stop`` of a file in their order, as batches of the named columns (those it has).

    ``SourceError``: a record cannot be read (with its line), rows are missing, or the file is not the one that was
    found.
    """
    stop = file.num_rows if stop is None else min(stop, file.num_rows)
    wanted = list(file.schema) if columns is None else [name for name in columns if name in file.schema]
    inside = [name for name in wanted if name not in file.folders]
    if wanted and not inside:  # rows are counted by a column of theirs
        inside = [name for name in file.schema if name not in file.folders][:1]
    if start >= stop:
        return
    num_rows = 0
    with naming_errors(file.path, f"cannot be read as {file.format}: {{}}"):
        for batch in map(_cast_views, _READERS[file.format](file, start, stop, inside)):
            _require_text(file, batch, start + num_rows)
            num_rows += batch.num_rows
            yield _with_folders(batch, file, wanted) if wanted != inside else batch
    if num_rows != stop - start:
        raise SourceError(
            f"{file.path}: changed while it was read: rows {start} to {stop} are {num_rows} now; run again"
        )
    if file.format != "lance":  # a table's version is read, whatever became of the table
        _require_as_found(file)


def _require_as_found(file: SourceFile) -> None:
    """Refuse rows read from a file that changed since it was found, since Ray starts in between."""
    with naming_errors(file.path, "existed before, and cannot be read now: {}"):
        size, modified = read_stamp(file.path)
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


def _with_folders(batch: pa.RecordBatch, file: SourceFile, columns: Sequence[str]) -> pa.RecordBatch:
    """Return the batch with the columns given by the folders' names, in the order of ``columns``."""
    arrays = [
        pa.array([file.folders[name] or None] * batch.num_rows, pa.string())
        if name in file.folders
        else batch.column(name)
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, columns)


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


def _cast_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with plain texts and bytes for Arrow's views, which many Arrow functions do not take."""
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    schema = pa.schema([field.with_type(plain.get(field.type, field.type)) for field in batch.schema])
    return batch if schema == batch.schema else batch.cast(schema)


def _require_text(file: SourceFile, batch: pa.RecordBatch, start: int) -> None:
    """Refuse texts that are not UTF-8, since Parquet and Lance do not check bytes that are declared as text."""
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
    found = _iter_rows(file, start, stop)
    is_plain = file.format == "csv" and file.found_form == ROWS
    while rows := list(islice(found, BATCH_ROWS)):
        values = [[row.get(name) for row in rows] for name in columns]
        arrays = [pa.array([text or None for text in of], pa.string()) if is_plain else as_json(of) for of in values]
        yield pa.RecordBatch.from_arrays(arrays, columns)


_READERS = {"parquet": _read_parquet, "lance": _read_lance, **dict.fromkeys(TEXTS, _read_text)}


def _get_types(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def _open_lance(path: str, version: int | None = None) -> Any:
    return lance.dataset(get_filesystem(path)[1] if path.startswith("file://") else path, version=version)


def _measure_text(path: str, format: str, dialect: Dialect) -> FileShape:
    """Measure a text file, again from the start if ``auto`` finds another form in a record."""
    dialect = dialect._replace(found_form=ROWS if dialect.form == "auto" else dialect.form)
    found = iter_records(path, format, 0, number=0 if format == "csv" else 1, dialect=dialect)
    names: list[str] = []
    if format == "csv":
        _, header = next(found, (0, b""))
        names, dialect = parse_csv_header(path, header, dialect)
        _require_delimiter(path, names, dialect.delimiter)
        _require_distinct(path, names)
    num_rows, marks, left_out = 0, [], Counter[str]()
    form = FORMS.get(dialect.found_form)
    kinds = dict.fromkeys(names if form is None else (), "text")
    for number, (offset, record) in enumerate(found, 1):
        row = _inspect_record(path, number, record, format, names, dialect)
        fitting = [name for name, other in FORMS.items() if dialect.form == "auto" and form is None and other.fits(row)]
        if fitting:
            shape = _measure_text(path, format, dialect._replace(form=fitting[0]))
            return replace(shape, dialect=shape.dialect._replace(form="auto"))
        flat = FlatRow(row) if form is None else form.read(row)
        if flat.row is None:
            left_out[flat.left_out] += 1
            continue
        if num_rows % MARK_ROWS == 0:
            marks.append(offset)
        num_rows += 1
        if format != "csv" or form is not None:
            kinds |= {name: kinds.get(name, "json") for name in flat.row}  # a key may first stand in the last row
            kinds |= dict.fromkeys(flat.choices, "choice")
    is_alone = format == "json" and num_rows == 1 and form is None
    if is_alone and any(isinstance(value, list | dict) for value in row.values()):  # it holds the rows in it
        raise SourceError(
            f"{path}: is one object with the keys {', '.join(row)}; write an array of its rows, each an object of "
            "columns"
        )
    return FileShape(num_rows=num_rows, schema=kinds, marks=tuple(marks), dialect=dialect, left_out=dict(left_out))


def _inspect_record(path: str, number: int, record: bytes, format: str, names: Sequence[str], dialect: Dialect) -> Json:
    """Return a record, parsed as far as its keys and form require; faults of late records are reported later."""
    is_whole = number <= _HEAD_ROWS or dialect.found_form != ROWS
    if format == "csv":
        has_end = b"\n" in record.rstrip()  # which quotes may have swallowed
        is_read = is_whole or has_end or b"choices" in record
        fields = parse_csv_fields(path, number, record, list(names), dialect) if is_read else []
        return dict(zip(names, fields, strict=is_read))
    if is_whole:
        return parse_json_object(path, number, record)
    try:
        value = json.loads(record)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _iter_rows(file: SourceFile, start: int, stop: int) -> Iterator[Json]:
    mark, form = start // MARK_ROWS, FORMS.get(file.found_form)
    names = [name for name in file.schema if name not in file.folders]
    if form is not None and file.format == "csv":  # whose columns are those of the form, not of the header
        _, header = next(iter_records(file.path, file.format, 0, 0, file.dialect), (0, b""))
        names, _ = parse_csv_header(file.path, header, file.dialect)
    skipped, wanted = start - mark * MARK_ROWS, stop - mark * MARK_ROWS
    number = mark * MARK_ROWS + 1
    found = enumerate(iter_records(file.path, file.format, file.marks[mark], number, file.dialect), number)
    if form is None:
        yield from (_parse_row(file, number, record, names) for number, (_, record) in islice(found, skipped, wanted))
        return
    rows = (form.read(_parse_row(file, number, record, names)).row for number, (_, record) in found)
    yield from islice((row for row in rows if row is not None), skipped, wanted)


def _parse_row(file: SourceFile, number: int, record: bytes, names: list[str]) -> Json:
    if file.format != "csv":
        return parse_json_object(file.path, number, record)
    return dict(zip(names, parse_csv_fields(file.path, number, record, names, file.dialect), strict=True))
