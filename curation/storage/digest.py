"""A digest of what a folder holds."""

import hashlib

from curation.refs import fingerprint
from curation.storage.paths import Place, Remote


def directory_digest(path: Place) -> str:
    """A digest of a directory's files: of the content of small ones, of size and modification time above 64 MiB.

    In an object store: a digest of the store's content tags.
    """
    if isinstance(path, Remote):
        return fingerprint([(entry.path, entry.size, entry.tag) for entry in path.entries()])
    entries = []
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        stat = file.stat()
        small = stat.st_size <= 64 << 20
        content = hashlib.sha256(file.read_bytes()).hexdigest() if small else f"{stat.st_size}-{stat.st_mtime_ns}"
        entries.append((str(file.relative_to(path)), content))
    return fingerprint(entries)
