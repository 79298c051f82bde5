"""Labels that no labelled row has, among which trust was never measured.

They matter in tasks with recurring labels. The share of labels that no labelled row has is estimated by the share of
rows with a label of their own (Good 1953, after Turing). Above ``OPEN``, as in mathematics, new labels are expected and
none counts as unseen. The same holds if labels are graded otherwise than by equality (``Domain.is_equality``).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.arrays import Bools
from curation.config import DomainConfig
from curation.domains import attempt, get_domain
from curation.domains.class_counts import count_labels
from curation.domains.given import RIGHT, WRONG
from curation.metrics import compute_proportion
from curation.refs import TableRef
from curation.tables import io

OPEN = 0.05
"""Share of rows with a label of their own above which new labels are expected."""
MIN_ROWS = 20
"""Minimum number of labelled rows that determine this share."""
MOST = 10
"""Maximum number of labels listed."""


class SeenLabels(NamedTuple):
    """The labels of labelled rows in a task with recurring labels."""

    labels: tuple[str, ...]
    num_rows: int
    num_once: int
    """Number of rows with a label of their own."""

    @classmethod
    def of(cls, counts: Counter[str]) -> "SeenLabels | None":
        """Return the labels with these counts, or ``None`` if labels are open or the rows are too few to tell."""
        num_rows, num_once = counts.total(), sum(count == 1 for count in counts.values())
        is_open = num_rows < MIN_ROWS or num_once > OPEN * num_rows
        return None if is_open else cls(tuple(sorted(counts)), num_rows, num_once)


@dataclass(frozen=True, kw_only=True)
class UnseenLabels:
    """Pool rows whose label no labelled row has."""

    num_seen: int
    """Number of different labels of the labelled rows."""
    expected: float
    """Upper end of the 95 % interval of the share of such rows, estimated from the labelled rows."""
    num_read: int
    """Number of pool rows with a readable label."""
    num_rows: int
    """Number of those rows whose label is unseen."""
    num_labels: int
    """The number of different unseen labels."""
    most: dict[str, int]
    """The most frequent unseen labels, with their numbers of rows."""

    @classmethod
    def of(cls, seen: SeenLabels, num_read: int, unseen: Counter[str]) -> Self:
        """Return the counts for ``num_read`` labels, of which ``unseen`` are not among those seen."""
        return cls(
            num_seen=len(seen.labels),
            expected=compute_proportion(seen.num_once, seen.num_rows).high,
            num_read=num_read,
            num_rows=unseen.total(),
            num_labels=len(unseen),
            most=dict(unseen.most_common(MOST)),
        )

    @property
    def words(self) -> str:
        """The most frequent unseen labels and their rows, in words."""
        listed = ", ".join(f"{label} {rows:,}" for label, rows in self.most.items())
        more = self.num_labels - len(self.most)
        return listed + (f", and {more:,} more" if more else "")


def collect_seen_labels(labelled: TableRef, config: DomainConfig) -> SeenLabels | None:
    """Return the labels of a split with gold labels, as the domain reads them, or ``None`` if labels are open."""
    domain, counts = get_domain(config), Counter[str]()
    if not domain.is_equality:
        return None
    columns = ["gold", *domain.columns.names]
    for batch in io.open_table(labelled).to_batches(columns=columns, filter="error IS NULL AND gold IS NOT NULL"):
        for row in batch.to_pylist():
            if (gold := row["gold"]) in (RIGHT, WRONG):
                continue  # a grade, which names no label
            answer, _ = attempt(domain.answer, gold, row)
            label = None if answer is None else attempt(domain.parse, answer, row)[0]
            counts[gold if label is None else label] += 1
    return SeenLabels.of(counts)


def is_unseen(labels: pa.Array, seen: Sequence[str]) -> Bools:
    """Return whether each label is missing from ``seen``, bool [N]; a null is not unseen."""
    known = pc.or_(pc.is_in(labels, value_set=pa.array(seen, pa.string())), pc.is_null(labels))
    return ~np.asarray(known.to_numpy(zero_copy_only=False), dtype=np.bool_)


def count_unseen(labels: TableRef, seen: SeenLabels) -> UnseenLabels:
    """Count the unseen labels of a pool's labels."""
    known = {*seen.labels}
    readable = Counter({label: rows for label, rows in count_labels(labels).items() if label is not None})
    unseen = Counter({label: readable[label] for label in readable if label not in known})
    return UnseenLabels.of(seen, readable.total(), unseen)
