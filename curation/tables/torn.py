"""Versions of a table that a power cut tore: the file that describes the version is there, and its content is not.

A commit is done when its version is on the disk (:mod:`curation.storage.durable`). The version of a commit that was
under way may be left without its content, and Lance then opens none at all. It is set aside: the version before it is
whole, and the rows that only the torn one named are done again.
"""

from pathlib import Path

from curation.escaping import logger_of
from curation.storage.files import sync_folder
from curation.storage.paths import Remote, place
from curation.tables.contents import VERSIONS, version_of

MAGIC = b"LANC"
"""The end of each of these files (https://lance.org/format/table/)."""

logger = logger_of(__name__)


def find(table: Path) -> list[Path]:
    """The files of the torn versions after the last whole one, the newest first."""
    known = {path: version_of(f"{VERSIONS}/{path.name}") for path in (table / VERSIONS).glob("*.manifest")}
    torn: list[Path] = []
    for _, path in sorted(((version, path) for path, version in known.items() if version is not None), reverse=True):
        if _is_whole(path):
            break
        torn.append(path)
    return torn


def set_aside(uri: str) -> None:
    """Rename the files of the torn versions at the end of a local table, so that Lance opens the last whole one."""
    table = place(uri)
    if isinstance(table, Remote):
        return
    torn = find(table)
    for path in torn:
        path.replace(path.with_name(f"{path.name}.torn"))
    if torn:
        sync_folder(table / VERSIONS)
        logger.warning(
            "%s: a power cut tore its last %s; it goes on from the one before, and what only that held is done again",
            uri,
            "version" if len(torn) == 1 else f"{len(torn)} versions",
        )


def _is_whole(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - len(MAGIC)))
        return file.read() == MAGIC
