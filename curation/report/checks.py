"""Checks on rows for the verdict: near-copies, a baseline without a teacher, the accuracy of a guess, short options.

Near-copies are selected rows of one label whose questions differ by a few characters; exact repeats are found earlier
(``curation.stages.overlap``). Texts are compared by their sets of character 5-grams, whose Jaccard similarity is
estimated by MinHash (Broder 1997); rows whose signatures share a band are compared (Leskovec, Rajaraman and Ullman,
"Mining of Massive Datasets", 3.4). 5-grams that many labelled rows share, such as those of a prompt's frame, do not
count. Tasks whose questions follow a few patterns have near-copies among labelled rows, too, so the share among as many
labelled rows is the expected one.

The baseline is a logistic regression on the words of the text, if labels are a closed set. If its surest rows are right
more often than those that trust puts first, the teacher and its trust add nothing. Predictions are out-of-fold: no row
is judged by a model that has seen its label.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # imports its submodules on first use

from curation.arrays import Bools, Float64s, Int64s, Uint64s
from curation.domains import Domain, attempt
from curation.hashing import derive, hash64
from curation.metrics import Estimate, compute_share_right
from curation.refs import TableRef
from curation.report.rows import GradedRows, draw_rows
from curation.tables import io

QUANTILE = 2.5758293035489004
"""Quantile of the normal distribution for the intervals that decide, of 99 %."""
MOST_ROWS = 10_000
"""Maximum number of rows to compare; more are sampled."""
SIMILAR = 0.55
"""Minimum similarity of near-copies: one word of twelve may differ."""
COMMON, COMMON_ROWS = 0.2, 500
"""Share of labelled rows above which a 5-gram belongs to the task, not the question; maximum number of rows read."""
_GRAM, _CHARACTERS = 5, 1_000
_BANDS, _BAND_ROWS = 20, 4
_HALF = np.uint64(32)
_RNG = np.random.default_rng(0)
_POWERS = np.array([np.uint64(pow(0x100000001B3, k, 1 << 64)) for k in range(_GRAM)], dtype=np.uint64)
_FACTORS = _RNG.integers(1 << 63, size=_BANDS * _BAND_ROWS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_TERMS = _RNG.integers(1 << 63, size=_BANDS * _BAND_ROWS, dtype=np.uint64)
Question = tuple[str, str | None]
"""The text of a row, and its label."""
FEW_ROWS, FEW_OPTIONS = 50, 30
"""Minimum numbers of rows for the baseline, and for the lengths of options."""
NUM_FOLDS = 5
MOST_WORDS = 50_000
"""Maximum number of words that are features. With pairs of words the classifier was slower, and worse on BANKING77
(300 and 1,000 rows: 38 and 59 % right instead of 52 and 66)."""
WORD = r"(?u)\b\w+\b"
"""Pattern of a word; scikit-learn's default leaves out words of one letter."""


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


@dataclass(frozen=True, kw_only=True)
class Control:
    """A baseline classifier of words, compared with trust on held-out labelled rows."""

    accuracy: Estimate
    """Share of all rows that the classifier labels right."""
    top: Estimate
    """Share of right labels among the classifier's surest rows."""
    trust_top: Estimate
    """Share of right teacher labels among as many rows that trust ranks first."""


@dataclass(frozen=True, kw_only=True)
class OptionLengths:
    """A comparison of chosen and right options; lengths are in characters, intervals have 99 % confidence."""

    shorter: Estimate
    """Mean length of the right option less that of the chosen one."""
    gain: Estimate
    """Share of right choices by the score per character less that by the whole score."""


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
    share, expected = (1 - len(np.unique(of)) / len(of) if len(of) else 0.0 for of in (cluster_M[drawn_m], others))
    counted = {"num_rows": len(cluster_M), "num_questions": len(np.unique(cluster_M)), "num_compared": num}
    return NearCopies(**counted, share=share, expected=expected), cluster_M


