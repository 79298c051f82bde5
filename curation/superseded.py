"""Versions that a pass leaves behind, and their removal while it goes on.

Each version's manifest names all fragments of the table, so that n commits leave n * n / 2 names. Removed are versions
that this committer made itself and has replaced since: a pass hands out its last version alone, so no reference can
name them. What they hold stands in every later one too, as a pass only adds; who has one open reads on. A commit made
for a version that is gone is refused by the store, however late it lands.
"""

import logging
import time
from collections import deque

import lance

from curation.errors import REFUSALS
from curation.lease import Guard

logger = logging.getLogger(__name__)

EVERY = 100
"""Commits between two removals, as each reads all manifests that are there."""
KEPT_SECONDS = 1800.0
"""Since a version was replaced; Lance gives a commit this long, so that none under way was made for an older one."""


class Superseded:
    """The versions that one committer made of a table and replaced."""

    def __init__(self, uri: str, guard: Guard) -> None:
        self._uri, self._guard = uri, guard
        self._newest: int | None = None
        self._replaced: deque[tuple[int, float]] = deque()
        """Versions, the oldest first, and when they were replaced."""
        self._num_commits = 0

    def follow(self, dataset: lance.LanceDataset) -> None:
        """Told of each version that the committer has made; where this is the time, old ones are removed.

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
        except REFUSALS as error:  # `curate clean` removes them some day
            logger.warning("%s: %d old versions were not removed (%s)", self._uri, len(old), error)
