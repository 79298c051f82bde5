"""Digests of what a folder holds."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import xxhash

from curation.refs import fingerprint
from curation.storage.paths import Place, Remote

SMALL_BYTES = 64 << 20
"""Files above this size are not read as a whole."""
SAMPLES, SAMPLE_BYTES = 64, 1 << 18
"""How many stretches of a large file are read, and how long each is."""

WEIGHTS, WORDS = (".safetensors", ".bin"), (".json", ".jinja", ".model", ".txt")
NO_WEIGHTS = ("training.json",)


BLOCK_BYTES = 1 << 20
QUICK, TAG = "xxh3:", "tag:"


class Content(NamedTuple):
    """Size and digest of a file when it was written."""

    size: int
    digest: str
    """``xxh3:`` and the digest of its bytes, or ``tag:`` and an object store's content tag."""


def quick_content(path: Path) -> Content:
    """The size and the 128-bit XXH3 of a local file.

    This digest finds accidents, not forgeries. It takes about as long as reading a file that is in memory.

    Raises:
        OSError: the file cannot be read.
    """
    digest, block, num_bytes = xxhash.xxh3_128(), bytearray(BLOCK_BYTES), 0
    view = memoryview(block)
    with path.open("rb", buffering=0) as file:
        while read := file.readinto(view):
            digest.update(view[:read])
            num_bytes += read
    return Content(num_bytes, QUICK + digest.hexdigest())


def bytes_digest(content: bytes) -> str:
    """The digest of :func:`quick_content` for bytes in memory."""
    return QUICK + xxhash.xxh3_128_hexdigest(content)


def file_sha256(path: Path) -> str:
    """The SHA-256 of a local file, in hexadecimal; read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def directory_digest(path: Place) -> str:
    """A digest of a directory's files: of the content of small ones, of size and modification time above 64 MiB.

    In an object store: a digest of the store's content tags.
    """
    if isinstance(path, Remote):
        return fingerprint([(entry.path, entry.size, entry.tag) for entry in path.entries()])
    entries = []
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        stat = file.stat()
        small = stat.st_size <= SMALL_BYTES
        content = hashlib.sha256(file.read_bytes()).hexdigest() if small else f"{stat.st_size}-{stat.st_mtime_ns}"
        entries.append((str(file.relative_to(path)), content))
    return fingerprint(entries)


def model_digest(path: Place) -> str:
    """A digest of a model's or an adapter's files that is equal for every copy, on a disk or in an object store.

    It covers the files at the top of the folder that hold weights, tokenizer and configuration. A file above 64 MiB
    counts by its size and by 64 stretches of 256 KiB, evenly spaced from its first byte to its last: every fine-tuning
    changes all weights, so this tells models apart without reading tens of gigabytes.
    """
    if isinstance(path, Remote):
        sizes = {entry.path: entry.size for entry in path.entries()}
    else:
        sizes = {file.name: file.stat().st_size for file in path.iterdir() if file.is_file()}
    names = [name for name in sorted(sizes) if name.endswith((*WEIGHTS, *WORDS)) and "/" not in name]
    return fingerprint([(name, _content(path / name, sizes[name])) for name in names if name not in NO_WEIGHTS])


def _content(path: Place, size: int) -> str:
    if size <= SMALL_BYTES:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    starts = evenly_spaced(size, SAMPLES, SAMPLE_BYTES)
    digest = hashlib.sha256(str(size).encode())
    if isinstance(path, Remote):
        _feed(digest.update, lambda start: path.read_range(start, start + SAMPLE_BYTES), starts)
        return digest.hexdigest()
    with path.open("rb") as file:

        def read(start: int) -> bytes:
            file.seek(start)
            return file.read(SAMPLE_BYTES)

        _feed(digest.update, read, starts)
    return digest.hexdigest()


def evenly_spaced(size: int, number: int, length: int) -> list[int]:
    """Where ``number`` stretches of ``length`` bytes start that reach from the first byte of a file to its last."""
    return [(size - length) * part // (number - 1) for part in range(number)]


def _feed(update: Callable[[bytes], None], read: Callable[[int], bytes], starts: list[int]) -> None:
    for start in starts:
        update(read(start))
