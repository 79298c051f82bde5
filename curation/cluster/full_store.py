"""Advice when Ray's object store is full: neither its memory nor the disk that it spills to has room for an object."""

import logging
import sys

from curation.cluster import ray_private
from curation.heavy import ray
from curation.tasks import find_root_error


def get_advice(error: BaseException | None) -> str | None:
    """Return the advice for an error that a full object store caused; None for any other error.

    The errors before it are searched, too: the causes that it names (``raise ... from``), and what it was raised upon.
    """
    while error is not None and not isinstance(
        find_root_error(error), ray.exceptions.ObjectStoreFullError | ray.exceptions.OutOfDiskError
    ):
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
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
    """Hide Ray Data's record of a full object store from the terminal, not from its log file; a filter for its logger.

    Ray Data prints the whole stack trace and asks for an issue; the message of the failing stage says what to do.
    """
    if get_advice(sys.exc_info()[1]) is not None:
        record.hide = True
    return True
