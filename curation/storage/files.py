"""Local files: names, reading paths that anyone may have created, appending, syncing to the disk, exchanging names.

Names are checked before anything is written. Only regular files are read, since reading a pipe or a device may never
end. The content of a file stays in memory for up to half a minute, and so does its name in the folder: what must
survive a power cut is synced to the disk first. An object store acknowledges a write only once it holds the object.
"""

import ctypes
import errno
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from curation.errors import RunDirError


def open_file(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a regular file without a buffer; ``OSError`` if it is not regular or cannot be opened."""
    number = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)  # opening a pipe would wait for its other end
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "Is a pipe or a device", str(path))
    how = "r+b" if flags & os.O_RDWR else "wb" if flags & os.O_WRONLY else "rb"
    return cast(BinaryIO, os.fdopen(number, how, buffering=0))


def append_lines(path: Path, lines: bytes) -> int:
    """Append lines to a file, all or none, and return the offset of the first; or raise ``OSError``.

    A last line that a killed process left unfinished is ended first. The file is created if it does not exist; a link
    is not followed, since it may lead to a file of someone else.
    """
    with open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        gap = b"\n" if end and file.read(1) != b"\n" else b""
        try:
            if file.write(gap + lines) < len(gap + lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            file.truncate(end)
            raise
    return end + len(gap)


_UMASK = os.umask(0)
os.umask(_UMASK)


def open_to_readers(path: Path) -> None:
    """Let others read a file, or a folder's files, that only the owner may read, such as those of safetensors."""
    for found in [path] if path.is_file() else list(path.rglob("*")):
        with suppress(FileNotFoundError):
            mode = found.lstat().st_mode
            if stat.S_ISREG(mode) and not mode & 0o077:
                found.chmod(0o666 & ~_UMASK)


SYNC_REFUSALS = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM)
"""Error numbers with which some file systems refuse to sync a folder, or any of them a folder of another user."""


def read_file(path: Path) -> bytes:
    """Return the content of a file; ``OSError`` as :func:`open_file`."""
    with open_file(path) as file:
        return file.read()


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on the disk; see fsync(2)."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, if its file system can sync a folder."""
    try:
        sync_file(folder)
    except OSError as error:
        if error.errno not in SYNC_REFUSALS:
            raise


def sync(paths: Iterable[object]) -> None:
    """Wait until local files, and their names in their folders, are on the disk; skip objects of a store."""
    local = [path for path in paths if isinstance(path, Path)]
    for path in local:
        sync_file(path)
    for folder in dict.fromkeys(path.parent for path in local):
        sync_folder(folder)


def sync_names(path: object) -> None:
    """Wait until the names in a folder, and in all folders above it, are on the disk."""
    for folder in (path, *path.absolute().parents) if isinstance(path, Path) else ():
        sync_folder(folder)


def sync_tree(folder: Path) -> None:
    """Wait until all files in a folder, however deep, are on the disk, but not for the folder's own name."""
    for path, _, names in os.walk(folder):
        for file in (Path(path, name) for name in names):
            if not file.is_symlink():
                sync_file(file)
        sync_folder(Path(path))


_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE."""


def exchange(one: Path, other: Path) -> bool:
    """Exchange two files' or folders' names atomically (renameat2(2)); return False where a system lacks that."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
NAME_BYTES = 255
"""Maximum length of the name of a file or folder, in bytes."""
DEEPEST = Path("n" * 128, "n" * 128)
"""A relative path as long as those that a run directory needs."""


def check_name(text: str) -> str:
    """Return the text of a path or URL unchanged, or raise ``RunDirError`` if file systems do not accept it."""
    try:
        longest = max(len(part) for part in text.encode().split(b"/"))
    except UnicodeEncodeError as error:
        raise RunDirError(f"{text[:80]!r} is not Unicode text (it has a lone surrogate); rename it") from error
    if "\0" in text:
        raise RunDirError(f"{text[:80]!r} holds a NUL, which no file system takes in a name; remove it")
    if longest > NAME_BYTES:
        raise RunDirError(
            f"{text[:80]!r}...: has a name of {longest} bytes, and file systems take {NAME_BYTES}; shorten it"
        )
    return text


def require_folder(directory: Path, *, writable: bool) -> None:
    """Raise ``RunDirError`` for a path that cannot be a run directory or, if ``writable``, be written by this user."""
    if _CONTROL.search(str(directory.absolute())):
        raise RunDirError(
            f"{str(directory)!r}: a name holds a line break or another control character, and Lance opens no table "
            "there; give another path"
        )
    try:
        os.lstat(directory / DEEPEST)
    except FileNotFoundError:
        pass
    except OSError as error:  # a file in its way, a path too long, no permission
        raise RunDirError(f"{directory}: cannot be a folder ({error.strerror}); give another path") from error
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if writable and not os.access(there, os.W_OK | os.X_OK):
        raise RunDirError(f"{directory}: this user cannot write to {there}; give another path, or the right to write")
