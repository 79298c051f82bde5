"""Local copies of files in an object store: write locally and upload, or download once per node and read."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from curation.refs import fingerprint
from curation.storage.files import open_to_readers
from curation.storage.paths import Place, Remote, list_files, to_place

PART = ".part"
"""Ending of a folder that is not complete yet."""


def get_cache_folder() -> Path:
    """Return this machine's folder of copies, which may be removed while nothing runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trust-curation"


@contextmanager
def open_scratch(target: Place) -> Iterator[Path]:
    """Yield a temporary local path with the name of ``target``, or ``target`` itself if it is local."""
    if not isinstance(target, Remote):
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="curation-") as directory:
        yield Path(directory) / target.name


@contextmanager
def staged(target: Place) -> Iterator[Path]:
    """Yield a local path for a file or a folder; upload it to ``target`` when the context ends without an error.

    A local target is yielded itself. In an object store, the upload replaces everything in a folder of that name.
    References to a folder have its digest, so no reader with a reference uses a half-written folder.
    """
    if not isinstance(target, Remote):
        target.parent.mkdir(parents=True, exist_ok=True)
        yield target
        open_to_readers(target)
        return
    with open_scratch(target) as local:
        yield local
        if local.is_file():
            target.put(local)
            return
        names = [file.path for file in list_files(local)]
        for name in names:
            (target / name).put(local / name)
        for entry in target.entries():
            if entry.path not in names:
                (target / entry.path).unlink()


def fetch_folder(uri: str) -> Path:
    """Return a local folder with the content of ``uri``: itself, or a copy, downloaded once per node and content."""
    source = to_place(uri)
    if not isinstance(source, Remote):
        return source
    entries = source.entries()
    if not entries:
        raise FileNotFoundError(f"{uri}: there is no such folder")

    def download(copy: Path) -> None:
        for entry in entries:
            path = copy / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            if entry.size:
                (source / entry.path).download(path)
            else:  # an empty file, or a folder marker, which cannot be requested by name
                path.touch()

    content = fingerprint([(entry.path, entry.size, entry.tag) for entry in entries])
    with in_cache(f"{source.name}-{content}", download) as copy:
        return copy


@contextmanager
def in_cache(name: str, make: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a folder of the cache, which is not removed within the context; ``make`` fills it if it does not exist.

    One process of the node makes the folder while the others wait. A folder that a killed or failed process left
    incomplete is made anew, since a folder gets its name only when it is complete.
    """
    folder = get_cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path, part = folder / name, folder / f".{name}{PART}"
    with (folder / f"{name}.lock").open("a+") as lock:  # the system releases the lock of a dead process
        while True:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if path.exists():
                break
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                continue
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            try:
                make(part)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
            part.rename(path)
        os.utime(path)
        yield path


def remove_unused(prefix: str, *, keep: int) -> None:
    """Remove the cache's folders whose names start with ``prefix``, but the ``keep`` last used ones and those in use.

    Also remove incomplete folders that killed processes left.
    """
    folder = get_cache_folder()
    found = [path for path in folder.glob(f"{prefix}*") if path.is_dir()]
    made = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    for path in [*made[keep:], *folder.glob(f".{prefix}*{PART}")]:
        name = path.name.removeprefix(".").removesuffix(PART)
        with (folder / f"{name}.lock").open("a+") as lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            gone = folder / f".{name}{PART}"
            if path != gone:
                path.rename(gone)  # so nobody finds a half removed folder
            shutil.rmtree(gone, ignore_errors=True)
