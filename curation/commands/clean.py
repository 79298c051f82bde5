"""``curate clean``: removes files of a run directory that are no longer needed, by age.

It removes three things: versions of tables that no record of the manifest names, with the files that only they name;
orphans, which are files of interrupted tasks that no version of a table names; and directories that the run made for
stages which ran again later with other settings. It keeps everything newer than the given age, a table's newest
version, versions that a tag or a record names, and the output of a running stage. It holds the lease, so that no driver
writes meanwhile.
"""

import json
import re
import time
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import lance

from curation.commands.inspect import iter_tables
from curation.errors import RunDirError
from curation.rundir.manifest import Manifest, record_in
from curation.rundir.sealed import list_of
from curation.storage import lease
from curation.storage.inside import resolve_inside
from curation.storage.paths import Place, list_files, remove, require_reachable, to_place
from curation.tables.versions import VERSIONS, parse_version


@dataclass(frozen=True, kw_only=True)
class RemovedFiles:
    """Numbers of removed versions and files of one table, or of a whole stage directory (``versions`` is 0)."""

    path: str
    versions: int
    files: int
    bytes: int


def clean(directory: Place, hours: float, *, dry: bool = False) -> Iterator[RemovedFiles]:
    """Remove files older than ``hours`` hours that are not needed, and yield each removal; with ``dry``, only yield."""
    require_reachable(directory)
    record = record_in(directory)
    if record is None:
        raise RunDirError(
            f"{directory}: is not a run directory (no manifest.json); give the run_dir of a run or a filter's output"
        )
    directory = record
    before = time.time() - 3600 * hours
    with nullcontext() if dry else lease.hold(directory):
        manifest = Manifest.load(directory)
        manifest.require_current()
        manifest.require_own_tables()
        pinned = manifest.pinned
        superseded = list(_iter_superseded(manifest, before))
        for folder in superseded:
            files = list_files(folder)
            if not dry:
                remove(folder)
                list_of(folder).unlink(missing_ok=True)
            yield RemovedFiles(path=str(folder), versions=0, files=len(files), bytes=sum(file.size for file in files))
        for table in iter_tables(directory):
            has_version = any(path.name.endswith(".manifest") for path in (table / VERSIONS).iterdir())
            if has_version and not any(str(table).startswith(f"{folder}/") for folder in superseded):
                removed = clean_table(str(table), pinned[str(table.resolve())], before, dry=dry)
                if removed.versions or removed.files:
                    yield removed


def clean_table(uri: str, pinned: Collection[int], before: float, *, dry: bool = False) -> RemovedFiles:
    """Remove a table's versions except the newest, ``pinned`` and tagged ones, their own files, and orphans.

    ``before`` is a Unix time in seconds; whatever was written later is kept.
    """
    dataset = lance.dataset(uri)
    listed: list[Any] = dataset.versions()
    versions = {item["version"]: item["timestamp"].timestamp() for item in listed}
    kept = {dataset.version, *pinned, *(tag["version"] for tag in dataset.tags.list().values())} & versions.keys()
    kept |= {version for version, written in versions.items() if written >= before}
    old = sorted(versions.keys() - kept)
    named = {
        f"data/{file.path}"
        for version in kept
        for fragment in lance.dataset(uri, version=version).get_fragments()
        for file in fragment.metadata.files
    }
    unnamed, manifests = [], []
    for file in list_files(to_place(uri)):
        if file.path.startswith("data/") and file.path not in named and file.modified < before:
            unnamed.append(file)
        elif parse_version(file.path) in old:
            manifests.append(file)
    if not dry:
        if old:
            dataset.cleanup_old_versions(versions=old, error_if_tagged_old_versions=False)
        for file in unnamed:  # Lance keeps files that no version ever named for a week
            (to_place(uri) / file.path).unlink(missing_ok=True)
    gone = [*unnamed, *manifests]
    return RemovedFiles(path=uri, versions=len(old), files=len(gone), bytes=sum(file.size for file in gone))


def _iter_superseded(manifest: Manifest, before: float) -> Iterator[Place]:
    """Yield stage directories that this run made, that no record names, and whose stage was recorded later.

    A directory written after that record belongs to a running stage whose settings changed. A directory that the
    manifest does not list as made (``Manifest.made``) belongs to the user, whatever its name.
    """
    records = manifest.stages.values()
    named = json.dumps([[record.inputs, record.outputs] for record in records], default=str)
    for name in sorted(manifest.made):
        stage = re.fullmatch(r"(.+)-[0-9a-f]{8}(\.\d+)?", name)
        record = manifest.stages.get(stage[1]) if stage is not None else None
        folder = resolve_inside(manifest.directory, name, "manifest.json")
        if record is None or not folder.is_dir():
            continue
        if folder == manifest.directory_of(record.name, record.inputs):
            continue
        done = datetime.fromisoformat(record.started).timestamp() + record.seconds
        is_named = f'/{name}"' in named or f"/{name}/" in named
        if not is_named and all(file.modified < min(done, before) for file in list_files(folder)):
            yield folder
