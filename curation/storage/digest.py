"""Digests of what a folder holds."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import xxhash

from curation.refs import fingerprint
from curation.storage.paths import PART_BYTES, Place, Remote

SMALL_BYTES = 64 << 20
"""Files above this size are not read as a whole."""
SAMPLES, SAMPLE_BYTES = 64, 1 << 18
"""How many stretches of a large file are read, and how long each is."""

WEIGHTS, WORDS = (".safetensors", ".bin"), (".json", ".jinja", ".model", ".txt")
NO_WEIGHTS = ("training.json",)


BLOCK_BYTES = 1 << 20
QUICK, SHA256, TAG = "xxh3:", "sha256:", "tag:"


class Content(NamedTuple):
    """Size and digest of a file when it was written."""

    size: int
    digest: str
    """``xxh3:`` or ``sha256:`` and the digest of its bytes, or ``tag:`` and an object store's content tag."""


def compute_quick_content(path: Path) -> Content:
    """Return the size and the 128-bit XXH3 of a local file.

    This digest finds accidents, not forgeries. It takes about as long as reading a file that is in memory.

    Raises:
        OSError: the file cannot be read.
    """
    digest = xxhash.xxh3_128()
    num_bytes = _feed(digest.update, path)
    return Content(num_bytes, QUICK + digest.hexdigest())


def _feed(update: Callable[[memoryview], None], path: Path) -> int:
    """Hand a file's bytes to ``update`` in blocks; return how many there are."""
    view, num_bytes = memoryview(bytearray(BLOCK_BYTES)), 0
    with path.open("rb", buffering=0) as file:
        while read := file.readinto(view):
            update(view[:read])
            num_bytes += read
    return num_bytes


def has_content(path: Place, then: Content, tag: str) -> bool:
    """Return whether a file has the content that was taken of it, here or before it was copied from a disk or a store.

    ``tag``: the digest that the store gives now; "" on a disk, where a tag that is no MD5 digest tells nothing.

    Raises:
        OSError: the file cannot be read.
    """
    kind, _, kept = then.digest.replace('"', "").partition(":")
    if kind == "tag" and not (len(kept) == 32 and set(kept) <= set("0123456789abcdef")):
        return tag in ("", then.digest)
    digest = (
        xxhash.xxh3_128() if kind == "xxh3" else hashlib.new("md5" if kind == "tag" else kind, usedforsecurity=False)
    )
    if isinstance(path, Remote):
        for start in range(0, then.size, PART_BYTES):
            digest.update(path.read_range(start, min(start + PART_BYTES, then.size)))
    else:
        _feed(digest.update, path)
    return digest.hexdigest() == kept


def compute_content(text: bytes) -> Content:
    """Return what :func:`compute_quick_content` gives for a file of these bytes."""
    return Content(len(text), QUICK + xxhash.xxh3_128_hexdigest(text))


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a local file, in hexadecimal; read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compute_directory_digest(path: Place) -> str:
    """Return a digest of a directory's files that is equal for every copy, on a disk or in an object store.

    A file above 64 MiB counts by its size and by 64 stretches of 256 KiB, evenly spaced from its first byte to its
    last: every fine-tuning changes all weights, so this tells models apart without reading tens of gigabytes.
    """
    return fingerprint([(name, _digest_file(path / name, size)) for name, size in _list_sizes(path).items()])


def compute_model_digest(path: Place) -> str:
    """Return the same of the files at the top of a model's folder that hold weights, tokenizer and configuration."""
    sizes = {
        name: size for name, size in _list_sizes(path).items() if name.endswith((*WEIGHTS, *WORDS)) and "/" not in name
    }
    return fingerprint(
        [(name, _digest_file(path / name, sizes[name])) for name in sorted(sizes) if name not in NO_WEIGHTS]
    )


def _list_sizes(path: Place) -> dict[str, int]:
    """Return the size of each file in a folder, however deep, by its path relative to the folder, in order."""
    if isinstance(path, Remote):
        return {entry.path: entry.size for entry in path.entries()}
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.stat().st_size for file in files}


def _digest_file(path: Place, size: int) -> str:
    if size <= SMALL_BYTES:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    starts = compute_even_starts(size, SAMPLES, SAMPLE_BYTES)
    digest = hashlib.sha256(str(size).encode())
    if isinstance(path, Remote):
        for start in starts:
            digest.update(path.read_range(start, start + SAMPLE_BYTES))
        return digest.hexdigest()
    with path.open("rb") as file:
        for start in starts:
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def compute_even_starts(size: int, number: int, length: int) -> list[int]:
    """Return where ``number`` stretches of ``length`` bytes start that reach from a file's first byte to its last."""
    return [(size - length) * part // (number - 1) for part in range(number)]
