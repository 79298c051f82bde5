"""Checks that the paths which a record names lie below the record's directory.

A run directory may come from a stranger. So each path that is removed, replaced or written because a record names it is
resolved by :func:`resolve_inside`, and a directory is used only if no link leads out of it and it holds no pipe
(:func:`require_enclosed`).

In a record, paths below the record's directory are relative (``./gen-0/...``), so that the directory can be moved and
copied (:func:`to_record`, :func:`from_record`).
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from curation.errors import RunDirError
from curation.json_types import map_texts
from curation.storage.paths import Place, Remote

HERE = "./"
"""Prefix of a path relative to the record's directory; any other text that starts with it gets it a second time."""


def resolve_inside(home: Place, name: object, named_by: str) -> Place:
    """Return the place of a relative path in a directory; ``RunDirError``, which says ``named_by``, if it leads out."""
    parts = name.split("/") if isinstance(name, str) else [""]
    if any(part in ("", ".", "..") or "\\" in part or not part.isprintable() for part in parts):
        raise RunDirError(
            f"{home}: {named_by} names {name!r}, and a path must lie in the directory, without '..', a leading '/' or "
            "'\\'; nothing was changed; take the directory from a source that you trust"
        )
    path = home / str(name)
    if not is_inside(home, path):
        raise RunDirError(_describe_link_out(home, path, f"{named_by} names {name!r}, which"))
    return path


def to_record(value: object, home: Place) -> Any:
    """Return a JSON value as a record holds it, with paths below the record's directory ``home`` relative to it."""
    homes = dict.fromkeys([str(home), str(home.absolute()), str(home.resolve())])

    def change(text: str) -> str:
        for root in homes:
            if f"{text}/".startswith(f"{root}/"):
                return HERE + text[len(root) + 1 :]
        return HERE + text if text.startswith(HERE) else text

    return map_texts(change, value)


def from_record(value: object, home: Place) -> Any:
    """Return a recorded value with absolute paths below ``home``: the inverse of :func:`to_record`."""
    root = str(home.absolute())

    def change(text: str) -> str:
        path = text.removeprefix(HERE)
        return path if path == text or path.startswith(HERE) else f"{root}/{path}".rstrip("/")

    return map_texts(change, value)


def run_around(path: Place) -> Place:
    """Return the run directory, or the output of a filter, that contains a path; the path itself if there is none."""
    above = path
    while above.name and not any((above / name).is_file() for name in ("manifest.json", "filter.json")):
        above = above.parent
    return above if above.name else path


def is_inside(home: Place, path: Place) -> bool:
    """Return whether a path lies below a directory once its links are followed."""
    if isinstance(home, Remote) or isinstance(path, Remote):
        return str(path).startswith(f"{home}/")
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(home))


def require_enclosed(home: Place) -> None:
    """Raise ``RunDirError`` for a link that leads out of a directory, or a pipe, a socket or a device in it."""
    for path in () if isinstance(home, Remote) else _iter_odd_entries(home):
        if not path.is_symlink():
            raise RunDirError(f"{path}: is a pipe, a socket or a device, which no run makes; remove it")
        if not is_inside(home, path):
            raise RunDirError(_describe_link_out(home, path, "it"))


def _describe_link_out(home: Place, path: Place, what: str) -> str:
    return (
        f"{path}: {what} leads by a link to {os.path.realpath(str(path))}, outside {home}, and nothing there may be "
        "changed; replace the link by what it leads to, or mount that in its place"
    )


def _iter_odd_entries(folder: Path | str) -> Iterator[Path]:
    """Yield entries that are neither files nor folders, links included, however deep, and follow no link."""
    with suppress(OSError), os.scandir(folder) as entries:  # a driver at work may remove folders meanwhile
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _iter_odd_entries(entry.path)
            elif not entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
