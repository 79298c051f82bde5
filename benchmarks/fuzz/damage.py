"""Damage to the files of a folder: deleted, cut, swapped, doubled, flipped, or something else in their place."""

import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

ACTIONS = ("delete", "delete folder", "cut", "empty", "folder", "flip", "older", "other", "double", "next")
_DRAWN = re.compile(r"-[0-9a-f]{8}(?=/)|[01]{20}[01]*[0-9a-f]+|\d+-[0-9a-f-]{36}|\d+(?=\.)")
"""What differs between two folders of the same run: fingerprints, names that Lance draws, numbers."""


class Damage(NamedTuple):
    """What is done to one file."""

    role: int
    """Which kind of file, and which one of them; modulo their number."""
    file: int
    action: str
    share: float
    """Where in the file, or which one of the files that take its place."""
    mask: int


class Named(NamedTuple):
    """What is done to the first file that a pattern finds."""

    pattern: str
    action: str
    share: float = 0.5
    mask: int = 1


DAMAGE = st.builds(
    Damage, st.integers(0, 255), st.integers(0, 255), st.sampled_from(ACTIONS), st.floats(0, 1), st.integers(1, 255)
)


def inflict(home: Path, damage: Damage | Named, older: Path) -> tuple[str, str]:
    """Damage a file of ``home``, of which ``older`` is an earlier state; return its path in it, and what was done."""
    roles = roles_of(home)
    if not roles:
        return "", "nothing is left"
    if isinstance(damage, Named):
        path = sorted(home.glob(damage.pattern))[0]
    else:
        role = sorted(roles)[damage.role % len(roles)]
        path = roles[role][damage.file % len(roles[role])]
    return str(path.relative_to(home)), _inflict(path, damage, older / path.relative_to(home), roles)


def roles_of(home: Path) -> dict[str, list[Path]]:
    """Return the files by their purpose, each list in the order in which they were written."""
    roles = defaultdict(list)
    for path in sorted((path for path in home.rglob("*") if path.is_file()), key=lambda at: at.stat().st_mtime_ns):
        roles[_DRAWN.sub("*", str(path.relative_to(home)))].append(path)
    return dict(roles)


def _inflict(path: Path, damage: Damage | Named, older: Path, roles: dict[str, list[Path]]) -> str:
    content, action = path.read_bytes(), damage.action
    at = min(int(damage.share * len(content)), len(content) - 1)
    if action == "older" and not (older.is_file() and older.read_bytes() != content):
        action = "other"
    if action == "delete folder" and len(path.parents) < 2:
        action = "delete"
    if action == "delete":
        path.unlink()
    elif action == "delete folder":
        shutil.rmtree(path.parent)
    elif action == "cut":
        path.write_bytes(content[: max(at, 0)])
    elif action == "empty":
        path.write_bytes(b"")
    elif action == "folder":
        path.unlink()
        path.mkdir()
    elif action == "flip" and content:
        path.write_bytes(content[:at] + bytes([content[at] ^ damage.mask]) + content[at + 1 :])
    elif action == "older":
        shutil.copyfile(older, path)
    elif action == "other":
        others = [other for paths in roles.values() for other in paths if other.suffix == path.suffix and other != path]
        if not others:
            return "left as it is"
        other = others[min(int(damage.share * len(others)), len(others) - 1)]
        shutil.copyfile(other, path)
        return f"replaced by {other.name}"
    elif action in ("double", "next"):
        step = 1 if action == "double" else -1  # Lance counts the names of versions down
        stem = str(int(path.stem) + step) if path.stem.isdigit() else f"{path.stem} copy"
        shutil.copyfile(path, path.with_name(stem + path.suffix))
    return action if action != "flip" else f"flip by {damage.mask:#x} at {at} of {len(content)}"
