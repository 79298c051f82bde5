"""A fence for trainings: their workers stop writing to the run directory once another driver has it.

A driver that is cut off, or paused for longer than its lease lives, does not end its workers. They would go on and
write checkpoints and the result where the next driver's training writes. So the first worker reads the lease now and
then, and again before it writes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from curation.storage.lease import LeaseClaim

LOOK_SECONDS = 5.0
"""The least time between two readings of the lease by a training that writes nothing."""

_claim: LeaseClaim | None = None


def require() -> None:
    """Raise ``CommitError`` if another driver than the one that started this training has the run directory."""
    if _claim is not None:
        _claim.require()


@contextmanager
def around(claim: LeaseClaim | None) -> Iterator[None]:
    """Let this process train under ``claim`` within the context; None means that no other driver can take it over.

    Raises:
        CommitError: at its start, another driver has the directory.
    """
    global _claim
    _claim = claim
    try:
        require()
        yield
    finally:
        _claim = None
