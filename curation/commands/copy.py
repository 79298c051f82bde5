"""``curate copy``: a run directory at another place, with records that name what is there.

The records of a run name its tables and models by absolute paths, so ``cp`` makes a directory that would write into the
original. This copy goes into a folder beside its place, ``NAME.copying``, file by file: each is on the disk before it
has its name, and one that has its name and the original's size and time is not copied again. The manifest comes last.
Then the folder takes its name at once. So what has the name is whole, and what has not can be resumed or removed.

Nothing is written into the original. What its records name does not change while a driver adds to it, but ``curate
clean`` might remove it: a directory in use is refused, and so is a copy in whose time the manifest changed.
"""

import json
import os
import re
import shutil
import uuid
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from curation.config.files import mapping
from curation.config.filter import WORK
from curation.errors import RunDirError
from curation.refs import fingerprint, leaves
from curation.rundir.manifest import Manifest, StageRecord
from curation.storage import durable, lease
from curation.storage.files import sync_folder
from curation.storage.inside import require_enclosed
from curation.storage.json_files import read_json
from curation.storage.paths import Place, Remote, require_reachable, write_atomically
from curation.telemetry.standing import Standing, Update

MANIFEST, CONFIG = "manifest.json", "config.yaml"
MARK = ".copy.json"
"""Says in an unfinished copy what it is of."""
_STAGE = re.compile(r".+-[0-9a-f]{8}(\.\d+)?")
_TORN = re.compile(r"\..+\.[0-9a-f]{32}")
"""A file that somebody is writing, or was when a kill came."""


class Copied(NamedTuple):
    """A copy: its place, and its size."""

    files: int
    bytes: int
    left: tuple[str, ...]
    """Folders of the original that no record names: of unfinished work, or of earlier settings."""


def copy(run: Place, new: Place, update: Update) -> Copied:
    """Copy what the records of a run directory name, and everything beside it but the lease.

    Raises:
        RunDirError: the directory is none of a run, is in use, has a link that leads out of it, or was changed
            meanwhile; or there is something at the new place.
    """
    original, there = _local(run), _local(new)
    manifest = _manifest(original)
    _require_free(original, there)
    require_enclosed(original)
    partial = there.with_name(f"{there.name}.copying")
    text = (original / MANIFEST).read_bytes()
    _begin(partial, original, fingerprint(text.decode()))
    moved = _Moved(manifest, original, there)
    paths = list(_paths(original, moved.left))
    files = [path for path in paths if path.name not in (MANIFEST, MARK)]
    sizes = [path.stat().st_size for path in files]
    for number, (path, size) in enumerate(zip(files, sizes, strict=True)):
        update(Standing(rows=number, total=len(files)))
        _copy_file(path, partial / path.relative_to(original), size)
    update(Standing(rows=len(files), total=len(files)))
    _write_config(partial, moved)
    if (original / MANIFEST).read_bytes() != text or lease.holder(original) is not None:
        raise RunDirError(
            f"{original}: a driver wrote into it while it was copied; give the same command when it ended"
        )
    _write_manifest(partial, manifest, moved)
    if lost := Manifest.load(partial).lost:
        message = "; ".join(f"{name}: {item.words}" for name, item in lost.items())
        raise RunDirError(
            f"{original}: is damaged ({message}); mend it first, `curate verify {original}` says how, and give the "
            "same command"
        )
    durable.sync_tree(partial)
    (partial / MARK).unlink()
    try:
        partial.rename(there)
    except OSError as error:
        raise RunDirError(
            f"{there}: has come into being meanwhile ({error.strerror}); the copy is {partial}"
        ) from error
    sync_folder(there.parent)
    return Copied(len(files) + 1, sum(sizes), moved.left)


