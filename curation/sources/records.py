"""The records of JSONL and CSV files: their starts, bytes and content.

Reading can start at any record, so a range costs only its own bytes. A record that cannot be read is refused with its
file, its number and the text around the fault.
"""

import codecs
import csv
import io
import json
import re
import sys
from collections.abc import Iterator
from typing import Any, Literal

import pyarrow as pa

from curation.errors import SourceError
from curation.escaping import quote_text
from curation.json_types import Json, is_deeper
from curation.sources.paths import get_filesystem
from curation.sources.source_file import COMPRESSED, SourceFile

MAX_RECORD = 64 << 20
"""Maximum length of a record, in bytes; an unclosed quote would otherwise take in the rest of the file."""
BLOCK_BYTES = 1 << 20
MAX_DEPTH = 50
"""Maximum depth of a JSON value, since the output file formats nest by the call stack."""
ARRAY_TO_LINES = (
    'python -c \'import json; [print(json.dumps(row)) for row in json.load(open("OLD", encoding="utf-8-sig"))]\' > NEW'
)
"""Command that writes a file with an object on each line, of one with an array of objects."""
_AROUND = 30
"""Number of characters shown on either side of a fault."""

csv.field_size_limit(sys.maxsize)  # Python's own limit is 131,072 characters a field


def iter_records(file: SourceFile, offset: int, number: int) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a file from a byte on, as start and bytes, without blank ones.

    ``number`` is that of the first record; a CSV file's header is record 0. ``SourceError``: a quoted field has no end,
    a record is longer than ``MAX_RECORD``, or the file is UTF-16 or an array of JSON.
    """
    with _open(file.path, offset) as opened:
        has_quotes = file.format == "csv" and file.quoting != "none"
        parts, odd, start = [], False, offset
        lines = io.BufferedReader(opened, BLOCK_BYTES)
        while line := lines.readline(MAX_RECORD + 1):
            if file.format == "jsonl" and line.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
                raise SourceError(
                    f"{file.path}: record {number} is an array, and each line is an object; write one object on "
                    f"each line: {ARRAY_TO_LINES}"
                )
            if len(line) > MAX_RECORD:
                raise ValueError(f"a line has more than {MAX_RECORD >> 20} MiB")
            if offset == 0 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise SourceError(
                    f"{file.path}: the file is UTF-16; convert it to UTF-8: iconv -f UTF-16 -t UTF-8 OLD > "
                    "NEW, or save it as 'CSV UTF-8'"
                )
            offset += len(line)
            parts.append(line)
            # A quoted CSV field may hold line ends; doubled quotes inside it keep the parity.
            odd ^= has_quotes and line.count(b'"') % 2 == 1
            if not odd:
                record = b"".join(parts).removeprefix(codecs.BOM_UTF8 if start == 0 else b"")
                if record.strip(b"\r\n" if file.format == "csv" else None):  # in CSV spaces are a value
                    yield start, record
                    number += 1
                parts, start = [], offset
            if offset - start > MAX_RECORD:
                break
        if parts:
            text = parts[0].decode(errors="backslashreplace")
            raise SourceError(
                f"{file.path}: record {number} has a quoted field that never ends, "
                f"{_format_near(text, _find_fault(text, file.delimiter))}; close the quote, double it if it is "
                "part of the text, or set quoting: none in its source if quotes are letters there"
            )


def _open(path: str, offset: int) -> pa.NativeFile:
    """Return a file opened at a byte of its text; compressed text is read up to that byte."""
    fs, inner = get_filesystem(path)
    compression = next((name for ending, name in COMPRESSED.items() if inner.lower().endswith(ending)), None)
    if compression is None:
        file = fs.open_input_file(inner)
        file.seek(offset)
        return file
    file = fs.open_input_stream(inner, compression=compression)
    while offset and (block := file.read(min(offset, BLOCK_BYTES))):
        offset -= len(block)
    return file


def parse_record(file: SourceFile, number: int, record: bytes, names: list[str]) -> Json:
    """Return a record by column; ``names`` are those of a CSV file's header. ``SourceError``: it cannot be read."""
    if file.format != "csv":
        return _parse_json_object(file.path, number, record)
    return dict(zip(names, _parse_csv_fields(file, number, record, names), strict=True))


def _parse_json_object(path: str, number: int, record: bytes) -> Json:
    """Return the object in a JSONL record; ``SourceError`` of another value, a repeated key, half a surrogate pair."""
    text = _decode(path, number, record)

    def make_error(problem: str, at: int = 0, mend: str = "fix the file") -> SourceError:
        return SourceError(f"{path}: record {number} {problem} {_format_near(text, at)}; {mend}")

    def require_unique(pairs: list[tuple[str, Any]]) -> Json:
        found = dict(pairs)
        if len(found) != len(pairs):  # JSON leaves open which value counts
            twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
            raise make_error(f"has the key {quote_text(twice)} twice,")
        return found

    try:
        value = json.loads(text, object_pairs_hook=require_unique)
        if text.count("[") + text.count("{") > MAX_DEPTH and is_deeper(value, MAX_DEPTH):
            raise RecursionError
    except SourceError:
        raise
    except json.JSONDecodeError as error:
        mend = "fix the file, or write each object on one line (jq -c . OLD > NEW)"
        raise make_error(f"is not JSON ({error.msg})", error.pos, mend) from error
    except RecursionError as error:
        raise make_error(f"nests deeper than {MAX_DEPTH} levels,", mend="make it flatter") from error
    except ValueError as error:  # Python refuses to read integers of more than 4,300 digits
        raise make_error("has an integer of thousands of digits,") from error
    if not isinstance(value, dict):
        raise make_error(f"is not a JSON object but {type(value).__name__},")
    if "\\u" in text and (half := re.search("[\ud800-\udfff]", json.dumps(value, ensure_ascii=False))):
        at = text.lower().find(f"\\u{ord(half[0]):04x}")
        raise make_error("has half of a surrogate pair", at, "write the whole character")
    return value


