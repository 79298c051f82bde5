"""Simulated pools with healthy numbers but wrong rows, each beside an honest one: a part of ``benchmarks.verdicts``.

Each kind changes the material of a healthy run (``benchmarks.verdicts.material``) without an audit, so that the fault
shows only in labels and texts.

- ``unseen class``: 30 % of the pool's labels are of a class that no labelled row has; the honest pool has 20 classes
  with the source's shares, the rarest .1 %, so some are missing by chance.
- ``near-copies``: of 1,460 rows, 60 are selected, all near-copies of one confident row (a word replaced, added or
  omitted, or a wrong letter); the honest ones are different texts or, in half of the pools, sums and phrases of a few
  patterns, like the labelled rows.
- ``other texts``: with 200 labelled rows and a pool without states, a quarter of the pool's words have other
  frequencies; the honest pool has the frequencies of the labelled rows.
- ``other users``: the labelled rows are of 30 users and the pool's of others, named by a column; the honest pool is of
  the same users, or each row has a different user.
- ``grouped users``: with ``splits.group``; 600 labelled rows of 30 users, and a pool of 300 others. A user's rows share
  some numbers. In the wrong pool only these predict correctness, through the user; folds by row would know the users,
  and predict a purity that is about 26 points above the pool's. In the honest pool the rows' own numbers predict it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from scipy.special import ndtr

from curation.domains.class_counts import SeenLabels, UnseenLabels
from curation.metrics.shift import compare_samples, compare_texts
from curation.report.checks import find_near_copies
from curation.report.evidence import EvidenceInputs
from curation.report.record import PossibleGroups
from curation.report.rows import FunctionScores, GradedRows
from curation.stages.preview import is_possible_group
from curation.stages.shift import find_gravest_shift
from curation.trust.calibration import fit_calibration
from curation.trust.combining import assign_folds

NUM_CLASSES, RAREST = 20, 0.001


def unseen_class(of: EvidenceInputs, rng: np.random.Generator, *, wrong: bool) -> EvidenceInputs:
    """Change the pool's labels: with ``wrong``, 30 % are of a class that the source lacks."""
    share_C = np.geomspace(RAREST, 1, NUM_CLASSES)
    share_C /= share_C.sum()
    counts = Counter({f"class {c}": int(n) for c, n in enumerate(rng.multinomial(len(of.source), share_C)) if n})
    seen = SeenLabels.of(counts)
    assert seen is not None, "rows of few classes"
    pool = Counter({f"class {c}": int(n) for c, n in enumerate(rng.multinomial(of.num_pool, share_C)) if n})
    if wrong:
        moved = rng.binomial(of.num_pool, 0.3)
        pool = Counter({label: round(n * (1 - moved / of.num_pool)) for label, n in pool.items()}) + Counter(new=moved)
    unseen = Counter({label: n for label, n in pool.items() if label not in seen.labels})
    known = replace(of.known, unseen=UnseenLabels.of(seen, pool.total(), unseen) if unseen else None)
    return replace(of, known=known)


def near_copied(of: EvidenceInputs, rng: np.random.Generator, *, wrong: bool) -> EvidenceInputs:
    """Change texts of the selected rows: with ``wrong`` to near-copies of one, which are as sure as the surest rows."""
    num_pool, num = 1_460, 60
    pattern = words if wrong or rng.random() < 0.5 else sums if rng.random() < 0.5 else patterns
    labelled = [(pattern(rng), "a") for _ in range(200)]
    row = words(rng)
    rows = [(edited(row, rng) if wrong else pattern(rng), "a") for _ in range(num)]
    near, cluster_M = find_near_copies(rows, labelled, seed=0)
    trust_M = np.sort(of.selected_trust_M)[::-1][:num]
    trust_M = np.full(num, trust_M[0]) if wrong else trust_M
    known = replace(of.known, near=near)
    return replace(of, known=known, selected_trust_M=trust_M, num_pool=num_pool, cluster_M=cluster_M)


_LETTERS = list("abcdefghijklmnopqrstuvwxyz")
_VOCABULARY = ["".join(np.random.default_rng(word).choice(_LETTERS, 2 + word % 7)) for word in range(2_000)]
_ZIPF = 1 / np.arange(1, 2_001) / np.sum(1 / np.arange(1, 2_001))


def words(rng: np.random.Generator) -> str:
    """Draw a text of a frame and 10 to 39 words."""
    return "is this positive or negative: " + " ".join(rng.choice(_VOCABULARY, rng.integers(10, 40), p=_ZIPF))


def sums(rng: np.random.Generator) -> str:
    """Draw a sum."""
    return f"what is {rng.integers(100)} + {rng.integers(100)} - {rng.integers(10)}?"


def patterns(rng: np.random.Generator) -> str:
    """Draw one of 40 phrases, with two numbers and a word of its own."""
    frame = " ".join(np.random.default_rng(int(rng.integers(40))).choice(_VOCABULARY, 12))
    return f"{frame} {rng.integers(1000)} {rng.choice(_VOCABULARY)} {rng.integers(1000)}"


def edited(text: str, rng: np.random.Generator) -> str:
    """Change a word of a text, add or leave out one, or change a letter."""
    parts, place = text.split(), int(rng.integers(5, len(text.split())))
    edit = rng.integers(4)
    if edit == 0:
        parts[place] = str(rng.choice(_VOCABULARY))
    elif edit == 1:
        parts.insert(place, str(rng.integers(10_000)))
    elif edit == 2:
        del parts[place]
    else:
        parts[place] = parts[place][:-1] + str(rng.choice(_LETTERS))
    return " ".join(parts)


