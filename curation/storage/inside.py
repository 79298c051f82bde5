"""Paths that a record names, kept below the directory of the record.

A run directory may come from a stranger. So what is removed, replaced or written because a record names it goes through
:func:`inside`, and a directory is worked in only if no link leads out of it and no pipe waits in it
(:func:`require_enclosed`).
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from curation.errors import RunDirError
from curation.storage.paths import Place, Remote


def inside(home: Place, name: object, named_by: str) -> Place:
    """Return the place of a relative path in a directory.

    ``named_by``: what names it, for the message.

    Raises:
        RunDirError: it is no relative path, has a part ``..``, or leads out of the directory by a link.
    """
    parts = name.split("/") if isinstance(name, str) else [""]
    if any(part in ("", ".", "..") or "\\" in part or not part.isprintable() for part in parts):
        raise RunDirError(
            f"{home}: {named_by} names {name!r}, and a path must lie in the directory, without '..', a leading '/' or "
            "'\\'; nothing was changed; take the directory from a source that you trust"
        )
    path = home / str(name)
    if not lies_in(home, path):
        raise RunDirError(_leads_out(home, path, f"{named_by} names {name!r}, which"))
    return path


def lies_in(home: Place, path: Place) -> bool:
    """Whether a path lies below a directory once its links are followed."""
    if isinstance(home, Remote) or isinstance(path, Remote):
        return str(path).startswith(f"{home}/")
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(home))


def require_enclosed(home: Place) -> None:
    """Refuse a directory with a link that leads out of it: what is written or removed there would be so elsewhere.

    Refuse one with a pipe, a socket or a device, too: reading it may never end.

    Raises:
        RunDirError: names the first of them.
    """
    for path in () if isinstance(home, Remote) else _odd_entries(home):
        if not path.is_symlink():
            raise RunDirError(f"{path}: is a pipe, a socket or a device, which no run makes; remove it")
        if not lies_in(home, path):
            raise RunDirError(_leads_out(home, path, "it"))


def _leads_out(home: Place, path: Place, what: str) -> str:
    return (
        f"{path}: {what} leads by a link to {os.path.realpath(str(path))}, outside {home}, and nothing there may be "
        "changed; replace the link by what it leads to, or mount that in its place"
    )


def _odd_entries(folder: Path | str) -> Iterator[Path]:
    """Yield what is neither a file nor a folder, however deep, and follow no link."""
    with suppress(OSError), os.scandir(folder) as entries:  # a driver at work may remove folders meanwhile
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _odd_entries(entry.path)
            elif not entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
