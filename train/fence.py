"""A fence for trainings: their workers stop writing to the run directory once another driver has it.

A driver that is cut off, or paused for longer than its lease lives, does not end its workers. They would go on and
write checkpoints and the result where the next driver's training writes. So the first worker reads the lease now and
then, in a thread of its own as a store that is down lets it wait, and again before it writes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from curation.errors import CommitError
from curation.periodic import every
from curation.storage.lease import LeaseClaim

LOOK_SECONDS = 5.0
"""The time between two readings of the lease."""

_claim: LeaseClaim | None = None
_loss: CommitError | None = None


def find_claim_error(*, read: bool) -> CommitError | None:
    """Return the error if another driver has the directory, by the last reading or, with ``read``, by a new one."""
    if read:
        _look()
    return _loss


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
    global _claim, _loss
    _claim, _loss = claim, None
    try:
        require()
        with every(LOOK_SECONDS, _look):
            yield
    finally:
        _claim = _loss = None


def _look() -> None:
    global _loss
    try:
        require()
    except CommitError as error:
        _loss = error
