"""Trust packages that a stranger changed, and gave the digests that belong to what they hold now."""

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from curation.filter.package.description import Description
from curation.filter.package.folder import TrustPackage, _digest, _File, _read_facts


def sealed(
    good: TrustPackage, folder: Path, change: Callable[[dict[str, Any]], object], files: Mapping[str, bytes] = {}
) -> Path:
    """A copy with another description and other files; its digests are right wherever the description can be read."""
    shutil.copytree(good.uri, folder)
    content = json.loads((folder / "package.json").read_text())
    for name, written in files.items():
        (folder / name).write_bytes(written)
        content["files"][name] = _read_facts(folder / name).model_dump()
    change(content["description"])
    with suppress(ValueError, SystemExit):  # such a description is refused before digests are compared
        content["digest"] = _digest(
            Description.model_validate(content["description"]),
            {name: _File(**told) for name, told in content["files"].items()},
        )
    (folder / "package.json").write_text(json.dumps(content))
    return folder
