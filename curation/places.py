"""Where a run keeps its files: a local path, or a URL of an object store (``s3://bucket/run``, ``gs://bucket/run``).

:class:`Remote` is of ``pathlib.Path`` what a run uses, so that code that is given a :data:`Place` asks for no more than
that. An object is put whole or not at all, a listing is never kept, and what the store refuses for a while is asked
again for ``PATIENCE_SECONDS``. Credentials, region and endpoint are those of the environment (``AWS_*``,
``GOOGLE_*``), of the pod or of the machine, as Lance reads them too: both stand on the same library. Keys of a profile
of AWS are put into the environment before (:mod:`curation.aws_profile`).
"""

import copy
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from curation import aws_profile
from curation.errors import RunDirError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs")
PATIENCE_SECONDS = 120
"""How long a request is made again that the store does not answer, or answers with an error of its own."""
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 8
FIRST_SECONDS = 10
"""How long the first request of a command is: nothing is lost yet, and the address may be wrong."""
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile in ~/.aws",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
"""What a store lets somebody in by; likewise ``SETTINGS``, what leads to it."""
SETTINGS = {
    "s3": "AWS_REGION, and for a store other than Amazon's AWS_ENDPOINT_URL and AWS_ALLOW_HTTP",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, without which a machine's role is asked for",
}

_URL = re.compile(rf"({'|'.join(SCHEMES)})://([A-Za-z0-9][A-Za-z0-9._-]+(?:/[A-Za-z0-9._=@+-]+)+)/*")


class Entry(NamedTuple):
    """An object below a place: the path from there, its size in bytes, and what tells its contents apart."""

    path: str
    size: int
    tag: str
    modified: float
    """When it was put, seconds since 1970."""


class Remote:
    """A place in an object store, where folders are nothing but prefixes of names."""

    def __init__(self, url: str) -> None:
        found = _URL.fullmatch(url)
        if found is None:
            raise RunDirError(
                f"{url!r} is no URL of an object store that is known here; give {'|'.join(SCHEMES)}://BUCKET/FOLDER, "
                "of letters, digits and . _ - = @ +"
            )
        if found[1] == "s3":
            aws_profile.use()
        self._scheme = found[1]
        self._path = PurePosixPath(found[2])

    def __str__(self) -> str:
        return f"{self._scheme}://{self._path}"

    def __repr__(self) -> str:
        return f"Remote({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: "Remote") -> bool:
        return str(self) < str(other)

    def __truediv__(self, name: str) -> Self:
        return self._at(self._path / name)

    @property
    def name(self) -> str:
        """The last part."""
        return self._path.name

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return self._path.stem

    @property
    def parent(self) -> Self:
        """What it is in."""
        return self._at(self._path.parent)

    def with_name(self, name: str) -> Self:
        """Its neighbour of that name."""
        return self._at(self._path.with_name(name))

    def with_suffix(self, suffix: str) -> Self:
        """Its neighbour with another suffix."""
        return self._at(self._path.with_suffix(suffix))

    def absolute(self) -> Self:
        """Itself: a URL is."""
        return self

    def resolve(self) -> Self:
        """Itself: there are no links."""
        return self

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: a name makes its own folders."""

    def is_file(self) -> bool:
        """Whether an object has this name."""
        import obstore

        try:
            with _errors(self):
                obstore.head(self.store, self.key)
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Whether an object's name goes on after this one."""
        import obstore

        with _errors(self):
            return any(obstore.list(self.store, f"{self.key}/", chunk_size=1))

    def exists(self) -> bool:
        """Whether it is a file or a folder."""
        return self.is_file() or self.is_dir()

    def read_bytes(self) -> bytes:
        """The content of the object."""
        return self.read_tagged()[0]

    def read_text(self) -> str:
        """The content of the object, UTF-8."""
        return self.read_bytes().decode()

    def read_tagged(self) -> tuple[bytes, dict[str, str]]:
        """The content of the object and what :meth:`put` takes as ``mode`` to replace just this content."""
        import obstore

        with _errors(self):
            result = obstore.get(self.store, self.key)
            return bytes(result.bytes()), _tag(result.meta)

    def download(self, path: Path) -> None:
        """Copy the object to a local file, in parts: a request is cut off after 30 s (AWS_TIMEOUT, GOOGLE_TIMEOUT)."""
        import obstore

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
        """Put an object whole; its tag.

        Raises:
            FileExistsError: something else is there than ``mode`` ("create", or a tag) asks for; nothing was put.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with _errors(self):
            try:
                return _tag(obstore.put(self.store, self.key, content, mode=mode))
            except (AlreadyExistsError, PreconditionError) as error:
                raise FileExistsError(f"{self}: was written by another since it was read") from error

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object, where it is there: S3 says nothing of one that is gone, Google does."""
        import obstore

        with suppress(FileNotFoundError), _errors(self):
            obstore.delete(self.store, self.key)

    def entries(self) -> list[Entry]:
        """The objects below, sorted by path, without those that some tools put to mark a folder."""
        import obstore

        prefix = f"{self.key}/"
        with _errors(self):
            listed = {item["path"]: item for part in obstore.list(self.store, prefix) for item in part}
        folders = {str(folder) for path in listed for folder in PurePosixPath(path).parents}
        return sorted(
            Entry(path.removeprefix(prefix), item["size"], str(item["e_tag"]), item["last_modified"].timestamp())
            for path, item in listed.items()
            if path not in folders and path != self.key
        )

    def iterdir(self) -> Iterator[Self]:
        """The folders and objects in it."""
        _, folders, objects = next(self.walk())
        yield from (self / name for name in (*folders, *objects))

    def walk(self) -> Iterator[tuple[str, list[str], list[str]]]:
        """As ``os.walk``: a folder, the names of the folders in it, which the caller may change, and of the objects."""
        import obstore

        with _errors(self):
            listed = obstore.list_with_delimiter(self.store, f"{self.key}/")
        folders = [PurePosixPath(prefix).name for prefix in listed["common_prefixes"]]
        yield str(self), folders, [PurePosixPath(item["path"]).name for item in listed["objects"]]
        for name in folders:
            yield from (self / name).walk()

    @property
    def key(self) -> str:
        """Its name in the bucket."""
        return "/".join(self._path.parts[1:])

    @property
    def scheme(self) -> str:
        """What its URL begins with, of ``SCHEMES``."""
        return self._scheme

    @property
    def bucket(self) -> str:
        """The URL of its bucket."""
        return f"{self._scheme}://{self._path.parts[0]}"

    @property
    def store(self) -> "ObjectStore":
        """Its bucket, to be asked."""
        return _store(self.bucket, PATIENCE_SECONDS)

    def _at(self, path: PurePosixPath) -> Self:
        other = copy.copy(self)
        other._path = path
        return other


