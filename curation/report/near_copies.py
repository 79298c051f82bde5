"""Near-copies among selected rows: rows of one label whose questions differ by a few characters.

Exact repeats are found before (``curation.stages.repeats``). Texts are compared by their sets of five characters in a
row, whose Jaccard similarity is estimated by MinHash (Broder 1997); rows whose signatures share a band are compared
(Leskovec, Rajaraman and Ullman, "Mining of Massive Datasets", 3.4). What many labelled rows have in common, such as a
prompt's frame, does not count. Tasks whose questions follow a few patterns have near-copies among labelled rows, too:
so the share among as many labelled rows is the measure of what is to be expected.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy  # its parts are imported when they are used

from curation.arrays import Int64s, Uint64s
from curation.domains import Domain, attempt
from curation.hashing import hash64
from curation.refs import TableRef
from curation.tables import io

MOST_ROWS = 10_000
"""Rows that are compared; of more, a draw."""
SIMILAR = 0.55
"""The similarity of near-copies: one word of twelve may differ."""
COMMON, COMMON_ROWS = 0.2, 500
"""The share of labelled rows, and the number of them, by which five characters in a row are the task's and not the
question's."""
_GRAM, _CHARACTERS = 5, 1_000
_BANDS, _BAND_ROWS = 20, 4
_HALF = np.uint64(32)


@dataclass(frozen=True, kw_only=True)
class NearCopies:
    """Selected rows, the questions that they ask but for near-copies, and the same of as many labelled rows."""

    num_rows: int
    """The number of rows compared; of a large selection, those of a sample."""
    num_questions: int
    num_compared: int
    """Labelled rows, and as many selected ones."""
    share: float
    """The share of near-copies among so many selected rows."""
    expected: float
    """The share of near-copies among so many labelled rows."""

    @property
    def is_more_than_expected(self) -> bool:
        """Whether there are clearly more near-copies than among labelled rows."""
        return self.share > max(2 * self.expected, self.expected + 0.05)


@dataclass(frozen=True, eq=False, kw_only=True)
class Texts:
    """The questions of some rows, and their labels."""

    texts: Sequence[str]
    labels: Sequence[str | None]

    def taken(self, places_M: Int64s) -> "Texts":
        """Return the texts and labels at the positions ``places_M``."""
        return Texts(texts=[self.texts[m] for m in places_M], labels=[self.labels[m] for m in places_M])


def read_texts(examples: TableRef, row_ids_N: Int64s, labels: Sequence[str | None], domain: Domain) -> Texts:
    """Return the questions of rows as the domain tells them apart; one that it cannot identify is empty."""
    rows = io.take(examples, row_ids_N, domain.columns.names).to_pylist()
    found = (attempt(domain.identity, row)[0] for row in rows)
    return Texts(texts=["" if one is None else "\n".join((one[0], *one[1])) for one in found], labels=labels)


def find_near_copies(selected: Texts, labelled: Texts, *, seed: int) -> tuple[NearCopies, Int64s]:
    """Compare selected rows, and as many labelled ones; also return the selected rows' clusters, int64 [M]."""
    common = _find_common(labelled.texts[:COMMON_ROWS])
    cluster_M = cluster_rows(selected, common)
    num, rng = min(len(cluster_M), len(labelled.texts)), np.random.default_rng(seed)
    drawn_m = rng.permutation(len(cluster_M))[:num]
    others = cluster_rows(labelled.taken(rng.permutation(len(labelled.texts))[:num]), common)
    found = NearCopies(
        num_rows=len(cluster_M),
        num_questions=len(np.unique(cluster_M)),
        num_compared=num,
        share=_compute_share(cluster_M[drawn_m]),
        expected=_compute_share(others),
    )
    return found, cluster_M


def cluster_rows(rows: Texts, common: Uint64s) -> Int64s:
    """Return the cluster of each row, int64 [N]: near-copies of one label, and what they are connected with."""
    signatures_NP = np.array([_compute_signature(text, common) for text in rows.texts], dtype=np.uint64).reshape(
        len(rows.texts), _BANDS * _BAND_ROWS
    )
    _, label_N = np.unique(
        np.array([label or "" for label in rows.labels], dtype=object).astype(str), return_inverse=True
    )
    known_N = np.array([bool(text) for text in rows.texts], dtype=np.bool_)
    left, right = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for band in range(_BANDS):
        band_N = signatures_NP[:, band * _BAND_ROWS : (band + 1) * _BAND_ROWS]
        keyed = np.column_stack([label_N.astype(np.uint64), band_N])
        _, first_G, group_N = np.unique(keyed, axis=0, return_index=True, return_inverse=True)
        one_N = first_G[group_N.ravel()]
        near_N = (signatures_NP == signatures_NP[one_N]).mean(axis=1) >= SIMILAR
        place_M = np.flatnonzero(near_N & known_N & known_N[one_N])
        left.append(place_M)
        right.append(one_N[place_M])
    pairs = np.concatenate(left), np.concatenate(right)
    links = scipy.sparse.coo_array((np.ones(len(pairs[0]), dtype=np.int8), pairs), shape=(len(rows.texts),) * 2)
    return np.asarray(scipy.sparse.csgraph.connected_components(links, directed=False)[1], dtype=np.int64)


def _compute_share(cluster_N: Int64s) -> float:
    return 1 - len(np.unique(cluster_N)) / len(cluster_N) if len(cluster_N) else 0.0


def _find_common(texts: Sequence[str]) -> Uint64s:
    """Return the hashed characters that many of the texts have, ascending."""
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(_hash_grams(text).tolist())
    many = max(5.0, COMMON * len(texts))
    return np.array(sorted(gram for gram, count in counts.items() if count > many), dtype=np.uint64)


def _hash_grams(text: str) -> Uint64s:
    """Return the hashes of each five characters in a row of the beginning of a text; of a shorter text one."""
    codes = np.frombuffer(text[:_CHARACTERS].ljust(_GRAM).encode("utf-32-le"), dtype=np.uint32).astype(np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(codes, _GRAM)
    with np.errstate(over="ignore"):
        hashed = (windows * _POWERS).sum(axis=1, dtype=np.uint64)
    return np.unique(hash64(hashed.view(np.int64), 0))


def _compute_signature(text: str, common: Uint64s) -> npt.NDArray[np.uint64]:
    """Return the MinHash signature of a text without what is common, uint64 [P]; of nothing that of its whole text."""
    grams_G = _hash_grams(text)
    own_G = grams_G[~np.isin(grams_G, common, assume_unique=True)]
    grams_G = own_G if len(own_G) else grams_G
    with np.errstate(over="ignore"):
        return np.asarray(((grams_G[:, None] * _FACTORS + _TERMS) >> _HALF).min(axis=0))


_RNG = np.random.default_rng(0)
_POWERS = np.array([np.uint64(pow(0x100000001B3, k, 1 << 64)) for k in range(_GRAM)], dtype=np.uint64)
_FACTORS = _RNG.integers(1 << 63, size=_BANDS * _BAND_ROWS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_TERMS = _RNG.integers(1 << 63, size=_BANDS * _BAND_ROWS, dtype=np.uint64)
