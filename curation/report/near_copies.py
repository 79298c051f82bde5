"""Near-copies among selected rows: rows of one label whose questions differ by a few characters.

Exact repeats are found earlier (``curation.stages.overlap``). Texts are compared by their sets of character 5-grams,
whose Jaccard similarity is estimated by MinHash (Broder 1997); rows whose signatures share a band are compared
(Leskovec, Rajaraman and Ullman, "Mining of Massive Datasets", 3.4). 5-grams that many labelled rows share, such as
those of a prompt's frame, do not count. Tasks whose questions follow a few patterns have near-copies among labelled
rows, too, so the share among as many labelled rows is the expected one.
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
"""Maximum number of rows to compare; more are sampled."""
SIMILAR = 0.55
"""Minimum similarity of near-copies: one word of twelve may differ."""
COMMON, COMMON_ROWS = 0.2, 500
"""Share of labelled rows above which a 5-gram belongs to the task, not the question; maximum number of rows read."""
_GRAM, _CHARACTERS = 5, 1_000
_BANDS, _BAND_ROWS = 20, 4
_HALF = np.uint64(32)
Question = tuple[str, str | None]
"""The text of a row, and its label."""


@dataclass(frozen=True, kw_only=True)
class NearCopies:
    """Numbers of selected rows and of distinct questions, and shares of near-copies compared with labelled rows."""

    num_rows: int
    """Number of selected rows examined; a large selection is sampled."""
    num_questions: int
    num_compared: int
    """Number of labelled rows, and of selected rows, for which the two shares are compared."""
    share: float
    """Share of near-copies among ``num_compared`` selected rows."""
    expected: float
    """Share of near-copies among ``num_compared`` labelled rows."""

    @property
    def is_more_than_expected(self) -> bool:
        """Whether there are clearly more near-copies than among labelled rows."""
        return self.share > max(2 * self.expected, self.expected + 0.05)


def read_questions(
    examples: TableRef, row_ids_N: Int64s, labels: Sequence[str | None], domain: Domain
) -> list[Question]:
    """Return rows as questions, as the domain's ``identity`` has them (empty if it fails), with the labels."""
    rows = io.take(examples, row_ids_N, domain.columns.names).to_pylist()
    found = (attempt(domain.identity, row)[0] for row in rows)
    texts = ("" if one is None else "\n".join((one[0], *one[1])) for one in found)
    return list(zip(texts, labels, strict=True))


def find_near_copies(
    selected: Sequence[Question], labelled: Sequence[Question], *, seed: int
) -> tuple[NearCopies, Int64s]:
    """Find near-copies among selected rows and as many labelled rows; also return the former's clusters, int64 [M]."""
    read = labelled[:COMMON_ROWS]
    counts = Counter(gram for text, _ in read for gram in _hash_grams(text).tolist())
    many = max(5.0, COMMON * len(read))
    common = np.array(sorted(gram for gram, count in counts.items() if count > many), dtype=np.uint64)
    cluster_M = cluster_rows(selected, common)
    num, rng = min(len(cluster_M), len(labelled)), np.random.default_rng(seed)
    drawn_m = rng.permutation(len(cluster_M))[:num]
    others = cluster_rows([labelled[m] for m in rng.permutation(len(labelled))[:num]], common)
    found = NearCopies(
        num_rows=len(cluster_M),
        num_questions=len(np.unique(cluster_M)),
        num_compared=num,
        share=_compute_share(cluster_M[drawn_m]),
        expected=_compute_share(others),
    )
    return found, cluster_M


def cluster_rows(rows: Sequence[Question], common: Uint64s) -> Int64s:
    """Return the cluster of each row, int64 [N]: rows of one label that near-copies connect."""
    signatures = np.array([_compute_signature(text, common) for text, _ in rows], dtype=np.uint64)
    signatures_NP = signatures.reshape(len(rows), _BANDS * _BAND_ROWS)
    labels = np.array([label or "" for _, label in rows], dtype=object).astype(str)
    _, label_N = np.unique(labels, return_inverse=True)
    known_N = np.array([bool(text) for text, _ in rows], dtype=np.bool_)
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
    links = scipy.sparse.coo_array((np.ones(len(pairs[0]), dtype=np.int8), pairs), shape=(len(rows),) * 2)
    return np.asarray(scipy.sparse.csgraph.connected_components(links, directed=False)[1], dtype=np.int64)


def _compute_share(cluster_N: Int64s) -> float:
    return 1 - len(np.unique(cluster_N)) / len(cluster_N) if len(cluster_N) else 0.0


def _hash_grams(text: str) -> Uint64s:
    """Return the distinct hashes of the 5-grams at the beginning of a text; a shorter text is padded to one 5-gram."""
    codes = np.frombuffer(text[:_CHARACTERS].ljust(_GRAM).encode("utf-32-le"), dtype=np.uint32).astype(np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(codes, _GRAM)
    with np.errstate(over="ignore"):
        hashed = (windows * _POWERS).sum(axis=1, dtype=np.uint64)
    return np.unique(hash64(hashed.view(np.int64), 0))


def _compute_signature(text: str, common: Uint64s) -> npt.NDArray[np.uint64]:
    """Return the MinHash signature of a text without common 5-grams, or of all if no others remain, uint64 [P]."""
    grams_G = _hash_grams(text)
    own_G = grams_G[~np.isin(grams_G, common, assume_unique=True)]
    grams_G = own_G if len(own_G) else grams_G
    with np.errstate(over="ignore"):
        return np.asarray(((grams_G[:, None] * _FACTORS + _TERMS) >> _HALF).min(axis=0))


_RNG = np.random.default_rng(0)
_POWERS = np.array([np.uint64(pow(0x100000001B3, k, 1 << 64)) for k in range(_GRAM)], dtype=np.uint64)
_FACTORS = _RNG.integers(1 << 63, size=_BANDS * _BAND_ROWS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_TERMS = _RNG.integers(1 << 63, size=_BANDS * _BAND_ROWS, dtype=np.uint64)