Place = Path | Remote


def place(text: str | Place) -> Place:
    """The place that a path or a URL names.

    Raises:
        RunDirError: a URL of no store that is known here.
    """
    if not isinstance(text, str):
        return text
    text = text.removeprefix("file://")
    return Remote(text) if "://" in text else Path(text)


def require_reachable(directory: Place) -> None:
    """Refuse a store that does not answer soon, lacks the bucket or lets nobody in; the first request of a command.

    Raises:
        RunDirError: with what the store says.
    """
    if not isinstance(directory, Remote):
        return
    import obstore

    bucket = directory.bucket.rpartition("/")[2]
    try:
        with _errors(directory):
            next(iter(obstore.list(_store(directory.bucket, FIRST_SECONDS), directory.key, chunk_size=1)), None)
    except PermissionError as error:
        raise RunDirError(
            f"{directory}: access is denied ({_said(error)}); give credentials that may list, read and write there "
            f"({CREDENTIALS[directory.scheme]}, or the machine's role)"
        ) from error
    except OSError as error:
        if "status code: 404" in str(error):  # of a listing: that of no prefix is empty
            raise RunDirError(
                f"{directory}: there is no bucket {bucket!r}; make it, or give another run_dir"
            ) from error
        raise RunDirError(
            f"{directory}: the store does not answer as it should ({_said(error)}); see {SETTINGS[directory.scheme]}"
        ) from error


def write_atomically(path: Place, content: str | bytes) -> None:
    """Replace a file's content at once: readers see the old or the new, a crash leaves the old."""
    content = content.encode() if isinstance(content, str) else content
    if isinstance(path, Remote):
        path.put(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def walk(directory: Place) -> Iterator[tuple[str, list[str], list[str]]]:
    """``os.walk`` of either."""
    return directory.walk() if isinstance(directory, Remote) else os.walk(directory)


def remove(directory: Place) -> None:
    """Remove a folder, where it is there."""
    if not isinstance(directory, Remote):
        shutil.rmtree(directory, ignore_errors=True)
        return
    for entry in directory.entries():
        (directory / entry.path).unlink()


@lru_cache(maxsize=32)
def _store(bucket: str, seconds: float) -> "ObjectStore":
    """A bucket, asked for so long at least."""
    from obstore.store import from_url

    patience = timedelta(seconds=seconds)
    backoff = {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=5), "base": 2}
    retries: Any = {"max_retries": 1000, "retry_timeout": patience, "backoff": backoff}
    with _errors(bucket):
        return from_url(bucket, retry_config=retries)


@contextmanager
def _errors(asked: object) -> Iterator[None]:
    """Those of the library as Python's own."""
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise PermissionError(f"{asked}: {error}") from error
    except BaseError as error:
        raise OSError(f"{asked}: {error}") from error


def _tag(meta: Any) -> dict[str, str]:
    return {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}


def _said(error: Exception) -> str:
    """What a store said, in a line."""
    return " ".join(str(error.__cause__ or error).split())[:300]
