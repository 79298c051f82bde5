"""Local copies of what lies in an object store: to be written and then put there, or got once a node and then read."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from curation.places import Place, Remote, place
from curation.refs import directory_digest


def cache() -> Path:
    """Where copies are kept on this machine; what is there may be removed while nothing runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trust-curation"


@contextmanager
def scratch(target: Place) -> Iterator[Path]:
    """A local path of that name, as long as the context lasts; a local target is that path itself."""
    if not isinstance(target, Remote):
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="curation-") as directory:
        yield Path(directory) / target.name


@contextmanager
def staged(target: Place) -> Iterator[Path]:
    """A local path to write a file or a folder to, which stands at ``target`` when the context ends without an error.

    A local target is that path itself. In an object store what was in a folder of that name before is gone
    afterwards; who is told of the folder by a reference never sees it by half, as that holds its digest.
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
    """A folder as a local one: itself, or a copy that is got once a node for each content that it had.

    Raises:
        FileNotFoundError: nothing is there.
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
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process of the node gets it, the others wait
        if not copy.exists():
            with tempfile.TemporaryDirectory(prefix=".", dir=copy.parent) as directory:
                for entry in entries:
                    path = Path(directory) / "copy" / entry.path
                    path.parent.mkdir(parents=True, exist_ok=True)
                    if entry.size:
                        (source / entry.path).download(path)
                    else:  # or what some tools put to mark a folder, which cannot be asked for by its name
                        path.touch()
                shutil.move(Path(directory) / "copy", copy)
    return copy
