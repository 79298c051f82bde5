"""Digests in the names of data files: ``data/DIGEST-NAME.lance`` instead of Lance's ``data/NAME.lance``.

Lance's files have no checksums (lance#3493): a changed byte is read as data. So the process that writes a data file
takes its digest right after, while the file is in memory, and renames the file before any version names it. In an
object store, which has content tags of its own, files keep their names.
"""

import re
from collections.abc import Container, Iterable

from lance.fragment import FragmentMetadata

from curation.json_types import Json
from curation.refs import TableRef
from curation.storage import durable
from curation.storage.digest import QUICK, Content, compute_quick_content
from curation.storage.paths import Remote, to_place
from curation.tables.versions import list_version_files, make_manifest_names

DATA = "data"
_NAME = re.compile(r"(?:.*/)?([0-9a-f]{32})-[^/]+\.lance")


def digest_in(name: str) -> str | None:
    """Return the digest in the name of a data file, as in :class:`curation.storage.digest.Content`, or None."""
    found = _NAME.fullmatch(name)
    return None if found is None else QUICK + found[1]


def list_contents(ref: TableRef) -> dict[str, Content | None]:
    """Return the files of a table's version by path, with None for an unknown content; empty if there is no version."""
    home, found = to_place(ref.uri), dict[str, Content | None]()
    for manifest in [name for name in make_manifest_names(ref.version) if (home / name).is_file()][:1]:
        found[manifest] = None
        for name, size in list_version_files(ref).items():
            digest = digest_in(name)
            found[name] = None if size is None or digest is None else Content(size, digest)
    return found


def rename_files(uri: str, fragments: Iterable[Json], old: Container[str] = ()) -> None:
    """Put digests into the names of newly written local data files and the fragments' descriptions, and sync the files.

    ``fragments``: descriptions by ``FragmentMetadata.to_json``, whose paths are changed. ``old``: data files that keep
    their names, since a version names them.
    """
    data = to_place(uri) / DATA
    if isinstance(data, Remote):
        return
    new = [file for fragment in fragments for file in fragment["files"] if file["path"] not in old]
    for file in new:
        written = data / file["path"]
        file["path"] = f"{compute_quick_content(written).digest.removeprefix(QUICK)}-{file['path']}"
        written.replace(data / file["path"])
    durable.sync([*(data / file["path"] for file in new), data])


def find_changed(uri: str, fragments: Iterable[FragmentMetadata]) -> list[str]:
    """Return the names of the fragments' local data files whose content differs from the digest in the name."""
    home = to_place(uri)
    names = {f"{DATA}/{file.path}" for fragment in fragments for file in fragment.files if digest_in(file.path)}
    local = {name: home / name for name in sorted(names)}
    return [
        name
        for name, path in local.items()
        if not isinstance(path, Remote) and compute_quick_content(path).digest != digest_in(name)
    ]
