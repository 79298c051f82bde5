"""``curate clean``: removes superseded results of a run directory, by age.

They are directories that the run made for stages which ran again later with other settings. The command keeps what is
newer than the given age, what a record of the manifest names, and the output of a running stage. It holds the lease, so
that no driver writes meanwhile.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime

from curation.errors import RunDirError
from curation.rundir.manifest import Manifest, record_in
from curation.rundir.sealed import list_of
from curation.storage import lease
from curation.storage.inside import resolve_inside
from curation.storage.paths import Place, StoredObject, list_files, remove, require_reachable


def clean(directory: Place, hours: float, *, dry: bool = False) -> Iterator[tuple[Place, list[StoredObject]]]:
    """Remove results superseded at least ``hours`` hours ago, unless ``dry``; yield each folder with its files."""
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
        for folder in list(_iter_superseded(manifest, before)):
            files = list_files(folder)
            if not dry:
                remove(folder)
                list_of(folder).unlink(missing_ok=True)
            yield folder, files


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
