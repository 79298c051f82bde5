"""The fence of a training: its workers leave the run directory alone once another driver has it.

A driver that is paused for longer than its lease lives, or cut off, does not end its workers. They would train on, and
write checkpoints and the result where the next driver's training writes. So the first worker reads the lease now and
then, and again before it writes.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from curation.errors import CommitError
from curation.periodic import every
from curation.storage.lease import Claim

LOOK_SECONDS = 5.0
"""The time between two readings of the lease."""

_claim: Claim | None = None
_lost = threading.Event()


def is_lost(*, read: bool) -> bool:
    """Whether another driver has the directory, as it was read last, or with ``read`` as it is now."""
    if read:
        _look()
    return _lost.is_set()


def require() -> None:
    """Return where the directory is still the driver's that started this training, or was never anybody's.

    Raises:
        CommitError: another driver has it.
    """
    if _claim is not None:
        _claim.require()


@contextmanager
def around(claim: Claim | None) -> Iterator[None]:
    """Within the context, this process trains under ``claim``; None: nobody else can have the directory.

    Raises:
        CommitError: at its start, another driver has the directory.
    """
    global _claim
    _claim = claim
    _lost.clear()
    try:
        require()
        with every(LOOK_SECONDS, _look):
            yield
    finally:
        _claim = None


def _look() -> None:
    try:
        require()
    except CommitError:
        _lost.set()