def parse_csv_header(file: SourceFile, record: bytes) -> list[str]:
    """Return a CSV file's column names, without empty ones at the end."""
    text = _decode(file.path, 0, record)
    if "\r" in re.sub(r'"(?:[^"]|"")*"', "", text.rstrip("\r\n")):
        raise SourceError(f"{file.path}: its line ends are carriage returns; convert them: tr '\\r' '\\n' < OLD > NEW")
    if hint := re.fullmatch(r'"?(?i:sep)=(.)"?', text.strip("\r\n")):
        raise SourceError(
            f"{file.path}: {hint[0]!r} is Excel's hint, not a header; delete line 1, and set delimiter: "
            f"{json.dumps(hint[1])} in its source"
        )
    names = _parse_csv_fields(file, 0, record)
    while len(names) > 1 and not names[-1]:
        names.pop()
    return names


def _parse_csv_fields(file: SourceFile, number: int, record: bytes, names: list[str] | None = None) -> list[str]:
    """Return the fields of a CSV record, as many as ``names``; further empty ones are left out.

    ``SourceError``: not UTF-8, a quote or a space before one in the wrong place, another number of fields, or quotes
    that may have swallowed rows: its lines have the right number of fields by themselves, too.
    """
    text, delimiter = _decode(file.path, number, record), file.delimiter

    def make_error(problem: str, at: int, mend: str) -> SourceError:
        where = "the header" if names is None else f"record {number}"
        return SourceError(f"{file.path}: {where} {problem} {_format_near(text, at)}; {mend}")

    quoting: Literal[0, 3] = csv.QUOTE_NONE if file.quoting == "none" else csv.QUOTE_MINIMAL
    try:
        fields = next(csv.reader([text], strict=True, delimiter=delimiter, quoting=quoting), [])
    except csv.Error as error:
        mend = "a field with quotes or line ends has to stand in quotes, with its own quotes doubled"
        raise make_error("cannot be read as CSV", _find_fault(text, delimiter), mend) from error
    if names is None:
        return fields
    if quoting == csv.QUOTE_MINIMAL and ' "' in text:
        spaced = next(csv.reader([text], delimiter=delimiter, skipinitialspace=True))
        if [field.lstrip(" ") for field in fields] != [field.lstrip(" ") for field in spaced]:
            mend = "take such spaces out, or set quoting: none in its source if quotes are letters there"
            raise make_error("has a space before the quote that opens a field,", text.index(' "'), mend)
    if not any(fields[len(names) :]):
        fields = fields[: len(names)]
    lines = text.rstrip("\r\n").split("\n")
    if file.quoting == "auto" and _can_be_rows(lines, len(names), delimiter):
        problem = (
            f"is one row of {len(lines)} lines if its quotes are CSV's, and the first and the last of these lines "
        )
        problem += f"have {len(names)} fields if they are not,"
        mend = "set quoting: none (a quote is part of the text) or quoting: quotes in its source"
        raise make_error(problem, text.find('"'), mend)
    if len(fields) != len(names):
        raise make_error(f"has {len(fields)} fields, the header {len(names)},", 0, "fix the file")
    return fields


def _can_be_rows(lines: list[str], num_fields: int, delimiter: str) -> bool:
    """Return whether the lines of a quoted record have the right number of fields by themselves.

    With tabs, the first and the last line suffice if no quote is doubled, as CSV's are. A delimiter before a space
    belongs to a sentence (``yes, but``).
    """
    if delimiter == "\t" and len(lines) > 1 and not any('""' in line for line in lines):
        lines = [lines[0], lines[-1]]
    between = re.compile(re.escape(delimiter) + ("(?! )" if delimiter in ",;" else ""))
    return len(lines) > 1 and num_fields > 1 and all(len(between.findall(line)) == num_fields - 1 for line in lines)


def _decode(path: str, number: int, record: bytes) -> str:
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        around = record[max(0, error.start - _AROUND) : error.end + _AROUND].decode(errors="backslashreplace")
        raise SourceError(
            f"{path}: record {number} is not UTF-8 near {quote_text(around, 4 * _AROUND)}; convert the file to UTF-8"
        ) from error


def _find_fault(record: str, delimiter: str) -> int:
    """Return the position at which a CSV record first violates RFC 4180."""
    at, sign = 0, re.escape(delimiter)
    pattern = re.compile(rf'(?:"(?:[^"]|"")*"|[^"{sign}\r\n]*)(?:{sign}|\r?\n\Z|\Z)')
    while (field := pattern.match(record, at)) and field.end() > at:
        at = field.end()
    return at


def _format_near(text: str, at: int) -> str:
    start = max(0, at - _AROUND)
    around = text[start : max(0, at) + _AROUND].strip()
    return f"near {quote_text(around, 2 * _AROUND)}"
