"""One interface to a run's files: local paths and object-store URLs (``s3://bucket/run``, ``gs://bucket/run``).

:class:`Remote` implements the part of ``pathlib.Path`` that a run uses, so code with a :data:`Place` uses only that
part. Objects are written whole or not at all, listings are never cached, and failing requests are repeated for
``PATIENCE_SECONDS``. Credentials, region and endpoint come from the environment (``AWS_*``, ``GOOGLE_*``), the pod or
the machine; Lance reads the same ones, because it uses the same library.
"""

import copy
import os
import posixpath
import re
import shutil
import stat
import uuid
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

import obstore
from obstore import exceptions
from obstore.store import ObjectStore, from_url

from curation.errors import RunDirError
from curation.redaction import redact_text
from curation.storage.files import check_name, open_file, require_folder, sync_folder

SCHEMES = ("s3", "gs")
PATIENCE_SECONDS = 120
"""Seconds for which a request is repeated that the store does not answer, or answers with a server error."""
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 8
FIRST_SECONDS = 10
"""Patience with the first request of a command, in seconds: nothing is lost yet, and the address may be wrong."""
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    'of a profile by eval "$(aws configure export-credentials --format env)"',
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
"""Sources of each store's credentials, in words; ``SETTINGS`` names the settings of a store's address."""
SETTINGS = {
    "s3": "AWS_REGION, for a store other than Amazon's AWS_ENDPOINT_URL and AWS_ALLOW_HTTP, and the credentials "
    f"({CREDENTIALS['s3']})",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, without which a machine's role is asked for",
}

_URL = re.compile(rf"({'|'.join(SCHEMES)})://([A-Za-z0-9][A-Za-z0-9._-]+(?:/(?!\.\.?(?:/|$))[A-Za-z0-9._=@+-]+)+)/*")

_XML = re.compile(
    r"(?:<\?xml[^>]*>\s*)?<Error>.*?<Code>(?P<code>[^<]*)</Code>.*?<Message>(?P<message>[^<]*)</Message>.*?</Error>"
)


class StoredObject(NamedTuple):
    """An object below a place: its relative path, its size in bytes, and a tag that changes with its content."""

    path: str
    size: int
    tag: str
    modified: float
    """Time when the object was written, in seconds since 1970."""


