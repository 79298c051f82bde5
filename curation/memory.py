"""Gives freed memory of the driver back to the system, which glibc keeps by default."""

import ctypes
import os

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Of ``mallopt`` in glibc's malloc.h."""
LARGE, KEPT = 256 << 10, 1 << 20


def trim() -> None:
    """Give back what lies free in the heaps of all threads, some milliseconds' work."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def give_back() -> None:
    """Let each buffer of at least ``LARGE`` bytes be a mapping of its own, which is gone when it is freed.

    By default glibc raises that limit up to 32 MiB as such buffers are freed. Later ones then lie in the heaps of its
    threads, whose holes stay resident: a driver that read columns of 10^7 rows kept some 200 MB of them. New mappings
    cost page faults, so this is not for processes that train or label. What the user set by ``MALLOC_MMAP_THRESHOLD_``
    stays; without glibc nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        mallopt(_MMAP_THRESHOLD, LARGE)
        mallopt(_TRIM_THRESHOLD, KEPT)
