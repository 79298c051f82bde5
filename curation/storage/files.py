"""Local files that anyone may have put there: only a file is read, never a pipe or a device, which may not end."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, cast


def open_file(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """A file, open without a buffer.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    number = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)  # opening a pipe would wait for its other end
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "Is a pipe or a device", str(path))
    return cast(BinaryIO, os.fdopen(number, "wb" if flags & os.O_WRONLY else "rb", buffering=0))


def read_file(path: Path) -> bytes:
    """The content of a file.

    Raises:
        OSError: as :func:`open_file`.
    """
    with open_file(path) as file:
        return file.read()
