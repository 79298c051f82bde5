"""How often the report's verdict is wrong, over simulated healthy and sick runs: ``python -m benchmarks.verdicts``.

A run is drawn as scores and correctness of rows, and goes through the code that makes the report's record
(``curation.report.evidence.weigh``) and the rules (``curation.report.verdict``). Trust is calibrated as a fit does it,
by Platt scaling on rows of its own. Kinds of runs:

- ``healthy``: AUC .70 to .92, 300 to 3,000 parsed validation rows, 30 to 80 % of the labels right, half of the runs
  with an audit, and half of those with states that differ, which does no harm; a false alarm is any verdict but "use
  it";
- ``no signal``: scores that say nothing of correctness;
- ``below chance``: a teacher that is right less often than a guess among five options (5 to 15 %), or as often (20 %);
- ``over-confident``: logits three to six times too steep, without calibration;
- ``shifted pool``: with an audit, scores in the pool that lost at least half of what they say, and fewer right labels;
  without, the two-sample test of the states has to find it;
- ``too few rows``: 10 to 80 parsed validation rows, no audit.

A miss is a verdict without a finding of the rules that belong to the sickness.
"""

import argparse
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, ndtri

from curation.metrics import proportion
from curation.metrics.shift import two_sample
from curation.report.evidence import Material, weigh
from curation.report.measured import InMemory
from curation.report.rows import Judged, Score
from curation.report.verdict import USE, Verdict, verdict
from curation.trust.calibration import Calibration, fit_calibration

CHANCE = 0.2
NUM_STATES, NUM_DIMENSIONS, MOVED = 500, 8, 0.8
"""States of either side that are compared, their size, and how far a shift moves each number of them."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The truth of a run: how many rows, how many of them right, and what a score says."""

    share_right: float
    num_validation: int
    auc: float
    audit: bool
    pool_share: float
    pool_auc: float
    steep: float = 1.0
    """How many times too steep the logits are; 1 is calibrated, as a fit calibrates."""
    moved: float = 0.0
    """How far the pool's states are moved."""


def healthy(rng: np.random.Generator) -> Drawn:
    """A run that should be used."""
    share, auc, audit = rng.uniform(0.3, 0.8), rng.uniform(0.70, 0.92), bool(rng.random() < 0.5)
    return Drawn(
        share_right=share,
        num_validation=int(np.exp(rng.uniform(np.log(300), np.log(3000)))),
        auc=auc,
        audit=audit,
        pool_share=share,
        pool_auc=auc,
        moved=MOVED if audit and rng.random() < 0.5 else 0.0,
    )


def no_signal(rng: np.random.Generator) -> Drawn:
    """Trust at chance."""
    return replace(healthy(rng), auc=0.5, pool_auc=0.5)


def below_chance(rng: np.random.Generator) -> Drawn:
    """A teacher at or below the chance line."""
    share = CHANCE if rng.random() < 0.25 else rng.uniform(0.05, 0.15)
    return replace(healthy(rng), share_right=share, pool_share=share)


def over_confident(rng: np.random.Generator) -> Drawn:
    """Trust near 0 and 1, and not that often right."""
    auc = rng.uniform(0.65, 0.8)
    return replace(healthy(rng), steep=rng.uniform(3, 6), auc=auc, pool_auc=auc)


def shifted(rng: np.random.Generator) -> Drawn:
    """A pool on which trust is worth less, and the teacher too."""
    run = replace(healthy(rng), moved=MOVED)
    return replace(run, pool_auc=0.5 + (run.auc - 0.5) * rng.uniform(0, 0.5), pool_share=0.6 * run.share_right)


def few_rows(rng: np.random.Generator) -> Drawn:
    """Too few validation rows."""
    return replace(healthy(rng), num_validation=int(rng.integers(10, 81)), audit=False, moved=0.0)


SICK = {
    "no signal": (no_signal, {"signal"}),
    "below chance": (below_chance, {"chance"}),
    "over-confident": (over_confident, {"probability", "promise"}),
    "shifted pool": (shifted, {"purity", "shift", "signal"}),
    "too few rows": (few_rows, {"rows"}),
}
"""How a sick run is drawn, and the rules of which one has to find it."""


def rows(num: int, share: float, auc: float, rng: np.random.Generator, first: int) -> tuple[Judged, np.ndarray]:
    """Rows whose logit is that of the model that drew them, so that its sigmoid is their probability; their logits."""
    correct_N = rng.random(num) < share
    gap = np.sqrt(2) * float(ndtri(auc))
    score_N = rng.normal(size=num) + gap * correct_N
    logit_N = gap * score_N - gap**2 / 2 + np.log(share / (1 - share))
    ids_N = first + np.arange(num)
    return Judged(row_ids_N=ids_N, correct_N=correct_N, parsed_N=np.ones(num, dtype=bool), scores={}), logit_N


