"""Files that survive a power cut: their content and their names are on the disk before anything relies on them.

What was written to a local file stays in memory for up to half a minute, and so does its name in the folder; see
fsync(2). An object store answers when it holds an object.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from curation.storage.files import sync_file, sync_folder
from curation.storage.paths import Place, Remote


def sync(paths: Iterable[Place]) -> None:
    """Wait until files, and their names in their folders, are on the disk; those of an object store are.

    Raises:
        OSError: the disk failed, or a file is not there.
    """
    folders: dict[Path, None] = {}
    for path in paths:
        if isinstance(path, Remote):
            continue
        sync_file(path)
        folders[path.parent] = None
    for folder in folders:
        sync_folder(folder)


def sync_names(path: Place) -> None:
    """Wait until a folder that may be new is on the disk, with all folders above it."""
    if not isinstance(path, Remote):
        for folder in (path, *path.absolute().parents):
            sync_folder(folder)


def sync_tree(folder: Path) -> None:
    """Wait until all files in a folder, however deep, are on the disk; its own name is not waited for."""
    for path, _, names in os.walk(folder):
        for name in names:
            if not (Path(path) / name).is_symlink():
                sync_file(Path(path) / name)
        sync_folder(Path(path))
