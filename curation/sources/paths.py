"""Discovery of input files: local paths and URLs, folders and globs, through pyarrow's filesystems or fsspec's."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs

from curation.errors import SourceError
from curation.escaping import format_error
from curation.json_types import Json
from curation.storage.digest import compute_even_starts

_PLAIN = "/=+,@:~()'!$&*;"
"""Characters that a URL's path may hold unescaped, besides letters, digits and ``_.-``."""


class FoundFile(NamedTuple):
    """A file, or a ``.lance`` directory: its path or URL, size in bytes, and a tag that changes with its content."""

    path: str
    size: int
    modified: str
    inner: str = ""
    """The path below the searched folder; "" for a file that was named itself."""


BLOCKS, BLOCK_BYTES = 16, 64 << 10
"""Number and length in bytes of the blocks of a large file whose digest shows a change that keeps size and time."""


def get_filesystem(path: str) -> tuple[pafs.FileSystem, str]:
    """Return the filesystem of a path or URL, and the path on it; ``SourceError`` if no library knows the URL."""
    if "://" not in path:
        return pafs.LocalFileSystem(), path
    try:
        found: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(path)
        return found
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        import fsspec  # type: ignore[import-untyped]

        try:
            other, inner = fsspec.core.url_to_fs(path)
        except (ValueError, ImportError) as error:
            raise SourceError(f"{path}: neither pyarrow nor fsspec opens this URL ({error})") from error
        return pafs.PyFileSystem(pafs.FSSpecHandler(other)), inner


def find(path: str) -> tuple[list[FoundFile], bool]:
    """Return the visible files at a path, in a folder or matching a glob, sorted; and whether the path names one file.

    A ``.lance`` directory counts as one file. Folders and globs skip names that start with ``.`` or ``_``.
    ``SourceError`` if there is nothing, or the path cannot be looked at.
    """
    with naming_errors(path, "cannot be looked at ({}); correct the path or URL, or see that its store answers"):
        base, _, query = path.partition("?") if "://" in path else (path, "", "")
        query = f"?{query}" if query else ""
        wild = re.search(r"[*?\[]", base)
        if wild is None or "://" not in base:  # a local name may hold a bracket; a URL with one cannot be parsed
            fs, root = get_filesystem(path)
            kind = fs.get_file_info(root).type
            if kind == pafs.FileType.File or (kind == pafs.FileType.Directory and base.rstrip("/").endswith(".lance")):
                return [FoundFile(path, *read_stamp(fs, fs.get_file_info(root)))], True
            if kind == pafs.FileType.Directory:
                return _walk(fs, root, base, query, ".*"), False
        if wild is None:
            raise SourceError(f"{path}: there is no such file or folder; correct the path")
        folder, _, pattern = base[: wild.start()].rpartition("/")
        folder = folder or ("/" if base.startswith("/") else ".")
        fs, root = get_filesystem(folder + query)
        is_folder = fs.get_file_info(root).type == pafs.FileType.Directory
        # ``*`` and ``?`` stay within a folder, ``**/`` crosses folders
        special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern + base[wild.start() :])
        expression = "".join(
            special.get(part) or (part.replace("[!", "[^", 1) if part.startswith("[") else re.escape(part))
            for part in parts
        )
        found = _walk(fs, root, folder, query, expression) if is_folder else []
        if not found:
            raise SourceError(f"{path}: no file matches this pattern; correct it, or put the files there")
        return found, False


@contextmanager
def naming_errors(path: str, message: str) -> Iterator[None]:
    """Raise errors of a path's content or store as a ``SourceError`` with a message that has the reason at ``{}``."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        # errors of stores' clients have no common type, nor are all of them ``OSError``
        if not (isinstance(error, ValueError | OSError | pa.ArrowException) or "://" in path):
            raise
        reason = re.sub(r",? *\S+\.rs:\d+:\d+", "", format_error(error))
        raise SourceError(f"{path}: {message.format(reason)}") from error


def compute_content_digest(path: str, size: int) -> str:
    """Return a digest of a file's bytes: of all if it is small, else of its head, tail and blocks in between."""
    fs, inner = get_filesystem(path)
    is_short = size <= BLOCKS * BLOCK_BYTES
    starts = [0] if is_short else compute_even_starts(size, BLOCKS, BLOCK_BYTES)
    digest = hashlib.sha256()
    with fs.open_input_file(inner) as file:
        for start in starts:
            file.seek(start)
            digest.update(file.read(size if is_short else BLOCK_BYTES))
    return digest.hexdigest()[:32]


def _walk(fs: pafs.FileSystem, root: str, shown: str, query: str, expression: str) -> list[FoundFile]:
    """Return, sorted, the visible files whose path below ``root`` matches, with ``shown`` in the place of ``root``."""
    found: dict[str, FoundFile] = {}
    # Names as in a URL, %20 for a space: pyarrow decodes its URLs, fsspec does not.
    is_quoted = "://" in shown and not isinstance(fs, pafs.PyFileSystem)
    for info in fs.get_file_info(pafs.FileSelector(root, recursive=True)):
        inner = info.path.removeprefix(root).lstrip("/")
        table = re.match(r"(?:.*?/)??[^/]*\.lance(?=/|$)", inner)
        if table is not None:  # do not list the files inside a table
            inner = table.group()
        elif info.type != pafs.FileType.File:
            continue
        hidden = any(part.startswith((".", "_")) for part in inner.split("/"))
        name = quote(inner, _PLAIN) if is_quoted else inner
        if inner not in found and not hidden and any(re.fullmatch(expression, text) for text in (inner, name)):
            found[inner] = FoundFile(f"{shown.rstrip('/')}/{name}{query}", *read_stamp(fs, info), inner)
    return [found[inner] for inner in sorted(found)]


def read_stamp(fs: pafs.FileSystem, info: pafs.FileInfo) -> tuple[int, str]:
    """Return the size and the tag of a file, as in :class:`FoundFile`; its store may raise errors of its own."""
    modified = "" if info.mtime_ns is None else str(info.mtime_ns)
    if not modified and isinstance(fs, pafs.PyFileSystem):
        known: Json = fs.handler.fs.info(info.path)
        modified = next((str(known[key]) for key in ("ETag", "etag", "LastModified", "created") if key in known), "")
    return info.size or 0, modified
