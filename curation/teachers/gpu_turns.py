"""Locks by which engines that share a GPU start one after the other.

An engine measures the free memory of its GPU at its start, and sizes its share by it. If another engine started at the
same time, each could count the other's memory as used, or fail for lack of memory.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def start_turn(gpus: Sequence[str], folder: Path | None = None) -> Iterator[None]:
    """Hold the locks of these GPUs within the context, so that no other process of this node starts an engine there.

    The operating system releases the locks of a process that dies.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"curation-gpus-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as held:
        for gpu in sorted(gpus):  # in one order, so that no two wait for each other
            file = held.enter_context((folder / f"{gpu}.lock").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def list_shared_gpus(num_gpus: float) -> list[str]:
    """Return the ids of the GPUs that this process shares with others, or an empty list if its GPUs are whole."""
    if not 0 < num_gpus < 1:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")  # Ray sets it to what an actor was given
    return [gpu.strip() for gpu in visible.split(",") if gpu.strip()]
