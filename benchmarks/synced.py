"""A simulated disk that loses unsynced data: the layer of ``python -m benchmarks.chaos --power-cuts``.

Each Python process under :func:`environment` records every ``os.fsync`` of a file or folder below one directory: the
length of a file, the names in a folder. Only these are certainly on the disk. :func:`cut` leaves the directory as a
power cut may leave it. A file keeps the bytes that it had at its last fsync; the rest is missing or zeros. A name that
was added, replaced or removed since its folder's last fsync is new, old or missing at random.

A hard link keeps the content of a synced file, so a replaced file can come back. Bytes that are changed in place count
as written at once, since nothing in a run does that. Calls of fsync(2) outside Python are not recorded, so their
process loses more than it would.
"""

import json
import os
import random
import shutil
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DIRECTORY, NOTES = "SYNCED_DIRECTORY", "SYNCED_NOTES"
"""Environment variables with the watched directory, and with the folder of the records, on the same file system."""
JOURNAL, LINKS = "journal.jsonl", "links"
_START = "from benchmarks import synced\nsynced.watch()\n"


def environment(directory: Path, notes: Path) -> dict[str, str]:
    """Return variables that let a Python process and its children take notes; its ``PYTHONPATH`` is extended."""
    (notes / LINKS).mkdir(parents=True, exist_ok=True)
    (notes / "sitecustomize.py").write_text(_START)
    here = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [str(notes), here, os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, DIRECTORY: str(directory), NOTES: str(notes)}


def watch() -> None:
    """Take notes of this process's ``os.fsync`` from now on."""
    directory, notes = os.environ[DIRECTORY], Path(os.environ[NOTES])
    wait = os.fsync

    def fsync(file: Any) -> None:
        number = file if isinstance(file, int) else file.fileno()
        path = os.readlink(f"/proc/self/fd/{number}")
        told = _told(number, path, notes) if path == directory or path.startswith(directory + os.sep) else None
        wait(number)
        if told is not None:
            with (notes / JOURNAL).open("a") as journal:
                journal.write(json.dumps(told) + "\n")

    os.fsync = fsync


def _told(number: int, path: str, notes: Path) -> dict[str, Any]:
    """Return a line of the journal: what is on the disk once this fsync has ended."""
    found = os.fstat(number)
    if stat.S_ISDIR(found.st_mode):
        names = _names(number)
        return {"folder": path, "inode": found.st_ino, "names": names}
    link = notes / LINKS / str(found.st_ino)
    if not link.exists():
        try:
            os.link(f"/proc/self/fd/{number}", link, src_dir_fd=number)  # with it, the link is followed
        except FileNotFoundError:  # its last name is gone
            pass
        except FileExistsError:  # another process was faster
            pass
    return {"inode": found.st_ino, "bytes": found.st_size}


def _names(folder: int | Path) -> dict[str, list[int]]:
    """Return the names in a folder, each with its inode and whether that is a folder."""
    return {entry.name: [entry.inode(), int(entry.is_dir(follow_symlinks=False))] for entry in os.scandir(folder)}


@dataclass
class Disk:
    """The data that is certainly on the disk."""

    bytes: dict[int, int] = field(default_factory=dict)
    """Synced length of each file in bytes, by inode."""
    names: dict[str, tuple[int, dict[str, list[int]]]] = field(default_factory=dict)
    """Inode and synced names of each folder, by path."""
    links: Path = Path()

    @classmethod
    def of(cls, notes: Path) -> "Disk":
        """Return the disk that the notes describe; a line that a kill cut belongs to an fsync that had not ended."""
        disk = cls(links=notes / LINKS)
        journal = notes / JOURNAL
        for line in journal.read_text().splitlines() if journal.exists() else ():
            try:
                told = json.loads(line)
            except ValueError:
                continue
            if "folder" in told:
                disk.names[told["folder"]] = (told["inode"], told["names"])
            else:
                disk.bytes[told["inode"]] = max(told["bytes"], disk.bytes.get(told["inode"], 0))
        return disk


@dataclass(frozen=True)
class Cut:
    """The effect of a power cut on unsynced data."""

    new_names: float
    """Probability that a name is as at the cut, rather than as at its folder's last fsync."""
    zeros: bool
    """Whether the lost tail of a file is read as zeros, as after a crash on XFS and ext4, rather than missing."""


def cut(directory: Path, notes: Path, how: Cut, chance: random.Random) -> None:
    """Change a directory that no process writes to any more to what a power cut leaves, all of which is then there."""
    disk = Disk.of(notes)
    left = directory.with_name(f"{directory.name}.left")
    _lay_out(directory, left, disk, how, chance)
    shutil.rmtree(directory)
    left.rename(directory)
    _note_all(directory, notes)


def _lay_out(now: Path, target: Path, disk: Disk, how: Cut, chance: random.Random) -> None:
    """Copy a folder as the cut leaves it; ``now`` may be gone, and was a folder at its last fsync."""
    target.mkdir()
    live = _names(now) if now.is_dir() else {}
    inode, synced = disk.names.get(str(now), (None, {}))
    if now.is_dir() and inode != now.stat().st_ino:  # a new folder under an old name
        synced = {}
    for name in sorted({*live, *synced}):
        is_live = live.get(name) == synced.get(name) or chance.random() < how.new_names
        found = (live if is_live else synced).get(name)
        if found is None:
            continue
        number, is_folder = found
        file = now / name if is_live else disk.links / str(number)
        if is_folder:
            _lay_out(now / name, target / name, disk, how, chance)
        elif file.exists():
            _copy(file, target / name, disk.bytes.get(number, 0), how)
        else:
            (target / name).touch()


def _copy(file: Path, target: Path, num_bytes: int, how: Cut) -> None:
    """Copy the first bytes of a file, with its times."""
    whole = file.stat()
    with file.open("rb") as source, target.open("wb") as sink:
        sink.write(source.read(num_bytes))
        if how.zeros:
            sink.truncate(max(whole.st_size, num_bytes))
    os.utime(target, ns=(whole.st_atime_ns, whole.st_mtime_ns))


def _note_all(directory: Path, notes: Path) -> None:
    """Note that all of a directory is on the disk."""
    with (notes / JOURNAL).open("a") as journal:
        for path in (directory, *directory.rglob("*")):
            number = os.open(path, os.O_RDONLY)
            journal.write(json.dumps(_told(number, str(path), notes)) + "\n")
            os.close(number)


if sys.platform != "linux":
    raise ImportError("benchmarks.synced reads /proc/self/fd, which only Linux has")