def simulate(drawn: Drawn, rng: np.random.Generator) -> Verdict:
    """Draw a run's rows, and judge it."""
    num_pool, num_fit = 4_000, 4 * drawn.num_validation
    fitted, _ = rows(num_fit, drawn.share_right, drawn.auc, rng, 0)
    validation, logit_V = rows(drawn.num_validation, drawn.share_right, drawn.auc, rng, 10**6)
    pool, logit_N = rows(num_pool, drawn.pool_share, drawn.pool_auc, rng, 10**7)
    if drawn.pool_auc != drawn.auc:  # the scores keep their scale, and say less
        gap = np.sqrt(2) * float(ndtri(drawn.auc))
        weak = np.sqrt(2) * float(ndtri(drawn.pool_auc))
        score_N = rng.normal(size=num_pool) + weak * pool.correct_N + (gap - weak) * drawn.share_right
        logit_N = gap * score_N - gap**2 / 2 + np.log(drawn.share_right / (1 - drawn.share_right))
    calibration = Calibration()
    if drawn.steep == 1:
        held, logit_C = rows(max(drawn.num_validation // 2, 20), drawn.share_right, drawn.auc, rng, 0)
        if 0 < held.num_right < len(held):
            calibration = fit_calibration(logit_C.astype(np.float32), held.correct_N)

    def scored(of: Judged, logit: np.ndarray) -> Judged:
        raw = drawn.steep * logit
        trust = expit(raw) if drawn.steep != 1 else calibration.to_trust(raw.astype(np.float32)).astype(np.float64)
        return replace(of, scores={"trust": Score(raw_N=raw, trust_N=trust)})

    seed = int(rng.integers(2**31))
    source_states, pool_states = rng.normal(size=(2, NUM_STATES, NUM_DIMENSIONS))
    shift = two_sample(source_states, pool_states + drawn.moved, seed=seed).to_json()
    judged_pool = scored(pool, logit_N)
    order = np.argsort(-judged_pool.scores["trust"].raw_N)[: int(num_pool * rng.uniform(0.1, 0.4))]
    selected = {"trust": judged_pool.row_ids_N[order]}
    held_out = scored(validation, logit_V)
    source = Judged(
        row_ids_N=np.concatenate([fitted.row_ids_N, held_out.row_ids_N]),
        correct_N=np.concatenate([fitted.correct_N, held_out.correct_N]),
        parsed_N=np.ones(len(fitted) + len(held_out), dtype=bool),
        scores={},
    )
    material = Material(
        arm="trust",
        function="trust",
        validation=InMemory(judged=held_out, selected={}, seed=seed),
        pool=InMemory(judged=judged_pool, selected=selected, seed=seed) if drawn.audit else None,
        fitted=fitted,
        source=source,
        selected_trust_M=judged_pool.scores["trust"].trust_N[order],
        num_pool=num_pool,
        chance=CHANCE,
        shift=shift,
        seed=seed,
    )
    return verdict(weigh(material), "RUN_DIR")


def false_alarms(num: int, seed: int) -> tuple[int, Counter[str]]:
    """Of ``num`` healthy runs those not to be used as they are, and the rules that said so."""
    rng = np.random.default_rng([seed, 0])
    found = [simulate(healthy(rng), rng) for _ in range(num)]
    rules = Counter(item["rule"] for judged in found for item in judged.findings)
    return sum(judged.level != USE for judged in found), rules


def misses(kind: str, num: int, seed: int) -> tuple[int, int, Counter[str]]:
    """Of ``num`` sick runs those without a finding of the rules of ``kind``, those called usable, and all findings."""
    draw, rules = SICK[kind]
    rng = np.random.default_rng([seed, 1 + list(SICK).index(kind)])
    found = [simulate(draw(rng), rng) for _ in range(num)]
    missed = sum(not rules & {item["rule"] for item in judged.findings} for judged in found)
    said = Counter(item["rule"] for judged in found for item in judged.findings)
    return missed, sum(judged.level == USE for judged in found), said


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="runs of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| runs | number | wrong | 95 % interval | called usable | findings |\n| --- | --- | --- | --- | --- | --- |")

    def line(name: str, wrong: int, usable: int, said: Counter[str]) -> None:
        share = proportion(wrong, options.runs)
        rules = ", ".join(f"{rule} {count}" for rule, count in said.most_common())
        bounds = f"{100 * share.low:.1f} to {100 * share.high:.1f} %"
        print(f"| {name} | {options.runs} | {wrong} | {bounds} | {usable} | {rules} |", flush=True)

    alarms, rules = false_alarms(options.runs, options.seed)
    line("healthy", alarms, options.runs - alarms, rules)
    for kind in SICK:
        line(kind, *misses(kind, options.runs, options.seed))


if __name__ == "__main__":
    main()
