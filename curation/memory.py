"""The memory that this process may use, and the return of freed memory, which glibc keeps by default, to the system."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Parameters of ``mallopt`` in glibc's malloc.h."""
LARGE, KEPT = 256 << 10, 1 << 20
ROOT = Path("/")


class Memory(NamedTuple):
    """The memory that this process may use, in bytes."""

    total: int
    free: int


def read_usable_memory(root: Path = ROOT) -> Memory:
    """Return the memory of the machine within the limits of this process's control groups (v1 or v2), or ``OSError``.

    A limit holds for a group and all groups in it, so those up to the top are read. Files that were read count as free.
    """
    lines = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
    if not {"MemTotal", "MemAvailable"} <= lines.keys():
        raise OSError("/proc/meminfo does not say what is available")
    total, free = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    for limit, used in _iter_limits(root):
        total, free = min(total, limit), min(free, limit - used)
    return Memory(total, max(0, free))


def _iter_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit and the use of each control group of this process that has a limit."""

    def read(path: Path) -> str:
        try:
            return path.read_text().strip()
        except OSError:
            return ""

    for number, controllers, path in (line.split(":", 2) for line in read(root / "proc/self/cgroup").splitlines()):
        if number == "0" and not controllers:
            top, names, read_files = root / "sys/fs/cgroup", ("memory.max", "memory.current"), "inactive_file"
        elif "memory" in controllers.split(","):
            top, read_files = root / "sys/fs/cgroup/memory", "total_inactive_file"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):  # a container may see its own group as the top, under another name
            group = top.joinpath(*parts[:depth])
            limit, used = (read(group / name) for name in names)
            if limit.isdigit() and used.isdigit():  # not "max", for no limit
                statistics = dict(line.split() for line in read(group / "memory.stat").splitlines())
                yield int(limit), int(used) - int(statistics.get(read_files, 0))


def trim() -> None:
    """Return the free memory in the heaps of all threads to the system, which takes some milliseconds."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def give_back() -> None:
    """Make malloc map each buffer of at least ``LARGE`` bytes by itself, so that freeing it frees its memory.

    By default glibc raises that limit up to 32 MiB as such buffers are freed. Later ones then lie in the heaps of its
    threads, whose holes stay resident: a driver that read columns of 10^7 rows kept some 200 MB of them. New mappings
    cost page faults, so this is not for processes that train or label. What the user set by ``MALLOC_MMAP_THRESHOLD_``
    stays; without glibc nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        mallopt(_MMAP_THRESHOLD, LARGE)
        mallopt(_TRIM_THRESHOLD, KEPT)
