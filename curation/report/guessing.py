"""The accuracy of a uniform guess among a row's options or legal answers, which a teacher has to exceed."""

import numpy as np

from curation.arrays import Int64s
from curation.domains import Domain, attempt
from curation.hashing import derive, hash_unit
from curation.refs import TableRef
from curation.tables import io

MOST_ROWS = 2000
"""Maximum number of rows to read, drawn at random."""


def compute_chance(examples: TableRef, domain: Domain, row_ids_N: Int64s, seed: int) -> float | None:
    """Return the mean over rows of 1 / the number of possible answers, or ``None`` if no number is known."""
    names = ["row_id", *domain.columns.names]
    if not len(row_ids_N) or not set(names) <= set(io.open_table(examples).schema.names):
        return None
    drawn_N = np.argsort(hash_unit(row_ids_N, derive(seed, "chance")))[:MOST_ROWS]
    rows = io.take(examples, np.sort(row_ids_N[drawn_N]), names).to_pylist()
    numbers = [attempt(domain.num_answers, row)[0] for row in rows]
    known = [1 / number for number in numbers if number]
    return sum(known) / len(known) if known else None
