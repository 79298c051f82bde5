"""The records of JSONL and CSV files and the values of JSON files: their starts, bytes and content.

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
from dataclasses import replace
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
_AROUND = 30
"""Number of characters shown on either side of a fault."""
_AS_ARRAY = "a file that is one array of objects is read as format: json (ending .json)"
_START, _BETWEEN = re.compile(r"\ufeff?(?:[\s,]*\[)?"), re.compile(r"[\s,]*")
_scan = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode

csv.field_size_limit(sys.maxsize)  # Python's own limit is 131,072 characters a field


def iter_records(file: SourceFile, offset: int, number: int) -> Iterator[tuple[int, bytes]]:
    """Yield the records (for JSON: values) of a file from a byte on, as start and bytes, without blank ones.

    ``number`` is that of the first record; a CSV file's header is record 0. ``SourceError``: a quoted field or an array
    has no end, a record is longer than ``MAX_RECORD``, or the file is UTF-16.
    """
    with _open(file.path, offset) as opened:
        if file.format == "json":
            yield from _iter_json_values(file.path, opened, offset)
            return
        has_quotes = file.format == "csv" and file.quoting != "none"
        parts, odd, start = [], False, offset
        lines = io.BufferedReader(opened, BLOCK_BYTES)
        while line := lines.readline(MAX_RECORD + 1):
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


def _iter_json_values(path: str, file: pa.NativeFile, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield each value of a JSON file that is open at ``offset``, with the byte at which it starts.

    A value that is not JSON is yielded last, with all that follows it, for the caller to refuse.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    text, at, has_all = "", 0, False

    def more() -> None:
        nonlocal text, at, has_all
        rest = text[at:]
        block = file.read(max(BLOCK_BYTES, 2 * len(rest)))  # so that a long value is not scanned for every block
        text, at, has_all = rest + decoder.decode(block, final=not block), 0, not block

    more()
    start = _START.match(text)[0] if offset == 0 else ""  # type: ignore[index]
    is_array = start.endswith("[")
    offset, at = offset + len(_encode(start)), len(start)
    while True:
        between = _BETWEEN.match(text, at)
        assert between is not None
        offset, at = offset + len(_encode(between[0])), between.end()
        if at == len(text) and not has_all:
            more()
        elif at == len(text):
            if is_array:
                raise SourceError(f"{path}: its array has no end; the file is cut: write it again")
            return
        elif text[at] == "]":
            if (text[at + 1 :] + decoder.decode(file.read(BLOCK_BYTES))).strip():
                raise SourceError(
                    f"{path}: text follows the end of its array; write one array, or one object on each line"
                )
            return
        else:
            try:
                end = _scan(text, at)[1]
            except json.JSONDecodeError:
                if not has_all and len(text) - at <= MAX_RECORD:
                    more()
                    continue
                end = len(text)
            except RecursionError as error:
                raise SourceError(f"{path}: byte {offset}: its values nest too deep; make it flatter") from error
            value = _encode(text[at:end])
            yield offset, value
            offset, at = offset + len(value), end


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def parse_record(file: SourceFile, number: int, record: bytes, names: list[str]) -> Json:
    """Return a record by column; ``names`` are those of a CSV file's header. ``SourceError``: it cannot be read."""
    if file.format != "csv":
        return _parse_json_object(file.path, number, record)
    return dict(zip(names, _parse_csv_fields(file, number, record, names), strict=True))


def _parse_json_object(path: str, number: int, record: bytes) -> Json:
    """Return the object in a JSONL record; ``SourceError`` if it is none, or has a key twice or half of a character."""
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
        mend = _AS_ARRAY if text.startswith("[") else "fix the file"
        raise make_error(f"is not JSON ({error.msg})", error.pos, mend) from error
    except RecursionError as error:
        raise make_error(f"nests deeper than {MAX_DEPTH} levels,", mend="make it flatter") from error
    except ValueError as error:  # Python refuses to read integers of more than 4,300 digits
        raise make_error("has an integer of thousands of digits,") from error
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise make_error(f"is not a JSON object but {kind},", mend=_AS_ARRAY if kind == "list" else "fix the file")
    if "\\u" in text and (half := re.search("[\ud800-\udfff]", json.dumps(value, ensure_ascii=False))):
        at = text.lower().find(f"\\u{ord(half[0]):04x}")
        raise make_error("has half of a surrogate pair", at, "write the whole character")
    return value


def parse_csv_header(file: SourceFile, record: bytes) -> tuple[list[str], bool]:
    """Return a CSV file's column names, without empty ones at the end, and whether a space follows each delimiter."""
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
    is_spaced = file.is_spaced or (len(names) > 1 and all(name[:1] == " " != name[1:2] for name in names[1:]))
    return _parse_csv_fields(replace(file, is_spaced=is_spaced), 0, record)[: len(names)], is_spaced


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
    is_spaced = file.is_spaced
    try:
        reader = csv.reader([text], strict=True, delimiter=delimiter, quoting=quoting, skipinitialspace=is_spaced)
        fields = next(reader, [])
    except csv.Error as error:
        mend = "a field with quotes or line ends has to stand in quotes, with its own quotes doubled"
        raise make_error("cannot be read as CSV", _find_fault(text, delimiter), mend) from error
    if names is None:
        return fields
    if quoting == csv.QUOTE_MINIMAL and not is_spaced and ' "' in text:
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
