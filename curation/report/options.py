"""A row's options or legal answers: the accuracy of a uniform guess among them, and whether short ones win."""

import math
from dataclasses import dataclass

import numpy as np

from curation.arrays import Int64s
from curation.domains import Domain, attempt
from curation.hashing import derive
from curation.metrics import Estimate
from curation.refs import TableRef
from curation.report.rows import draw_rows

FEW_ROWS = 30
_QUANTILE = 2.5758293035489004


@dataclass(frozen=True, kw_only=True)
class OptionLengths:
    """A comparison of chosen and right options; lengths are in characters, intervals have 99 % confidence."""

    shorter: Estimate
    """Mean length of the right option less that of the chosen one."""
    gain: Estimate
    """Share of right choices by the score per character less that by the whole score."""
    scores: tuple[tuple[int, float], ...]
    """Mean length and mean score (nats) of the shorter half of the options and of the longer half."""


def measure_option_lengths(
    examples: TableRef, labels: TableRef, domain: Domain, row_ids_N: Int64s, seed: int
) -> OptionLengths | None:
    """Return statistics of rows that have options of several lengths; ``None`` if fewer than ``FEW_ROWS`` do.

    ``examples`` are labelled rows with gold labels, ``labels`` the teacher's labels with ``option_logprobs``.
    """
    needed, seed = ["row_id", "gold", *domain.columns.names], derive(seed, "option lengths")
    scored = draw_rows(labels, row_ids_N, ["row_id", "option_logprobs"], seed)
    scores = {row["row_id"]: row["option_logprobs"] for row in scored if row["option_logprobs"]}
    shorter: list[int] = []
    gains: list[int] = []
    pairs: list[tuple[int, float]] = []
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
        pairs += zip(lengths.tolist(), score.tolist(), strict=True)
    if len(shorter) < FEW_ROWS:
        return None
    length_M, score_M = np.array(pairs).T
    short_M = length_M <= np.median(length_M)
    halves = [half_M for half_M in (short_M, ~short_M) if half_M.any()]
    scores_of = tuple((round(float(length_M[half_M].mean())), float(score_M[half_M].mean())) for half_M in halves)
    return OptionLengths(shorter=_compute_mean(shorter), gain=_compute_mean(gains), scores=scores_of)


def _compute_mean(values: list[int]) -> Estimate:
    value, n = float(np.mean(values)), len(values)
    margin = _QUANTILE * math.sqrt(float(np.var(values)) / n)
    return Estimate(value=value, low=value - margin, high=value + margin, n=n)


def compute_chance(examples: TableRef, domain: Domain, row_ids_N: Int64s, seed: int) -> float | None:
    """Return the mean over rows of 1 / the number of possible answers, or ``None`` if no number is known."""
    rows = draw_rows(examples, row_ids_N, ["row_id", *domain.columns.names], derive(seed, "chance"))
    known = [1 / number for row in rows if (number := attempt(domain.num_answers, row)[0])]
    return sum(known) / len(known) if known else None