def cluster_rows(rows: Sequence[Question], common: Uint64s) -> Int64s:
    """Return the cluster of each row, int64 [N]: rows of one label that near-copies connect."""
    signatures = np.zeros((len(rows), _BANDS * _BAND_ROWS), dtype=np.uint64)
    for row, (text, _) in enumerate(rows):
        grams_G = _hash_grams(text)
        own_G = grams_G[~np.isin(grams_G, common, assume_unique=True)]  # all, if no others remain
        with np.errstate(over="ignore"):
            hashed_GP = ((own_G if len(own_G) else grams_G)[:, None] * _FACTORS + _TERMS) >> _HALF
        signatures[row] = hashed_GP.min(axis=0)
    _, label_N = np.unique(np.array([label or "" for _, label in rows], dtype=object).astype(str), return_inverse=True)
    known_N = np.array([bool(text) for text, _ in rows], dtype=np.bool_)
    left, right = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for band in range(_BANDS):
        band_N = signatures[:, band * _BAND_ROWS : (band + 1) * _BAND_ROWS]
        keyed = np.column_stack([label_N.astype(np.uint64), band_N])
        _, first_G, group_N = np.unique(keyed, axis=0, return_index=True, return_inverse=True)
        one_N = first_G[group_N.ravel()]
        near_N = (signatures == signatures[one_N]).mean(axis=1) >= SIMILAR
        place_M = np.flatnonzero(near_N & known_N & known_N[one_N])
        left.append(place_M)
        right.append(one_N[place_M])
    pairs = np.concatenate(left), np.concatenate(right)
    links = scipy.sparse.coo_array((np.ones(len(pairs[0]), dtype=np.int8), pairs), shape=(len(rows),) * 2)
    return np.asarray(scipy.sparse.csgraph.connected_components(links, directed=False)[1], dtype=np.int64)


