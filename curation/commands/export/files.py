"""The files of an export: written to a temporary folder, which replaces the target once it is complete; templates."""

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from jinja2 import Template
from safetensors import SafetensorError

from curation.errors import ExportError
from curation.json_types import JsonView
from curation.refs import ModelRef
from curation.report.headline import make_environment
from curation.storage.files import exchange, open_to_readers, sync_folder, sync_tree
from curation.storage.paths import Place, Remote, list_files, remove, require_reachable, to_place

LINEAGE = "lineage.json"


@contextmanager
def write_folder(target: Place, *, force: bool, marker: str = LINEAGE) -> Iterator[Path]:
    """Yield a local folder that becomes ``target`` when the context ends; after an error it is removed.

    In an object store, the file ``marker`` is uploaded last and marks a folder as complete. ``force`` replaces an
    earlier export with this marker, and nothing else.

    Raises:
        ExportError: ``target`` is taken, or cannot be written.
    """
    try:
        require_reachable(target)
        if target.is_file():
            raise ExportError(f"--output: {target} is a file; name a folder")
        is_taken = target.is_dir() and any(target.iterdir())
        if is_taken and not (target / marker).is_file():
            raise ExportError(f"--output: {target} is not empty and not an earlier export; name another folder")
        if is_taken and not force:
            raise ExportError(
                f"--output: {target} has an earlier export; name another folder, or replace it with --force"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with _open_beside(target) as folder:
            folder.mkdir()
            yield folder
            open_to_readers(folder)
            if isinstance(target, Remote):
                _upload(folder, target, marker, replaced=is_taken)
            else:
                sync_tree(folder)
                old = folder
                if not target.is_dir():
                    folder.rename(target)
                elif not exchange(folder, target):  # not atomic: for a moment there is no target
                    old = folder.with_name(f"{folder.name}.old")
                    target.rename(old)
                    folder.rename(target)
                sync_folder(target.parent)
                shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise ExportError(
            f"{target}: cannot be written ({error}); nothing new was left there; give another --output"
        ) from error


@contextmanager
def _open_beside(target: Place) -> Iterator[Path]:
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


def _upload(folder: Path, target: Remote, marker: str, *, replaced: bool) -> None:
    names = sorted((file.path for file in list_files(folder)), key=lambda name: name == marker)
    (target / marker).unlink(missing_ok=True)  # from here on the earlier export is incomplete
    try:
        for name in names:
            (target / name).put(folder / name)
    except OSError:
        if not replaced:
            with suppress(OSError):
                remove(target)
        raise
    for entry in target.entries():
        if entry.path not in names:
            (target / entry.path).unlink()


def is_on_hub(model: ModelRef) -> bool:
    """Return whether the base is a hub id, not a path or a URL."""
    path = to_place(model.base)
    return isinstance(path, Path) and not path.is_absolute() and not path.exists() and len(path.parts) <= 2


@cache
def load_template(package: str, name: str) -> Template:
    """Return a template of a package's folder, with the filters that all cards share."""
    made = make_environment(package, keep_trailing_newline=True)
    made.filters.update(share=format_share, number=format_metric)
    return made.get_template(name)


def format_share(estimate: JsonView | None) -> str:
    """Return a share with its interval and number of rows."""
    if estimate is None or estimate.get("value") is None:
        return "not measured"
    value, low, high = (100 * estimate[name] for name in ("value", "low", "high"))
    return f"{value:.1f} % ({low:.1f} to {high:.1f}, n = {estimate['n']:,})"


def format_metric(estimate: JsonView | None) -> str:
    """Return a metric with its interval and number of rows."""
    if estimate is None or estimate.get("value") is None:
        return "not measured"
    bounds = "" if estimate["low"] is None else f"{estimate['low']:.3f} to {estimate['high']:.3f}, "
    return f"{estimate['value']:.3f} ({bounds}n = {estimate['n']:,})"