class Remote:
    """A place in an object store, where folders are only prefixes of names."""

    def __init__(self, url: str) -> None:
        found = _URL.fullmatch(url)
        if found is None:
            raise RunDirError(
                f"{redact_text(url)!r} is not a URL of a supported object store; give {'|'.join(SCHEMES)}://BUCKET/"
                "FOLDER, of letters, digits and . _ - = @ +, without parts . and .."
            )
        self.scheme = found[1]
        self._path = PurePosixPath(found[2])

    def __str__(self) -> str:
        return f"{self.scheme}://{self._path}"

    def __repr__(self) -> str:
        return f"Remote({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: "Remote") -> bool:
        return str(self) < str(other)

    def __truediv__(self, name: str) -> Self:
        return self._copy_at(self._path / name)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._path.name

    @property
    def stem(self) -> str:
        """The last part of the path without its suffix."""
        return self._path.stem

    @property
    def parent(self) -> Self:
        """The folder that contains this place."""
        return self._copy_at(self._path.parent)

    def with_name(self, name: str) -> Self:
        """Return the path with another last part."""
        return self._copy_at(self._path.with_name(name))

    def absolute(self) -> Self:
        """Return this place, since a URL is always absolute."""
        return self

    def resolve(self) -> Self:
        """Return this place, since an object store has no links."""
        return self

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing, since an object store needs no folders."""

    def is_file(self) -> bool:
        """Return whether an object has this name."""
        try:
            with _errors(self):
                obstore.head(self.store, self.key)
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Return whether there are objects below this name."""
        with _errors(self):
            return any(obstore.list(self.store, f"{self.key}/", chunk_size=1))

    def exists(self) -> bool:
        """Return whether this place is a file or a folder."""
        return self.is_file() or self.is_dir()

    def read_bytes(self) -> bytes:
        """Return the content of the object."""
        return self.read_tagged()[0]

    def read_text(self) -> str:
        """Return the content of the object, decoded as UTF-8."""
        return self.read_bytes().decode()

    def read_tagged(self) -> tuple[bytes, dict[str, str]]:
        """Return the object's content, and its tag: with it as ``mode``, :meth:`put` replaces only this content."""
        with _errors(self):
            result = obstore.get(self.store, self.key)
            return bytes(result.bytes()), _get_tag(result.meta)

    def read_range(self, start: int, stop: int) -> bytes:
        """Return the bytes from ``start`` up to, not including, ``stop`` of the object."""
        with _errors(self):
            return bytes(obstore.get_range(self.store, self.key, start=start, end=stop))

    def download(self, path: Path) -> None:
        """Copy the object to a local file, in parts: a request times out after 30 s (AWS_TIMEOUT, GOOGLE_TIMEOUT)."""
        with _errors(self):
            meta = obstore.head(self.store, self.key)
            path.touch()

            def get(start: int) -> None:
                part: Any = {"range": (start, min(start + PART_BYTES, meta["size"])), "if_match": meta["e_tag"]}
                with path.open("r+b") as file:
                    file.seek(start)
                    file.write(obstore.get(self.store, self.key, options=part).bytes())

            with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
                list(pool.map(get, range(0, meta["size"], PART_BYTES)))

    def put(self, content: bytes | Path, mode: Any = "overwrite") -> dict[str, str]:
        """Write the whole object and return its tag; ``FileExistsError``, and no write, if ``mode`` is not met."""
        with _errors(self):
            try:
                return _get_tag(obstore.put(self.store, self.key, content, mode=mode))
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
                raise FileExistsError(f"{self}: was written by another since it was read") from error

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object if it exists; S3 ignores a missing object, Google reports one."""
        with suppress(FileNotFoundError), _errors(self):
            obstore.delete(self.store, self.key)

    def entries(self) -> list[StoredObject]:
        """Return the objects below this place by path, without the marker objects that some tools write for folders."""
        prefix = f"{self.key}/"
        with _errors(self):
            listed = {item["path"]: item for part in obstore.list(self.store, prefix) for item in part}
        folders = {str(folder) for path in listed for folder in PurePosixPath(path).parents}
        return sorted(
            StoredObject(path.removeprefix(prefix), item["size"], str(item["e_tag"]), item["last_modified"].timestamp())
            for path, item in listed.items()
            if path not in folders and path != self.key
        )

    def iterdir(self) -> Iterator[Self]:
        """Yield the folders and objects directly in this place."""
        _, folders, objects = next(self.walk())
        yield from (self / name for name in (*folders, *objects))

    def walk(self) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield as ``os.walk``: each folder, the names of its folders (the caller may change them) and objects."""
        with _errors(self):
            listed = obstore.list_with_delimiter(self.store, f"{self.key}/")
        folders = [PurePosixPath(prefix).name for prefix in listed["common_prefixes"]]
        yield str(self), folders, [PurePosixPath(item["path"]).name for item in listed["objects"]]
        for name in folders:
            yield from (self / name).walk()

    @property
    def key(self) -> str:
        """Name of the object in its bucket."""
        return "/".join(self._path.parts[1:])

    @property
    def bucket(self) -> str:
        """URL of the bucket."""
        return f"{self.scheme}://{self._path.parts[0]}"

    @property
    def store(self) -> ObjectStore:
        """Client of the bucket, which repeats failing requests for ``PATIENCE_SECONDS``."""
        return _store(self.bucket, PATIENCE_SECONDS)

    def _copy_at(self, path: PurePosixPath) -> Self:
        other = copy.copy(self)
        other._path = path
        return other


Place = Path | Remote


def to_place(text: str | Place) -> Place:
    """Return the place that a path or a URL names; ``RunDirError`` of an unsupported store or name."""
    if not isinstance(text, str):
        return text
    if check_name(text).startswith("file://"):
        return Path(unquote(text.removeprefix("file://")))
    return Remote(text) if "://" in text else Path(text)


