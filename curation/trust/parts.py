"""Inputs of a fit: its keys of the section ``trust``; labelled source rows, in two parts.

Weights are fitted on one part. The other, the validation rows, says when a network stops and turns logits into
probabilities; a stack (``train.stack``) needs no such part, as it is cross-fitted on all rows. Rows are parted by the
question that they ask, so that copies of a question are on one side; only the first of them is used. With
``splits.group`` whole groups are on one side.
"""

import numpy as np
import numpy.typing as npt

from curation.arms import Fitted
from curation.arrays import Bools, Int64s
from curation.config import TrustConfig
from curation.config.trust import find_read_keys
from curation.hashing import derive, hash_unit

FIT, VALIDATION, UNUSED, REPEAT = 0, 1, -1, -2
NAMES = ("fit", "validation")
"""Names of the parts, by number; an unused row is in none, nor is one that repeats the question of an earlier row."""


def read_by(function: str, fitted: Fitted, trust: TrustConfig) -> TrustConfig:
    """Return the section with what the fit of a trust function does not read at its defaults."""
    own = {key: value for key, value in trust.options.items() if key == function}
    unread = {*trust.RESOURCES, "kind", "search"}
    if fitted.reads is not None:
        unread = type(trust).model_fields.keys() - find_read_keys(fitted) | {"preset"}
    return trust.without(unread).model_copy(update={"options": own})


def make_candidates_filter(config: TrustConfig) -> str:
    """Return a filter for the rows of a labels table that a trust function may use."""
    return "error IS NULL" if config.fit_on == "all" else "error IS NULL AND label IS NOT NULL"


def find_used(question_N: Int64s, config: TrustConfig, seed: int) -> Bools:
    """Return whether ``source_share`` takes each row, bool [N], by a seeded hash of its question, not its part's."""
    unit_N = hash_unit(question_N, derive(seed, "source share"))
    return unit_N < config.source_share


def assign_parts(
    question_N: Int64s, config: TrustConfig, seed: int, *, unit_N: Int64s | None = None
) -> npt.NDArray[np.int8]:
    """Return the part of each row, int8 [N], by a seeded hash of its question (``Graded.question_N``, or its row id).

    ``unit_N``: what no part divides, if another than the question (``Graded.unit_N``). ``UNUSED`` for rows that
    ``source_share`` omits, ``REPEAT`` for others than the first one of a question.
    """
    validates_N = hash_unit(question_N if unit_N is None else unit_N, seed) < config.validation_fraction
    part_N = np.where(validates_N, np.int8(VALIDATION), np.int8(FIT))
    part_N[~find_used(question_N, config, seed)] = UNUSED
    part_N[~find_first_of_each(question_N)] = REPEAT
    return part_N


def find_first_of_each(question_N: Int64s) -> Bools:
    """Return which rows are the first that ask their question, bool [N]."""
    first_N = np.zeros(len(question_N), dtype=np.bool_)
    first_N[np.unique(question_N, return_index=True)[1]] = True
    return first_N


def find_independent(question_N: Int64s, row_ids_N: Int64s, cluster_N: Int64s | None = None) -> Bools:
    """Return which rows count as independent draws, bool [N]: the first of each question.

    With ``cluster_N`` one row of a cluster, by a hash of its id, and not of all clusters: by a hash of the cluster,
    with a probability that is its number of rows by that of the largest. So the rows that are left are of different
    clusters, and each is a row drawn from all rows, not from a cluster that was drawn: a bound for independent rows
    holds for them, however large clusters are and whatever that has to do with what is right.
    """
    first_N = find_first_of_each(question_N)
    if cluster_N is None:
        return first_N
    (place_M,) = np.nonzero(first_N)
    order_M = np.lexsort((hash_unit(row_ids_N[place_M], derive(0, "row of a cluster")), cluster_N[place_M]))
    cluster_K, start_K, size_K = np.unique(cluster_N[place_M][order_M], return_index=True, return_counts=True)
    is_kept_K = hash_unit(cluster_K, derive(0, "clusters")) * size_K.max(initial=1) < size_K
    kept_N = np.zeros(len(first_N), dtype=np.bool_)
    kept_N[place_M[order_M[start_K[is_kept_K]]]] = True
    return kept_N
