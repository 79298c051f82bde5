"""Files that survive a power cut: their content and their names are on the disk before anything relies on them.

Otherwise the content of a local file stays in memory for up to half a minute, and so does its name in the folder; see
fsync(2). An object store acknowledges a write only once it holds the object.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from curation.storage.files import sync_file, sync_folder
from curation.storage.paths import Place, Remote


def sync(paths: Iterable[Place]) -> None:
    """Wait until local files, and their names in their folders, are on the disk; skip objects of a store."""
    local = [path for path in paths if not isinstance(path, Remote)]
    for path in local:
        sync_file(path)
    for folder in dict.fromkeys(path.parent for path in local):
        sync_folder(folder)


def sync_names(path: Place) -> None:
    """Wait until the names in a folder, and those of the folder and of all folders above it, are on the disk."""
    for folder in () if isinstance(path, Remote) else (path, *path.absolute().parents):
        sync_folder(folder)


def sync_tree(folder: Path) -> None:
    """Wait until all files in a folder, however deep, are on the disk, but not for the folder's own name."""
    for path, _, names in os.walk(folder):
        for file in (Path(path, name) for name in names):
            if not file.is_symlink():
                sync_file(file)
        sync_folder(Path(path))
