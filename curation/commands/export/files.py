"""The files of an export: written to a temporary folder, which replaces the target once it is complete."""

import json
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError

from curation.commands.export.student import Student
from curation.errors import ExportError
from curation.heavy import torch
from curation.json_types import Json, JsonView
from curation.models import load_configuration, load_model, load_tokenizer
from curation.models.own_code import get_hub_revision
from curation.refs import ModelRef
from curation.storage import durable
from curation.storage.cache import fetch_folder
from curation.storage.digest import compute_sha256
from curation.storage.files import exchange, open_to_readers, sync_folder
from curation.storage.inside import require_enclosed
from curation.storage.paths import Place, Remote, list_files, remove, require_reachable, to_place

CARD, LINEAGE = "README.md", "lineage.json"
LEFT_OUT = (CARD, "training.json")
"""Files of a saved student that are not exported: peft's empty card, and the record that is in the lineage."""


@dataclass(frozen=True, kw_only=True)
class ExportedWeights:
    """Description of the weights that were written."""

    kind: Literal["adapter", "full model", "merged model"]
    has_base: bool
    """Whether the adapter's base is exported too, in ``base``, since it was merged from an adapter for this run."""
    files: Mapping[str, JsonView]
    """``bytes`` and ``sha256`` of each file, by name."""


@dataclass(frozen=True, kw_only=True)
class ExportFolder:
    """The folder of an export while it is being written."""

    path: Path

    marker: str
    """The file that is written last and marks a folder as complete."""

    def describe(self, lineage: Mapping[str, object], card: str) -> None:
        """Write the card and the lineage."""
        (self.path / CARD).write_text(card)
        (self.path / self.marker).write_text(json.dumps(lineage, indent=1, allow_nan=False) + "\n")


@contextmanager
def write_folder(target: Place, *, force: bool, marker: str = LINEAGE) -> Iterator[ExportFolder]:
    """Yield a local folder that becomes ``target`` when the context ends; after an error it is removed.

    In an object store, the file ``marker`` is uploaded last and marks a folder as complete. ``force`` replaces an
    earlier export with this marker, and nothing else.

    Raises:
        ExportError: ``target`` is taken, or cannot be written.
    """
    try:
        require_reachable(target)
        taken = _needs_replacing(target, marker, force=force)
        target.parent.mkdir(parents=True, exist_ok=True)
        with _beside(target) as path:
            folder = ExportFolder(path=path, marker=marker)
            path.mkdir()
            yield folder
            open_to_readers(path)
            if isinstance(target, Remote):
                _upload(folder, target, replaced=taken)
            else:
                _move(folder.path, target)
    except (OSError, SafetensorError) as error:
        raise ExportError(
            f"{target}: cannot be written ({error}); nothing new was left there; give another --output"
        ) from error


def _needs_replacing(target: Place, marker: str, *, force: bool) -> bool:
    """Return whether an earlier export has to be replaced.

    Raises:
        ExportError: the target is something else, or an earlier export without ``force``.
    """
    if target.is_file():
        raise ExportError(f"--output: {target} is a file; name a folder")
    if not target.is_dir() or not any(target.iterdir()):
        return False
    if not (target / marker).is_file():
        raise ExportError(f"--output: {target} is not empty and not an earlier export; name another folder")
    if not force:
        raise ExportError(f"--output: {target} has an earlier export; name another folder, or replace it with --force")
    return True


@contextmanager
def _beside(target: Place) -> Iterator[Path]:
    """Yield a path on the target's file system, or in a temporary folder for an object store; remove it at the end."""
    if isinstance(target, Remote):
        with tempfile.TemporaryDirectory(prefix="curation-") as directory:
            yield Path(directory) / "export"
        return
    path = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _move(folder: Path, target: Path) -> None:
    durable.sync_tree(folder)
    old = folder
    if not target.is_dir():
        folder.rename(target)
    elif not exchange(folder, target):  # for a moment there is none
        old = folder.with_name(f"{folder.name}.old")
        target.rename(old)
        folder.rename(target)
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _upload(folder: ExportFolder, target: Remote, *, replaced: bool) -> None:
    names = sorted((file.path for file in list_files(folder.path)), key=lambda name: name == folder.marker)
    (target / folder.marker).unlink(missing_ok=True)  # from here on the earlier export is incomplete
    try:
        for name in names:
            (target / name).put(folder.path / name)
    except OSError:
        if not replaced:
            with suppress(OSError):
                remove(target)
        raise
    for entry in target.entries():
        if entry.path not in names:
            (target / entry.path).unlink()


def write_model(student: Student, folder: ExportFolder, output: Place, *, merged: bool) -> ExportedWeights:
    """Write the student's weights to a folder that will become ``output``.

    Raises:
        ModelError: the base does not load.
        RunDirError: a link leads out of the student's folder.
    """
    model, path = student.model, folder.path
    has_base = False
    if merged and model.adapter is not None:
        dtype = getattr(load_configuration(model), "dtype", None) or torch.float32
        weights: Any = load_model(model)  # in float32, the adapter merged into the base; saved in the base's own type
        weights.to(dtype).save_pretrained(path)
        load_tokenizer(model).save_pretrained(path)
        kind: Literal["adapter", "full model", "merged model"] = "merged model"
    else:
        require_enclosed(student.folder)
        source = fetch_folder(str(student.folder))
        shutil.copytree(source, path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        kind = "full model" if model.adapter is None else "adapter"
        if model.adapter is not None:
            has_base = to_place(model.base) == student.folder / "base"
            base = replace_base(model, output) if has_base else model
            revision = get_hub_revision(base) if is_on_hub(base) else None
            file = path / "adapter_config.json"  # peft's own, which names the base
            settings = json.loads(file.read_text()) | {"base_model_name_or_path": base.base, "revision": revision}
            file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    return ExportedWeights(kind=kind, has_base=has_base, files=describe_files(path))


def describe_files(folder: Path) -> Json:
    """Return ``bytes`` and ``sha256`` of every file in a folder, by relative path."""
    return {
        file.path: {"bytes": file.size, "sha256": compute_sha256(folder / file.path)} for file in list_files(folder)
    }


def replace_base(model: ModelRef, output: Place) -> ModelRef:
    """Return the model with its base replaced by the one that is exported with it."""
    return ModelRef(base=str(output.absolute() / "base"), adapter=model.adapter)


def is_on_hub(model: ModelRef) -> bool:
    """Return whether the base is a hub id, not a path or a URL."""
    path = to_place(model.base)
    return isinstance(path, Path) and not path.is_absolute() and not path.exists() and len(path.parts) <= 2
