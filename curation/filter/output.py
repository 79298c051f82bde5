"""The output folder of a filter: ``data/`` with rows, ``filter.json`` that lists its files, internal ``_curation/``.

``filter.json`` is replaced atomically, after all files that it lists are complete. A reader of only these files never
sees a row twice or a half-written file, even while ``--recut`` writes.
"""

import json
import re

from curation.config.filter import WORK
from curation.errors import RunDirError
from curation.json_types import Json
from curation.storage.inside import require_enclosed, resolve_inside
from curation.storage.json_files import read_json
from curation.storage.lease import Guard
from curation.storage.paths import Place, Remote, write_atomically

MANIFEST, DATA = "filter.json", "data"
_PART = re.compile(r"part-[0-9a-f]{8}-\d{5,}\.(parquet|jsonl)|\.part-[0-9a-f]{8}-\d{5,}\.(parquet|jsonl)\.[0-9a-f]{32}")
"""Names of data files that a filter writes; the last alternative is the temporary file of a killed task."""

Content = Json


def check_home(home: Place) -> None:
    """Refuse a folder with files that no filter wrote, or whose record is missing, by a ``RunDirError``."""
    require_enclosed(home)
    if not isinstance(home, Remote) and home.is_file():
        raise RunDirError(f"{home}: is a file; give a folder as the output")
    names = sorted(path.name for path in home.iterdir()) if home.is_dir() else []
    if (home / WORK / "manifest.json").is_file():
        return
    if MANIFEST in names:
        raise RunDirError(
            f"{home}: has a {MANIFEST}, but no {WORK}/manifest.json, so new rows cannot be told from those that are "
            f"there; restore {WORK}, or give another output"
        )
    if foreign := [name for name in names if name != WORK]:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise RunDirError(
            f"{home}: holds files that no filter wrote ({', '.join(foreign[:3])}{more}); give an empty or new folder"
        )


def load_content(home: Place) -> Content | None:
    """Return the manifest of an output, or None before the first; refuse one that is not JSON, by a ``RunDirError``."""
    try:
        content: Content = read_json(home / MANIFEST)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunDirError(f"{home / MANIFEST}: is not JSON ({error}); restore it, or give another output") from error
    for file in content["files"]:
        resolve_inside(home, file["path"], MANIFEST)
    return content


def publish(home: Place, content: Content, before: Content | None, guard: Guard) -> None:
    """Replace the manifest of an output if it changed, and remove data files that it does not list."""
    if content != before:
        guard()
        write_atomically(home / MANIFEST, json.dumps(content, indent=1))
    named = {file["path"] for file in content["files"]}
    written: list[Place] = list((home / DATA).iterdir()) if (home / DATA).is_dir() else []
    for path in written:
        if _PART.fullmatch(path.name) and f"{DATA}/{path.name}" not in named:
            guard()
            path.unlink(missing_ok=True)
