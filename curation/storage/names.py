"""Checks, before anything is written, that file systems accept the names of files and folders."""

import os
import re
from pathlib import Path

from curation.errors import RunDirError

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
