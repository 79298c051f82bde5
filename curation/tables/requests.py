"""A formula for the number of requests that a model's pass makes to an object store, since no process sees them all.

The constants are those of Lance 14, measured by a counting server (``tests/curation/tables/test_requests.py``). They
leave out requests that fail and are repeated, and the lease of the run directory, one write every 20 seconds.
"""

from typing import NamedTuple

from curation.tables.compaction import FEWEST

PART_BYTES = 5 << 20
"""Size of the parts, in bytes, in which a larger file is written, with one request before and one after them."""


class Requests(NamedTuple):
    """Expected numbers of requests to a store."""

    puts: float
    """Number of requests that write."""
    gets: float
    """Number of requests that read, list, or ask for an object's metadata."""


def count_pass_requests(*, chunks: float, commits: float, num_bytes: float) -> Requests:
    """Return the requests of a pass that writes ``num_bytes`` in one fragment per chunk, with ``commits`` commits."""
    if not chunks:
        return Requests(0.0, 0.0)
    parts = num_bytes / chunks / PART_BYTES
    puts = PUTS_AT_FIRST + chunks * (1.0 if parts <= 1 else parts + 2) + PUTS_A_COMMIT * commits
    gets = GETS_AT_FIRST + GETS_A_CHUNK * chunks + GETS_A_COMMIT * commits
    if chunks >= FEWEST:  # the table is compacted
        puts += 2 * PUTS_A_COMMIT + num_bytes / PART_BYTES
        gets += GETS_AT_FIRST + GETS_A_FRAGMENT * chunks
    return Requests(puts, gets)


PUTS_AT_FIRST, GETS_AT_FIRST = 2.0, 9.0
PUTS_A_COMMIT, GETS_A_COMMIT = 2.0, 3.0
"""Requests of a commit, which writes a transaction and a manifest."""
GETS_A_CHUNK = 3.0
"""Requests that read a chunk's rows."""
GETS_A_FRAGMENT = 2.0
"""Requests that read a fragment to compact it."""
