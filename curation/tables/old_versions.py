"""Removes old versions of a table while a pass is still running.

Each version's manifest names all fragments of the table, so n commits leave n * n / 2 names. This module removes
versions that the committer made itself and has since replaced. No reference can name them, because a pass returns only
its last version. A pass only adds rows, so every later version holds theirs too, and open readers are unaffected. The
store refuses a commit that was made for a removed version, however late it arrives.
"""

import time
from collections import deque

import lance

from curation.errors import REFUSALS, of_lance
from curation.escaping import logger_of
from curation.storage.lease import Guard

logger = logger_of(__name__)

EVERY = 100
"""Commits between two removals; each removal reads all existing manifests."""
KEPT_SECONDS = 1800.0
"""Time to keep a version after it was replaced. Lance gives a commit this long, so no pending commit needs an older
version."""


class Superseded:
    """The versions that one committer made of a table and replaced."""

    def __init__(self, uri: str, guard: Guard) -> None:
        self._uri, self._guard = uri, guard
        self._newest: int | None = None
        self._replaced: deque[tuple[int, float]] = deque()
        """Versions, the oldest first, with the time when each was replaced."""
        self._num_commits = 0

    def follow(self, dataset: lance.LanceDataset) -> None:
        """Note a new version of the committer's; remove old versions when a removal is due.

        Raises:
            CommitError: the lease on the run directory was lost.
        """
        now = time.monotonic()
        if self._newest is not None:
            self._replaced.append((self._newest, now))
        self._newest = dataset.version
        self._num_commits += 1
        if self._num_commits % EVERY == 0:
            self._remove(dataset, now - KEPT_SECONDS)

    def _remove(self, dataset: lance.LanceDataset, before: float) -> None:
        old = []
        while self._replaced and self._replaced[0][1] <= before:
            old.append(self._replaced.popleft()[0])
        if not old:
            return
        self._guard()
        try:
            dataset.cleanup_old_versions(versions=old, error_if_tagged_old_versions=False)
        except REFUSALS as error:  # `curate clean` removes them later
            logger.warning("%s: %d old versions were not removed (%s)", self._uri, len(old), of_lance(error) or error)
