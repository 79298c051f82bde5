"""Digests of files and of the content of folders."""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import xxhash

from curation.refs import fingerprint
from curation.storage.paths import PART_BYTES, Place, Remote, StoredObject, list_files, read_range

SMALL_BYTES = 64 << 20
"""Size of a file, in bytes, above which its digest is computed from parts of it."""
SAMPLES, SAMPLE_BYTES = 64, 1 << 18
"""Number of parts of a large file that are read, and the size of each in bytes."""
MODEL_ENDINGS = (".safetensors", ".bin", ".json", ".jinja", ".model", ".txt")
NO_WEIGHTS = ("training.json",)
QUICK, SHA256, TAG = "xxh3:", "sha256:", "tag:"
MD5 = re.compile('tag:"?[0-9a-f]{32}"?')


class Content(NamedTuple):
    """Size and digest of a file when it was written."""

    size: int
    digest: str
    """``xxh3:`` or ``sha256:`` with the digest of the file's bytes, or ``tag:`` with an object store's content tag."""


def compute_quick_content(path: Path) -> Content:
    """Return size and 128-bit XXH3 of a local file, which detects accidents, not forgeries, at the cost of a read."""
    with path.open("rb", buffering=0) as file:
        digest = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
        return Content(file.tell(), QUICK + digest)


def compute_content(text: bytes) -> Content:
    """Return the content, as by :func:`compute_quick_content`, of a file that holds ``text``."""
    return Content(len(text), QUICK + xxhash.xxh3_128_hexdigest(text))


def find_problem(path: Place, now: StoredObject | None, then: Content) -> str | None:
    """Return how a file differs from its earlier content, here or before it was copied; None if it does not differ.

    ``now``: the file's entry from ``paths.find_files``. Only sizes are compared if :func:`is_digest_lost`.
    """
    if now is None:
        return "is missing"
    if now.size != then.size:
        return f"has {now.size:,} bytes, and had {then.size:,} when it was written"
    kind, _, kept = then.digest.replace('"', "").partition(":")
    if kind == "tag" and not MD5.fullmatch(then.digest):
        return None if is_digest_lost(now, then) or TAG + now.tag == then.digest else "its content changed"
    digest = xxhash.xxh3_128() if kind == "xxh3" else hashlib.new({"tag": "md5"}.get(kind, kind), usedforsecurity=False)
    try:
        if isinstance(path, Remote):
            for start in range(0, then.size, PART_BYTES):
                digest.update(path.read_range(start, min(start + PART_BYTES, then.size)))
        else:
            with path.open("rb", buffering=0) as file:
                hashlib.file_digest(file, lambda: digest)
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return None if digest.hexdigest() == kept else "its content changed"


def is_digest_lost(now: StoredObject | None, then: Content) -> bool:
    """Return whether a file on a disk cannot be checked, as it was written to a store whose tag for it is no MD5."""
    return now is not None and not now.tag and then.digest.startswith(TAG) and not MD5.fullmatch(then.digest)


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a local file, in hexadecimal; read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compute_directory_digest(path: Place) -> str:
    """Return a digest of a directory's files that is equal for every copy, on a disk or in an object store.

    Of a file above 64 MiB, the digest covers the size and 64 parts of 256 KiB, evenly spaced from its first byte to its
    last: every fine-tuning changes all weights, so this tells models apart without reading tens of gigabytes.
    """
    return _digest_files(path, list_files(path))


def compute_model_digest(path: Place) -> str:
    """Return a digest, as of a directory, of a model's top-level files of weights, tokenizer and configuration."""
    top = (file for file in list_files(path) if "/" not in file.path and file.path not in NO_WEIGHTS)
    return _digest_files(path, (file for file in top if file.path.endswith(MODEL_ENDINGS)))


def _digest_files(folder: Place, files: Iterable[StoredObject]) -> str:
    found = []
    for file in files:
        if file.size <= SMALL_BYTES:
            digest = hashlib.sha256((folder / file.path).read_bytes())
        else:
            digest = hashlib.sha256(str(file.size).encode())
            for start in compute_even_starts(file.size, SAMPLES, SAMPLE_BYTES):
                digest.update(read_range(folder / file.path, start, start + SAMPLE_BYTES))
        found.append((file.path, digest.hexdigest()))
    return fingerprint(found)


def compute_even_starts(size: int, number: int, length: int) -> list[int]:
    """Return the starts of ``number`` evenly spaced parts of ``length`` bytes, from a file's first byte to its last."""
    return [(size - length) * part // (number - 1) for part in range(number)]