class _Moved:
    """The paths of a run at its new place."""

    def __init__(self, manifest: Manifest, original: Path, there: Path) -> None:
        self._there = str(there)
        self._homes = sorted({str(original), str(original.resolve()), *_homes(manifest)}, key=len, reverse=True)
        self.stages = {name: self._record(record) for name, record in manifest.stages.items()}
        texts = leaves([[record.inputs, record.outputs] for record in self.stages.values()], str)
        named = {text.removeprefix(f"{there}/") for text in texts if text.startswith(f"{there}/")}
        named |= {
            str(manifest.directory_of(name, item.inputs)).removeprefix(f"{manifest.directory}/")
            for name, item in manifest.stages.items()
        }
        above = {str(folder) for path in named for folder in (Path(path), *Path(path).parents)}
        self.left = tuple(path for path in _stage_folders(original) if path not in above)
        """The folders of stages that no record names, relative to the run directory."""

    def here(self, value: object) -> Any:
        """A JSON value whose paths into the run directory are those of the new place."""
        if isinstance(value, dict):
            return {key: self.here(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self.here(part) for part in value]
        if isinstance(value, str):
            for home in self._homes:
                if value == home or value.startswith(f"{home}/"):
                    return self._there + value.removeprefix(home)
        return value

    def _record(self, record: StageRecord) -> StageRecord:
        inputs = self.here(record.inputs)
        return replace(record, inputs=inputs, outputs=self.here(record.outputs), fingerprint=fingerprint(inputs))


def _homes(manifest: Manifest) -> Iterator[str]:
    """Where a run directory was when its stages were done: it may have been moved."""
    for record in manifest.stages.values():
        pattern = re.compile(rf"(/.+)/({re.escape(record.name)}-[0-9a-f]{{8}}(?:\.\d+)?(?:/.*)?)")
        for text in leaves(record.outputs, str):
            found = pattern.fullmatch(text)
            if found is not None and (manifest.directory / found[2]).exists():  # not of another run
                yield found[1]


def _local(path: Place) -> Path:
    if isinstance(path, Remote):
        raise RunDirError(
            f"{path}: `curate copy` copies between folders of this machine; begin a run of its own in an object store "
            "(another run_dir)"
        )
    require_reachable(path)
    return path.absolute()


def _manifest(original: Path) -> Manifest:
    if original.name == WORK or (original / WORK).is_dir():
        raise RunDirError(
            f"{original}: is the output of `curate filter`, which is not copied; give `curate filter` another output"
        )
    if not (original / MANIFEST).is_file():
        raise RunDirError(f"{original}: is not a run directory (no {MANIFEST}); give the run_dir of a run")
    if (holder := lease.holder(original)) is not None:
        raise RunDirError(f"{original}: a run is using it ({holder}); stop it or wait for its end, and copy then")
    return Manifest.load(original)


def _require_free(original: Path, there: Path) -> None:
    if there.resolve() == original.resolve():
        raise RunDirError(f"{there}: is the run directory itself; name another place")
    if original.resolve() in there.resolve().parents or there.resolve() in original.resolve().parents:
        raise RunDirError(f"{there}: lies in the run directory, or around it; name a place outside of {original}")
    if there.is_symlink() or there.exists():
        raise RunDirError(f"{there}: exists already; name a new place, or remove it")


def _begin(partial: Path, original: Path, digest: str) -> None:
    """Make the folder of the copy, or take up one that was interrupted."""
    mark = {"of": str(original.resolve()), "manifest": digest}
    if partial.exists():
        try:
            known = read_json(partial / MARK)
        except (OSError, ValueError):
            known = None
        if known != mark and any(partial.iterdir()):
            raise RunDirError(
                f"{partial}: is a copy of something else, or of {original} as it was before; remove it and give the "
                "same command"
            )
    partial.mkdir(parents=True, exist_ok=True)
    for path in partial.rglob(".*"):
        if _TORN.fullmatch(path.name):
            path.unlink()
    write_atomically(partial / MARK, json.dumps(mark))


def _stage_folders(original: Path) -> Iterator[str]:
    """The folders that stages made, relative to the run directory: in it, or in the folder of a generation."""
    for folder in _folders(original):
        if _STAGE.fullmatch(folder.name):
            yield folder.name
        else:
            yield from (f"{folder.name}/{path.name}" for path in _folders(folder) if _STAGE.fullmatch(path.name))


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _paths(original: Path, left: Collection[str]) -> Iterator[Path]:
    """The files to copy."""
    for root, folders, files in os.walk(original):
        relative = Path(root).relative_to(original)
        folders[:] = sorted(name for name in folders if str(relative / name) not in (*left, "lease"))
        yield from (Path(root, name) for name in sorted(files) if not _TORN.fullmatch(name))


def _copy_file(path: Path, to: Path, size: int) -> None:
    """Copy a file with its time, which tells large ones apart; not one that is there."""
    status = path.stat()
    if to.is_file() and (to.stat().st_size, to.stat().st_mtime_ns) == (size, status.st_mtime_ns):
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    temporary = to.with_name(f".{to.name}.{uuid.uuid4().hex}")
    try:
        shutil.copyfile(path, temporary)
        durable.sync([temporary])
        os.utime(temporary, ns=(status.st_atime_ns, status.st_mtime_ns))
        temporary.replace(to)
    finally:
        temporary.unlink(missing_ok=True)


def _write_config(partial: Path, moved: _Moved) -> None:
    if (partial / CONFIG).is_file():
        config = moved.here(mapping(partial / CONFIG, "copy the run again"))
        write_atomically(partial / CONFIG, yaml.safe_dump(config, sort_keys=False))


def _write_manifest(partial: Path, manifest: Manifest, moved: _Moved) -> None:
    """Write the records of the copy, which name the place that it will have."""
    copied = Manifest(
        partial,
        manifest.identity,
        manifest.files,
        moved.stages,
        attempts=manifest.attempts,
        asked_again=manifest.asked_again,
        deals=manifest.deals,
    )
    copied.made = manifest.made
    copied.write()
