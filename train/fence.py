"""The fence of a training: its workers leave the run directory alone once another driver has it.

A driver that is paused for longer than its lease lives, or cut off, does not end its workers. They would train on, and
write checkpoints and the result where the next driver's training writes. So the first worker reads the lease now and
then, and again before it writes.
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
    """Return the error of a directory that another driver has, as it was read last, or with ``read`` as it is now."""
    if read:
        _look()
    return _loss


def require() -> None:
    """Return where the directory is still the driver's that started this training, or was never anybody's.

    Raises:
        CommitError: another driver has it.
    """
    if _claim is not None:
        _claim.require()


@contextmanager
def around(claim: LeaseClaim | None) -> Iterator[None]:
    """Within the context, this process trains under ``claim``; None: nobody else can have the directory.

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
        _claim = None


def _look() -> None:
    global _loss
    try:
        require()
    except CommitError as error:
        _loss = error