def require_reachable(directory: Place, *, writable: bool = False) -> None:
    """Raise ``RunDirError`` for a store that does not answer soon, lacks the bucket or denies access.

    It is a command's first request. Also refuse a local path that cannot be a folder or, if ``writable``, be written.
    """
    if not isinstance(directory, Remote):
        require_folder(directory, writable=writable)
        return
    bucket = directory.bucket.rpartition("/")[2]
    try:
        with _errors(directory):
            next(iter(obstore.list(_store(directory.bucket, FIRST_SECONDS), directory.key, chunk_size=1)), None)
    except OSError as error:
        words = shorten_error(error.__cause__ if isinstance(error.__cause__, Exception) else error)[:300]
        if isinstance(error, PermissionError):
            problem = f"access is denied ({words}); give credentials that may list, read and write there "
            problem += f"({CREDENTIALS[directory.scheme]}, or the machine's role)"
        elif "status code: 404" in str(error):  # of a listing: a missing prefix would give an empty list instead
            problem = f"there is no bucket {bucket!r}; make it, or give another run_dir"
        else:
            problem = f"the store does not answer as it should ({words}); see {SETTINGS[directory.scheme]}"
        raise RunDirError(f"{directory}: {problem}") from error


def write_atomically(path: Place, content: str | bytes) -> None:
    """Replace a file's content atomically: readers see the old or the new content, also after a power cut."""
    content = content.encode() if isinstance(content, str) else content
    if isinstance(path, Remote):
        path.put(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # pids repeat on machines that share the folder
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def walk(directory: Place) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield as ``os.walk`` for a local or remote folder."""
    return directory.walk() if isinstance(directory, Remote) else os.walk(directory)


def read_range(path: Place, start: int, stop: int) -> bytes:
    """Return the bytes from ``start`` up to, not including, ``stop`` of a file."""
    if isinstance(path, Remote):
        return path.read_range(start, stop)
    with open_file(path) as file:
        file.seek(start)
        return file.read(stop - start)


def list_files(folder: Place) -> list[StoredObject]:
    """Return the files in a folder, however deep, sorted by path; a local file has no tag."""
    if isinstance(folder, Remote):
        return folder.entries()
    return sorted(find_files(folder, [str(path.relative_to(folder)) for path in folder.rglob("*")]).values())


def find_files(folder: Place, names: Collection[str]) -> dict[str, StoredObject]:
    """Return entries of the ``names`` that are files, by name; list an object store once, at their common folder."""
    found: dict[str, StoredObject] = {}
    if isinstance(folder, Remote):
        base = posixpath.commonpath([posixpath.dirname(name) for name in names]) if names else ""
        there = {posixpath.join(base, entry.path): entry for entry in (folder / base).entries()} if names else {}
        return {name: there[name] for name in names if name in there}
    for name in names:
        with suppress(OSError, ValueError):  # another process may remove it meanwhile
            info = (folder / name).stat()
            if stat.S_ISREG(info.st_mode):
                found[name] = StoredObject(name, info.st_size, "", info.st_mtime)
    return found


def remove(directory: Place) -> None:
    """Remove a folder if it exists."""
    if not isinstance(directory, Remote):
        shutil.rmtree(directory, ignore_errors=True)
        return
    for entry in directory.entries():
        (directory / entry.path).unlink()


@lru_cache(maxsize=32)
def _store(bucket: str, seconds: float) -> ObjectStore:
    """Return the client of a bucket, which repeats failing requests for at least the given seconds."""
    patience = timedelta(seconds=seconds)
    backoff = {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=5), "base": 2}
    retries: Any = {"max_retries": 1000, "retry_timeout": patience, "backoff": backoff}
    with _errors(bucket):
        return from_url(bucket, retry_config=retries)


@contextmanager
def _errors(place: object) -> Iterator[None]:
    """Translate obstore's errors within the context into Python's own, each with a message of one line."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{place}: there is no such object ({shorten_error(error)})") from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise PermissionError(f"{place}: {shorten_error(error)}") from error
    except exceptions.BaseError as error:
        raise OSError(f"{place}: {shorten_error(error)}") from error


def shorten_error(error: Exception) -> str:
    """Return a store's error message without its dump, and with only code and message of the XML in an answer."""
    text = " ".join(str(error).partition("Debug source:")[0].split())
    return _XML.sub(lambda found: f"{found['code']}: {found['message']}", text)


def _get_tag(meta: Any) -> dict[str, str]:
    return {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}
