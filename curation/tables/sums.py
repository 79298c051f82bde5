"""The digests of a table's files, ``<table>.sums`` beside the table: one line a file, ``NAME SIZE DIGEST``.

Lance's files have no checksums (lance#3493): a changed byte is read as data. So the process that writes a data file
takes its digest right after, while the file is in memory, and the driver appends it before the commit that names the
file. Lines are never changed; those of files that no version names any more do no harm, since Lance draws names at
random. What a line says is checked by the stage's record (:mod:`curation.rundir.sealed`), which holds the digest of the
lines so far.

An object store has its own content tags, and does not append: there the whole file is written when a stage is recorded.
"""

import json
from collections.abc import Iterable, Mapping

from lance.fragment import FragmentMetadata

from curation.json_types import Json
from curation.storage import durable
from curation.storage.digest import Content, bytes_digest, quick_content
from curation.storage.files import append_lines
from curation.storage.paths import Place, Remote, place

Sums = dict[str, Content]
DATA = "data"
NOT_THERE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Errors of reading a file where there is none, or something else has its name."""
_KEY = "sums"


def path_of(uri: str) -> Place:
    """Where the digests of a table are."""
    return place(f"{uri}.sums")


def of_files(uri: str, names: Iterable[str]) -> Sums:
    """The contents of data files that were just written, by their names in the table; none in an object store.

    The files are on the disk afterwards: a commit may name them.
    """
    home, names = place(uri), list(names)
    if isinstance(home, Remote):
        return {}
    durable.sync([*(home / DATA / name for name in names), home / DATA])
    return {f"{DATA}/{name}": quick_content(home / DATA / name) for name in names}


def changed(uri: str, names: Iterable[str]) -> list[str]:
    """Data files whose bytes are not those that were written; in an object store none."""
    home = place(uri)
    if isinstance(home, Remote):
        return []
    digests = read(uri)
    known = {name: content for name in names if (content := digests.get(f"{DATA}/{name}")) is not None}
    return [name for name, content in known.items() if quick_content(home / DATA / name) != content]


def with_sums(uri: str, fragment: FragmentMetadata, known: Iterable[str] = ()) -> Json:
    """A fragment as JSON with the contents of its files, but for those whose paths are ``known``."""
    new = [file.path for file in fragment.files if file.path not in set(known)]
    return {**fragment.to_json(), _KEY: of_files(uri, new)}


def parted(described: Iterable[Json]) -> tuple[list[FragmentMetadata], Sums]:
    """The inverse of :func:`with_sums`, for several fragments."""
    fragments, found = [], Sums()
    for item in described:
        found |= {name: Content(*content) for name, content in item.pop(_KEY, {}).items()}
        fragments.append(FragmentMetadata.from_json(json.dumps(item)))
    return fragments, found


def append(uri: str, found: Mapping[str, Content]) -> None:
    """Add lines, which are on the disk afterwards; in an object store the file is written again.

    Raises:
        OSError: the file cannot be written.
    """
    if not found:
        return
    path = path_of(uri)
    text = "".join(f"{name} {content.size} {content.digest}\n" for name, content in found.items()).encode()
    if isinstance(path, Remote):
        path.put((path.read_bytes() if path.is_file() else b"") + text)
        return
    append_lines(path, text)
    durable.sync([path])


def head(uri: str, size: int | None = None) -> Content:
    """The digest of the lines, or of their first ``size`` bytes; of nothing where there are none."""
    try:
        content = path_of(uri).read_bytes()[:size]
    except NOT_THERE:
        content = b""
    return Content(len(content), bytes_digest(content))


def read(uri: str) -> Sums:
    """All lines but damaged ones."""
    try:
        content = path_of(uri).read_bytes()
    except NOT_THERE:
        return {}
    found: Sums = {}
    for line in content.decode(errors="replace").split("\n"):
        name, _, facts = line.partition(" ")
        size, _, digest = facts.partition(" ")
        if size.isdigit() and digest:
            found[name] = Content(int(size), digest)
    return found