def _hash_grams(text: str) -> Uint64s:
    """Return the distinct hashes of the 5-grams at the beginning of a text; a shorter text is padded to one 5-gram."""
    codes = np.frombuffer(text[:_CHARACTERS].ljust(_GRAM).encode("utf-32-le"), dtype=np.uint32).astype(np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(codes, _GRAM)
    with np.errstate(over="ignore"):
        hashed = (windows * _POWERS).sum(axis=1, dtype=np.uint64)
    return np.unique(hash64(hashed.view(np.int64), 0))


def measure_control(
    examples: TableRef, domain: Domain, held: GradedRows, function: str, share: float, *, seed: int, confidence: float
) -> Control | None:
    """Return a trust function's baseline, or ``None`` with open labels or fewer than ``FEW_ROWS`` known gold labels.

    ``examples`` are the labelled rows, ``held`` the parsed ones with an out-of-sample score, one per question. The
    ``share`` of the pool that is selected is also the share of these rows that is compared.
    """
    classes = domain.closed_labels()
    if classes is None or function not in held.scores:
        return None
    needed = ["row_id", "gold", *domain.columns.names]
    rows = draw_rows(examples, held.row_ids_N, needed, derive(seed, "control"))
    asked = ((row["row_id"], attempt(domain.prompt, row)[0], row["gold"]) for row in rows if row["gold"] in classes)
    known = {row_id: (text, gold) for row_id, text, gold in asked if text is not None}
    held = held.subset(np.isin(held.row_ids_N, [*known]))
    texts, gold = zip(*(known[row_id] for row_id in held.row_ids_N.tolist()), strict=True) if known else ((), ())
    if len(texts) < FEW_ROWS or len({*gold}) < 2:
        return None
    seed = derive(seed, "control folds")
    right_N, sure_N = predict_out_of_fold(texts, np.array(gold), seed, cluster_N=held.cluster_N)
    num_top = max(1, round(share * len(held)))

    def best(score_N: Float64s, correct_N: Bools) -> Estimate:
        first_M = np.argsort(-score_N, kind="stable")[:num_top]
        cluster_M = None if held.cluster_N is None else held.cluster_N[first_M]
        return compute_share_right(correct_N[first_M], cluster_M, confidence=confidence)

    return Control(
        accuracy=compute_share_right(right_N, held.cluster_N, confidence=confidence),
        top=best(sure_N, right_N),
        trust_top=best(held.scores[function].raw_N, held.correct_N),
    )


def predict_out_of_fold(
    texts: Sequence[str], gold_N: npt.NDArray[np.str_], seed: int, *, cluster_N: Int64s | None = None
) -> tuple[Bools, Float64s]:
    """Return whether the classifier is right on each text, bool [N], and the probability of its own label, [N].

    No fold divides a cluster; with fewer clusters than folds, each cluster is a fold.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer  # heavy
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, KFold
    from sklearn.pipeline import make_pipeline
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    right_N, sure_N = np.zeros(len(texts), dtype=np.bool_), np.zeros(len(texts))
    drawn: dict[str, Any] = {"shuffle": True, "random_state": seed % (1 << 32)}
    if cluster_N is None:
        parts = KFold(NUM_FOLDS, **drawn).split(texts)
    elif (num := min(NUM_FOLDS, len(np.unique(cluster_N)))) < 2:
        return right_N, sure_N
    else:
        parts = GroupKFold(num, **drawn).split(texts, groups=cluster_N)
    for fitted_M, held_M in parts:
        if len({*gold_N[fitted_M]}) < 2:
            continue
        words = TfidfVectorizer(sublinear_tf=True, max_features=MOST_WORDS, token_pattern=WORD)
        model = make_pipeline(words, LogisticRegression(C=10.0, max_iter=1000))
        with threadpool_limits(1):  # small products; on a busy machine threads that wait for each other take minutes
            model.fit([texts[place] for place in fitted_M], gold_N[fitted_M])
            given_MC = model.predict_proba([texts[place] for place in held_M])
        right_N[held_M] = model.classes_[given_MC.argmax(axis=1)] == gold_N[held_M]
        sure_N[held_M] = given_MC.max(axis=1)
    return right_N, sure_N


def measure_option_lengths(
    examples: TableRef, labels: TableRef, domain: Domain, row_ids_N: Int64s, seed: int
) -> OptionLengths | None:
    """Return statistics of rows that have options of several lengths; ``None`` if fewer than ``FEW_OPTIONS`` do.

    ``examples`` are labelled rows with gold labels, ``labels`` the teacher's labels with ``option_logprobs``.
    """
    needed, seed = ["row_id", "gold", *domain.columns.names], derive(seed, "option lengths")
    scored = draw_rows(labels, row_ids_N, ["row_id", "option_logprobs"], seed)
    scores = {row["row_id"]: row["option_logprobs"] for row in scored if row["option_logprobs"]}
    shorter: list[int] = []
    gains: list[int] = []
    for row in draw_rows(examples, row_ids_N, needed, seed) if scores else ():
        options, _ = attempt(domain.options, row)
        found = scores.get(row["row_id"])
        if not options or found is None or len(found) != len(options) or len({*map(len, options)}) == 1:
            continue
        right = [attempt(domain.parse, option, row)[0] == row["gold"] for option in options]
        if sum(right) != 1:
            continue
        lengths, score = np.array([len(option) for option in options]), np.array(found, dtype=np.float64)
        chosen, by_length = int(score.argmax()), int((score / np.maximum(lengths, 1)).argmax())
        shorter.append(int(lengths[right.index(True)] - lengths[chosen]))
        gains.append(int(right[by_length]) - int(right[chosen]))
    if len(shorter) < FEW_OPTIONS:
        return None
    means = []
    for values in (shorter, gains):
        value, n = float(np.mean(values)), len(values)
        margin = QUANTILE * math.sqrt(float(np.var(values)) / n)
        means.append(Estimate(value=value, low=value - margin, high=value + margin, n=n))
    return OptionLengths(shorter=means[0], gain=means[1])


def compute_chance(examples: TableRef, domain: Domain, row_ids_N: Int64s, seed: int) -> float | None:
    """Return the mean over rows of 1 / the number of possible answers, or ``None`` if it is known of no row."""
    rows = draw_rows(examples, row_ids_N, ["row_id", *domain.columns.names], derive(seed, "chance"))
    known = [1 / number for row in rows if (number := attempt(domain.num_answers, row)[0])]
    return sum(known) / len(known) if known else None
