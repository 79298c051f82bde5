"""Diversity of the selected labels, and the selected rows as a share of the pool's right labels.

Labels are counted by their hashes, in streams. Up to ``MOST_LABELS`` distinct ones are counted exactly, 16 bytes each.
Beyond, they are counted by the first ``FOLDED_BITS`` bits of their hashes: labels that collide count as one, so
perplexity and number are then lower bounds, marked as such.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from curation.arms import ARMS, TRUST, Configured, Fitted
from curation.arrays import Int64s, Uint64s
from curation.json_types import Json
from curation.refs import TableRef
from curation.report.record import GenerationRecord
from curation.report.rows import GradedSet
from curation.tables import io, scans
from curation.tables.text_hashes import BITS, hash_texts
from curation.trust import get_trust

MOST_LABELS = 1 << 20
FOLDED_BITS = 20
MUCH = 0.5
"""Share of the right labels above which wrong ones are selected too, unless trust ranks almost without error."""


@dataclass(kw_only=True)
class LabelFrequencies:
    """Counts of distinct labels."""

    label_G: Uint64s = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    count_G: Int64s = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    bits: int = BITS
    """Number of bits of the labels' hashes in use."""

    def add(self, label_N: Uint64s, count_N: Int64s | None = None, bits: int = BITS) -> None:
        """Add labels, by the first ``bits`` bits of their hashes, each once or ``count_N`` times."""
        used = min(bits, self.bits)
        labels = np.concatenate([self.label_G >> np.uint64(self.bits - used), label_N >> np.uint64(bits - used)])
        counts = np.concatenate([self.count_G, np.ones(len(label_N), dtype=np.int64) if count_N is None else count_N])
        self.bits = used
        self.label_G, place_N = np.unique(labels, return_inverse=True)
        self.count_G = np.bincount(place_N, counts, minlength=len(self.label_G)).astype(np.int64)
        if len(self.label_G) > MOST_LABELS and used > FOLDED_BITS:
            self.add(np.zeros(0, dtype=np.uint64), bits=FOLDED_BITS)

    @property
    def perplexity(self) -> float | None:
        """Exponential of the entropy of the labels' shares: k for k equally frequent labels; None without labels."""
        if not len(self.count_G):
            return None
        share_G = self.count_G / self.count_G.sum()
        return float(np.exp(-(share_G * np.log(share_G)).sum()))

    def to_json(self) -> Json:
        """Return the numbers of rows and labels, the perplexity, and the share of the most frequent label."""
        num_rows = int(self.count_G.sum())
        return {
            "num_rows": num_rows,
            "num_labels": len(self.label_G),
            "perplexity": self.perplexity,
            "largest": float(self.count_G.max() / num_rows) if num_rows else None,
            "is_bound": self.bits < BITS,
        }


def measure_diversity(record: GenerationRecord, arm: str | None, num_pool: int, pool: GradedSet | None) -> Json:
    """Return label counts of each arm and of the pool's parsed rows, and n as a share of the expected right labels.

    ``arm`` is the judged arm. If the pool is graded, the share of right labels is scaled up to all labelled rows.
    Otherwise the expected number is the sum of the arm's trust over the parsed rows, if that trust is calibrated.
    """
    function = None if arm is None or not isinstance(TRUST[ARMS[arm].trust], Fitted | Configured) else ARMS[arm].trust
    labels = record.labels["pool"]
    of_pool, trust = _read(labels, io.make_answered_filter(labels), None if pool is not None else function)
    arms = {name: _read(ref, None, None)[0].to_json() for name, ref in record.selections.items()}
    basis, expected = "audit" if pool is not None else "trust", None
    if pool is not None and len(pool):
        expected = pool.judged.share_right().value * num_pool
    elif pool is None and function is not None:
        expected = trust
    right = None
    if expected is not None:
        share = record.n / expected if expected else None
        much = share is None or share > MUCH
        right = {"basis": basis, "expected": expected, "n": record.n, "share": share, "is_much": much}
    return {"arms": arms, "pool": of_pool.to_json(), "right": right}


def _read(ref: TableRef, filter: str | None, function: str | None) -> tuple[LabelFrequencies, float]:
    """Return the labels of a table's parsed rows, and their total trust under ``function``, 0 if it is None."""
    features = [] if function is None else get_trust(function, 0).features
    columns = {name: f"`{name}`" for name in dict.fromkeys(["label", *features])}
    parsed = "label IS NOT NULL" if filter is None else f"({filter}) AND label IS NOT NULL"

    def read(fragments: Sequence[int] | None) -> tuple[LabelFrequencies, float]:
        trust, found, total = None if function is None else get_trust(function, 0), LabelFrequencies(), 0.0
        for batch in scans.iter_table_batches(ref, columns, parsed, fragments):
            found.add(hash_texts(batch.column("label")))
            if trust is not None:
                total += float(np.nansum(trust.score(batch).astype(np.float64)))
        return found, total

    found, total = LabelFrequencies(), 0.0
    for labels, trust in scans.map_fragments(ref, read):
        found.add(labels.label_G, labels.count_G, labels.bits)
        total += trust
    return found, total
