"""The message of a full object store of Ray: neither its memory nor the disk that it spills to takes an object."""

import logging
import sys

from curation.cluster import ray_private
from curation.heavy import ray
from curation.tasks import find_root_error


def get_advice(error: BaseException | None) -> str | None:
    """Return the advice for an error that came of a full object store; None for any other error.

    The cause of an error is looked at too, as ``raise ... from`` names it.
    """
    while error is not None and not isinstance(
        find_root_error(error), ray.exceptions.ObjectStoreFullError | ray.exceptions.OutOfDiskError
    ):
        error = error.__cause__
    if error is None:
        return None
    folder = ray_private.find_spill_folder()
    return (
        "Ray's object store is full, and so is the disk that it spills to "
        f"({folder or 'the folder that --object-spilling-directory of ray start names, else --temp-dir'}); "
        "free space there, or name a folder on a larger disk "
        f"({'RAY_object_spilling_directory' if folder else 'the same option'}), "
        f"or take less at a time: docs/operations.md, size of a row"
    )


def hide(record: logging.LogRecord) -> bool:
    """Keep what Ray Data logs of such an error off the terminal, but not out of its file: a filter of its logger.

    It prints its whole stack, and asks for an issue; the stage that fails says what to do.
    """
    if get_advice(sys.exc_info()[1]) is not None:
        record.hide = True
    return True