def other_texts(of: EvidenceInputs, rng: np.random.Generator, *, wrong: bool) -> EvidenceInputs:
    """Change the comparison of texts: with ``wrong`` the pool is about something else."""
    other = np.where(rng.random(len(_ZIPF)) < 0.5, _ZIPF, rng.permutation(_ZIPF))
    share = 0.75 * _ZIPF + 0.25 * other / other.sum() if wrong else _ZIPF
    source, pool = (
        [" ".join(rng.choice(_VOCABULARY, rng.integers(10, 40), p=p)) for _ in range(num)]
        for num, p in ((200, _ZIPF), (1_000, share))
    )
    numbers = compare_samples(rng.normal(size=(200, 1)), rng.normal(size=(1_000, 1)), seed=0)
    found = find_gravest_shift(numbers, compare_texts(source, pool, seed=0))
    return replace(of, known=replace(of.known, shift=found.to_json()))


def other_users(of: EvidenceInputs, rng: np.random.Generator, *, wrong: bool) -> EvidenceInputs:
    """Change the column of users in 1,000 rows of each split: with ``wrong`` the pool has others."""
    alone = not wrong and rng.random() < 0.5
    users = [range(1_000), range(1_000, 2_000)] if alone else [rng.integers(30, size=1_000) for _ in range(2)]
    source, pool = (Counter(map(str, found)) for found in users)
    if wrong:
        pool = Counter(map(str, 30 + rng.integers(300, size=1_000)))
    groups = [PossibleGroups(column="user", num_rows=1_000, num_values=len(source), others=1.0)]
    known = replace(of.known, groups=tuple(groups) if is_possible_group(source, pool) else ())
    return replace(of, known=known)


def of_users(
    num_users: int, num_rows: int, rng: np.random.Generator, *, wrong: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw rows of users: their numbers [N, 25], whether they are right [N], and whose they are [N]."""
    user_N = rng.integers(num_users, size=num_rows)
    sd, gap = (1.5, 0.0) if wrong else (0.3, 1.5)
    right_N = rng.random(num_rows) < ndtr(0.3 + sd * rng.normal(size=num_users)[user_N])
    mark_UK = 2 * rng.normal(size=(num_users, 24))
    own_N = rng.normal(size=num_rows) + gap * right_N
    return np.column_stack([own_N, mark_UK[user_N] + rng.normal(size=(num_rows, 24))]), right_N, user_N


def _ridge(number_NK: np.ndarray, right_N: np.ndarray) -> np.ndarray:
    """Return the weights of a linear regression of what is right, [K]."""
    centred_N = right_N - right_N.mean()
    weight_K: np.ndarray = np.linalg.solve(
        number_NK.T @ number_NK + np.eye(number_NK.shape[1]), number_NK.T @ centred_N
    )
    return weight_K


def fitted_on_users(
    rng: np.random.Generator, *, wrong: bool, grouped: bool
) -> tuple[GradedRows, np.ndarray, np.ndarray]:
    """Fit a trust function on the rows of 30 users, in folds that divide no user where they are ``grouped``.

    Return the labelled rows with their out-of-fold scores, and of 4,000 rows of other users the trust and what is
    right.
    """
    number_NK, right_N, user_N = of_users(30, 600, rng, wrong=wrong)
    pool_NK, pool_right_N, _ = of_users(300, 4_000, rng, wrong=wrong)
    ids_N, seed = np.arange(600), int(rng.integers(2**31))
    fold_N = assign_folds(ids_N, right_N, 5, seed, cluster_M=user_N if grouped else None)
    raw_N = np.zeros(600)
    for fold in range(5):
        weight_K = _ridge(number_NK[fold_N != fold], right_N[fold_N != fold])
        raw_N[fold_N == fold] = number_NK[fold_N == fold] @ weight_K
    raw_pool_N = pool_NK @ _ridge(number_NK, right_N)
    calibration = fit_calibration(raw_N.astype(np.float32), right_N)
    trust_N, pool_trust_N = (
        calibration.to_trust(raw.astype(np.float32)).astype(np.float64) for raw in (raw_N, raw_pool_N)
    )
    rows = GradedRows(
        row_ids_N=ids_N,
        correct_N=right_N,
        parsed_N=np.ones(600, dtype=bool),
        scores={"trust": FunctionScores(raw_N=raw_N, trust_N=trust_N)},
        cluster_N=user_N if grouped else None,
    )
    return rows, pool_trust_N, pool_right_N


def grouped_users(of: EvidenceInputs, rng: np.random.Generator, *, wrong: bool) -> EvidenceInputs:
    """Draw rows of users: with ``wrong`` trust knows nothing but whose a row is."""
    rows, trust_N, _ = fitted_on_users(rng, wrong=wrong, grouped=True)
    return replace(
        of,
        validation=replace(rows, seed=of.seed),
        source=rows,
        selected_trust_M=np.sort(trust_N)[::-1][:1_000],
        num_pool=len(trust_N),
    )


POOLS: Mapping[str, tuple[Callable[..., EvidenceInputs], str]] = {
    "unseen class": (unseen_class, "unseen"),
    "near-copies": (near_copied, "near-copies"),
    "other texts": (other_texts, "shift"),
    "other users": (other_users, "groups"),
    "grouped users": (grouped_users, "signal"),
}
"""Functions that change the material of a healthy run, with the rule that must find a wrong pool, by kind."""
