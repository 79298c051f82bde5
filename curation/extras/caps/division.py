"""The cap on the rows of a label: the key by which rows count as one label, and the cap's part of a selection.

Keys are 63-bit hashes of texts, so that many labels are counted without holding them: among 10^7 different texts, two
have the same hash with a probability of 10^-5. Each row without a text (an unparsed label, a null) has a key of its
own.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.arms import Arm
from curation.arrays import Int64s, Uint64s
from curation.config import RunConfig
from curation.config.base import count_share
from curation.domains import get_domain
from curation.errors import ConfigError
from curation.extras.caps.config import CapKeys
from curation.refs import TableRef
from curation.report.evidence import Evidence
from curation.selection.capped import Labels, make_own_labels
from curation.stages.chooser import RowDivision
from curation.stages.pool_scores import ComputedBudget, Groups, PoolScores, Reader
from curation.tables import io

BY_LABEL = "label"
_KEY = "selection.max_per_label_by"
NO_TEXT = np.uint64(1 << 63)
"""Value that stands for a null and is no text's hash."""


def hash_texts(text_N: pa.Array) -> Uint64s:
    """Return a hash of each text, ``NO_TEXT`` for a null, uint64 [N]; hash each distinct text of the array once."""
    coded = text_N.dictionary_encode()
    texts: list[str] = coded.dictionary.to_pylist()
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    hash_G = np.fromiter((int.from_bytes(digest) >> 1 for digest in digests), np.uint64, len(texts))
    place_N = coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    found: Uint64s = np.append(hash_G, NO_TEXT)[place_N]
    return found


def check_settings(config: RunConfig, section: CapKeys) -> tuple[str, ...]:
    """Refuse, by a ``ConfigError``, a ``max_per_label_by`` that the pool's rows do not have; return no line."""
    known = [BY_LABEL, *get_domain(config.domain_of("pool")).columns.names]
    if (by := section.max_per_label_by) not in known:
        raise ConfigError(f"{_KEY}: the pool has no column {by!r}; give one of {', '.join(known)}")
    return ()


def find_warnings(config: RunConfig, section: CapKeys) -> Iterator[str]:
    """Yield a warning if the labels that are counted are letters of options."""
    if section.max_per_label_by == "label" and config.domain_of("pool").name == "mcqa":
        yield (
            f"selection.max_per_label: {section.max_per_label} rows for each option of domain mcqa, where "
            "labels are letters: a cap is for domains with many labels; leave it out, or set max_per_label_by"
        )


@dataclass(frozen=True, kw_only=True)
class LabelKeys:
    """The key that rows are counted by; pickled to every task."""

    by: str
    pool: TableRef
    audit: TableRef | None = None
    """The audit table for arms that draw rows and teach gold labels, which then count instead of the weak labels."""

    def reader(self) -> Reader:
        """Return a reader for one pass, which holds 24 bytes per run of consecutive ids of the table that it reads."""
        ref, name = (self.audit, "gold") if self.by == BY_LABEL else (self.pool, self.by)
        find_offsets = None if ref is None else io.make_offset_finder(ref)

        def read(row_ids_M: Int64s, weak_M: pa.Array) -> Labels:
            text_M = weak_M
            if ref is not None and find_offsets is not None:
                text_M = io.take_offsets(ref, find_offsets(row_ids_M), [name])[name].combine_chunks()
            try:
                hash_M = hash_texts(pc.cast(text_M, pa.string()))
            except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
                raise ConfigError(
                    f"{_KEY}: the column {self.by!r} is {text_M.type}, which is neither text nor a number"
                ) from error
            return np.where(hash_M == NO_TEXT, make_own_labels(row_ids_M), hash_M)

        return read


class CapDivision(RowDivision[int]):
    """A cap: an arm takes the best rows of each label, up to the maximum number.

    The label is the one that the arm teaches, so the rows of ``ground_truth`` count by their gold labels; a ranking
    gold arm has the rows of its weak twin, which count by their weak labels.
    """

    leaves_fewer = True

    def set(self, budget: ComputedBudget) -> int | None:
        """Return the cap: the configuration's number of rows, or its share of n, at least 1; None if there is none."""
        limit = self._keys.max_per_label
        return limit if limit is None or isinstance(limit, int) else max(1, count_share(limit, budget.n))

    def group(self, arm: Arm, scores: PoolScores, n: int, value: int, before: Groups | None) -> Groups:
        """Return the labels with their common cap."""
        gold = self.job.audit if arm.gold and not arm.ranked else None
        return Groups(LabelKeys(by=self._keys.max_per_label_by, pool=self.job.pool, audit=gold).reader, value)

    def describe(self, budget: ComputedBudget, value: int | None) -> Iterator[str]:
        """Yield a line if fewer than the budget's rows fit."""
        if value is not None and budget.asked is not None:
            yield (
                f"selection.max_per_label: with at most {value:,} rows of a label {budget.n:,} of {budget.asked:,} "
                f"rows fit in the arm {budget.limited_by}; all arms select {budget.n:,}"
            )

    @property
    def _keys(self) -> CapKeys:
        assert isinstance(self.job.selection, CapKeys), "the section has the keys of all features"
        return self.job.selection


def suggest_cap(evidence: Evidence) -> str | None:
    """Return the advice to cap a label at twice an even share (.01 to .6), or None if labels are a closed set."""
    if evidence.classes is not None:
        return None
    given = 2 if evidence.labels is None else max(2, evidence.labels["num_given"])
    line = f"selection: {{max_per_label: {max(0.01, round(min(0.6, 2 / given), 2))}}}"
    return f"Cap the rows of a label, unless one class is what is wanted: {line}."
