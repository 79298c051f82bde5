"""The arms of the bench: each from labelled source rows to a score of the pool's rows, by the product or by a peer."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import expit

from curation.arms import FREE, PAPER_TRUST, TRUST, Column
from curation.arrays import Float64s
from curation.config import TrustConfig
from curation.trust.parts import FIT, UNUSED, VALIDATION
from curation.trust.states import SCORE_ROWS
from train.trust import fit_rows
from train.trust_loop import LabelledRows

NO_NETWORKS = "stacked without networks"
BASELINE = "ten numbers and a probe (scikit-learn)"
TEN = ("mean_logprob", "margin", "negentropy", "option_share", "option_lead", "min_logprob", "first_logprob")
TEN = (*TEN, "last_logprob", "num_output_tokens", "num_prompt_tokens")
"""The numbers of the peer."""


class Scored(NamedTuple):
    """A score of the pool's rows."""

    raw_N: Float64s
    trust_N: Float64s | None
    """As a probability; ``None`` where the arm gives none."""
    taken: str | None = None
    """What a stack took."""


Arm = Callable[[LabelledRows, LabelledRows, int], Scored]
"""An arm: labelled source rows, the pool's rows and a seed to a score."""


def free(name: str) -> Arm:
    """Return a free signal, which needs no labelled row."""

    def score(source: LabelledRows, pool: LabelledRows, seed: int) -> Scored:
        trust = TRUST[name]
        assert isinstance(trust, Column), "a free signal is a column"
        raw_N = pool.numbers_NK[:, pool.numbers.index(trust.column)]
        return Scored(np.nan_to_num(raw_N, nan=-1e30), None)

    return score


def fitted(kind: str, states: tuple[str, ...], /, **settings: Any) -> Arm:
    """Return a fitted trust function of the product."""

    def score(source: LabelledRows, pool: LabelledRows, seed: int) -> Scored:
        config = TrustConfig(states=states, **settings)
        trust = fit_rows(kind, source, config, seed=seed, origin={})
        raw_N = np.concatenate(
            [
                trust.raw_with(
                    torch.from_numpy(pool.hidden_ND[start : start + SCORE_ROWS]),
                    pool.numbers_NK[start : start + SCORE_ROWS],
                    pool.numbers,
                )
                for start in range(0, len(pool.part_N), SCORE_ROWS)
            ]
        )
        taken = (trust.fit.get("choice") or {}).get("taken")
        return Scored(raw_N.astype(np.float64), trust.to_trust(raw_N).astype(np.float64), taken)

    return score


def baseline(source: LabelledRows, pool: LabelledRows, seed: int) -> Scored:
    """Score by the peer: one logistic regression of ten numbers of the answer and an out-of-fold probe."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def logistic(strength: float) -> Any:
        return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=3000))

    used = np.flatnonzero(source.part_N >= 0)
    places = [source.numbers.index(name) for name in TEN]
    right, states = source.correct_N[used].astype(int), source.hidden_ND[used].astype(np.float32)
    numbers, pool_numbers = (np.nan_to_num(rows.numbers_NK[:, places]) for rows in (source, pool))
    probe = logistic(1e-3)
    held_out = cross_val_predict(probe, states, right, cv=5, method="decision_function")
    probed = probe.fit(states, right).decision_function(np.asarray(pool.hidden_ND, dtype=np.float32))
    model = logistic(0.1).fit(np.c_[numbers[used], held_out], right)
    raw_N = model.decision_function(np.c_[pool_numbers, probed])
    return Scored(raw_N, expit(raw_N))


def paper(states: tuple[str, ...], preset: str) -> Arm:
    """Return the paper's trust function with a row of its settings, of the last answer token's state alone."""
    of_ntf = fitted(PAPER_TRUST, ("output_last",), kind=PAPER_TRUST, **TrustConfig.PRESETS[preset])
    place = states.index("output_last")

    def score(source: LabelledRows, pool: LabelledRows, seed: int) -> Scored:
        return of_ntf(_with_one_state(source, place), _with_one_state(pool, place), seed)

    return score


def _with_one_state(rows: LabelledRows, place: int) -> LabelledRows:
    start = sum(rows.sizes[:place])
    hidden_ND = np.asarray(rows.hidden_ND)[:, start : start + rows.sizes[place]]
    return rows._replace(hidden_ND=np.ascontiguousarray(hidden_ND), sizes=(rows.sizes[place],))


def arms(states: tuple[str, ...], preset: str | None) -> Mapping[str, Arm]:
    """Return the arms by name; with a ``preset`` the paper's network too, which takes most of the time."""
    found: dict[str, Arm] = {name: free(name) for name in FREE}
    found[BASELINE] = baseline
    found["fitted_confidence"] = fitted("fitted_confidence", states)
    found["linear_probe"] = fitted("linear_probe", states)
    if preset is not None:
        found[PAPER_TRUST] = paper(states, preset)
    found[NO_NETWORKS] = fitted("stacked", states, options={"stacked": {"network_rows": 10**9}})
    found["stacked"] = fitted("stacked", states)
    return found


def drawn(source: LabelledRows, num: int | None, seed: int) -> LabelledRows:
    """Return the source with ``num`` of its rows in the parts of a fit, all others unused; ``None``: all."""
    usable = np.flatnonzero(source.part_N >= 0)
    order = np.random.default_rng(seed).permutation(usable)
    part_N = np.full(len(source.part_N), UNUSED, dtype=np.int8)
    taken = order[:num]
    part_N[taken] = FIT
    part_N[taken[: len(taken) // 5]] = VALIDATION
    return source._replace(part_N=part_N)
