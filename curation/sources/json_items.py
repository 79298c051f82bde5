"""The objects of a JSON file, which is an array of them or holds one after the other: where each starts, and its bytes.

Like the lines of a JSONL file they can be read from any of them on, so that a range costs its own bytes alone.
"""

import codecs
import json
import re
from collections.abc import Iterator

import pyarrow as pa

from curation.errors import SourceError

_BETWEEN = re.compile(r"[\s,]*")
_BLOCK_BYTES = 1 << 20
_scan = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode


def items(path: str, file: pa.NativeFile, offset: int, most: int) -> Iterator[tuple[int, bytes]]:
    """Yield the values of an open JSON file, each with the byte at which it starts.

    One that is no JSON is the last, with all that follows it, for the caller to refuse.

    Args:
        path: the file's, for messages.
        file: open at ``offset``: the file's begin, or the start of a value.
        offset: in bytes.
        most: bytes of a value.

    Raises:
        SourceError: the array has no end, or something stands after it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    text, at, is_array, has_all = "", 0, False, False

    def more() -> None:
        nonlocal text, at, has_all
        block = file.read(max(_BLOCK_BYTES, 2 * len(text)))  # so that a long value is not scanned for every block
        text, at, has_all = text[at:] + decoder.decode(block, final=not block), 0, not block

    more()
    if offset == 0:
        start = _BETWEEN.match(text, int(text.startswith("\ufeff")))
        is_array = start is not None and text[start.end() : start.end() + 1] == "["
        if start is not None and is_array:
            offset, at = offset + len(_bytes(text[: start.end() + 1])), start.end() + 1
        elif text.startswith("\ufeff"):
            offset, at = 3, 1
    while True:
        between = _BETWEEN.match(text, at)
        assert between is not None
        offset, at = offset + len(_bytes(between[0])), between.end()
        if at == len(text) and not has_all:
            more()
        elif at == len(text):
            if is_array:
                raise SourceError(f"{path}: its array has no end; the file is cut: write it again")
            return
        elif text[at] == "]":
            _require_end(path, text[at + 1 :] + decoder.decode(file.read(_BLOCK_BYTES)))
            return
        else:
            try:
                end = _scan(text, at)[1]
            except json.JSONDecodeError:
                if not has_all and len(text) - at <= most:
                    more()
                    continue
                end = len(text)
            except RecursionError as error:
                raise SourceError(f"{path}: byte {offset}: its values nest too deep; make it flatter") from error
            value = _bytes(text[at:end])
            yield offset, value
            offset, at = offset + len(value), end


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _require_end(path: str, rest: str) -> None:
    if rest.strip():
        raise SourceError(f"{path}: its array ends, and more follows; make one array of it, or one object a line")
