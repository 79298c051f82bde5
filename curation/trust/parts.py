"""Inputs of a fit: the keys of the section ``trust`` that it reads, and labelled source rows in two parts.

Weights are fitted on one part. The other part, the validation rows, decides when a network stops and calibrates its
logits; a stack (``train.stack``) needs no validation rows, as it is cross-fitted on all rows. Rows are divided by
question, so that all copies of a question are in one part; only the first copy is used. With ``splits.group``, whole
groups are in one part.
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
"""Names of the parts, by number; a row that is unused or repeats the question of an earlier row is in neither."""


def read_by(function: str, fitted: Fitted, trust: TrustConfig) -> TrustConfig:
    """Return the section ``trust`` with the defaults in place of all keys that a trust function's fit does not read."""
    own = {key: value for key, value in trust.options.items() if key == function}
    unread = {*trust.RESOURCES, "kind", "search"}
    if fitted.reads is not None:
        unread = type(trust).model_fields.keys() - find_read_keys(fitted) | {"preset"}
    return trust.without(unread).model_copy(update={"options": own})


def make_candidates_filter(config: TrustConfig) -> str:
    """Return a filter for the rows of a labels table that a trust function may use."""
    return "error IS NULL" if config.fit_on == "all" else "error IS NULL AND label IS NOT NULL"


def find_used(question_N: Int64s, config: TrustConfig, seed: int) -> Bools:
    """Return whether ``source_share`` keeps each row, bool [N], by a seeded hash that does not depend on the parts."""
    unit_N = hash_unit(question_N, derive(seed, "source share"))
    return unit_N < config.source_share


def assign_parts(
    question_N: Int64s, config: TrustConfig, seed: int, *, unit_N: Int64s | None = None
) -> npt.NDArray[np.int8]:
    """Return the part of each row, int8 [N], by a seeded hash of its question or, if given, of its unit.

    ``unit_N`` names the units that no part divides (``Graded.unit_N``). Rows that ``source_share`` omits are
    ``UNUSED``; rows that repeat the question of an earlier row are ``REPEAT``.
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

    With ``cluster_N``, a hash of the cluster keeps each cluster with a probability equal to its number of these rows
    divided by the largest cluster's, and a hash of the row id keeps one row of it. So the remaining rows are of
    different clusters, and each is drawn uniformly from all rows. A bound for independent rows therefore holds for
    them, however large the clusters are and however cluster size and correctness are related.
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
