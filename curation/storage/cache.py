"""Local copies of files in an object store: write locally and upload, or download once per node and read."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from curation.storage.digest import directory_digest
from curation.storage.paths import Place, Remote, place


def cache() -> Path:
    """The folder of copies on this machine; it may be removed while nothing runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trust-curation"


@contextmanager
def scratch(target: Place) -> Iterator[Path]:
    """A temporary local path of the same name; for a local target, the target itself."""
    if not isinstance(target, Remote):
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="curation-") as directory:
        yield Path(directory) / target.name


@contextmanager
def staged(target: Place) -> Iterator[Path]:
    """A local path for a file or a folder, uploaded to ``target`` when the context ends without an error.

    A local target is that path itself. In an object store, the upload replaces everything in a folder of that name. A
    reader with a reference never uses a half-written folder, because the reference has its digest.
    """
    if not isinstance(target, Remote):
        target.parent.mkdir(parents=True, exist_ok=True)
        yield target
        return
    with scratch(target) as local:
        yield local
        if local.is_file():
            target.put(local)
            return
        files = {str(path.relative_to(local)): path for path in sorted(local.rglob("*")) if path.is_file()}
        for name, path in files.items():
            (target / name).put(path)
        for entry in target.entries():
            if entry.path not in files:
                (target / entry.path).unlink()


def fetched(uri: str) -> Path:
    """A local folder with the same content: the folder itself, or a copy, downloaded once per node and content.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    source = place(uri)
    if not isinstance(source, Remote):
        return source
    entries = source.entries()
    if not entries:
        raise FileNotFoundError(f"{uri}: there is no such folder")
    copy = cache() / f"{source.name}-{directory_digest(source)}"
    copy.parent.mkdir(parents=True, exist_ok=True)
    with copy.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process of the node downloads it, the others wait
        if not copy.exists():
            with tempfile.TemporaryDirectory(prefix=".", dir=copy.parent) as directory:
                for entry in entries:
                    path = Path(directory) / "copy" / entry.path
                    path.parent.mkdir(parents=True, exist_ok=True)
                    if entry.size:
                        (source / entry.path).download(path)
                    else:  # or a folder marker of some tools, which cannot be requested by name
                        path.touch()
                shutil.move(Path(directory) / "copy", copy)
    return copy
