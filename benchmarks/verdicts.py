"""Errors of the report's verdict over simulated healthy and sick runs: ``python -m benchmarks.verdicts``.

A run is simulated as scores and correctness of rows, which pass through the code that makes the report's record
(``curation.report.evidence.compute_evidence``) and the rules (``curation.report.verdict``). Trust is calibrated as in a
fit, by Platt scaling on separate rows. Kinds of runs:

- ``healthy``: AUC .70 to .92, 300 to 3,000 parsed validation rows, 30 to 80 % of the labels right, and more than 55 %
  of the selected ones; half of the runs have an audit, and half of these harmlessly shifted states; a false alarm is
  any verdict but "use it";
- ``no signal``: scores that are independent of correctness;
- ``below chance``: a teacher that is right less often than a random guess among five options (5 to 15 %), or as often
  (20 %);
- ``over-confident``: logits three to six times too steep, without calibration;
- ``shifted pool``: with an audit, scores that lose at least half of their information in the pool, and fewer right
  labels; without, the two-sample test of the states must find the shift;
- ``too few rows``: 10 to 80 parsed validation rows, no audit;
- ``mostly wrong``: an audit, 5 to 25 % of the labels right and less than 40 % of the selected ones, above chance.

A miss is a verdict without a finding of the rules that belong to the kind.

Then trust is compared with five free signals: all scores are normal with unit variance, share a common part
(correlation .3 to .9 among rows of one outcome), and a right label shifts each according to its AUC. 30 to 70 % of the
labels are right, 10 to 40 % of the rows are selected, and trust has an AUC of .60 to .85. Half of the runs have 5,000
pool rows with gold labels, half only 5,000 held-out questions of the source. Findings of the rule ``free signal`` are
counted; all other numbers of the evidence are those of a healthy run. Kinds:

- ``beaten``: the best signal's AUC is 3 to 8 points above that of trust, the others' are up to 10 points below the
  best;
- ``beaten by 3 points``: the same at exactly 3 points;
- ``equal``: the best signal is as good as trust; in half of the runs all five are;
- ``better``: the AUC of trust is 1 to 8 points above the best signal's.

Pools that are wrong in their labels and texts, and honest ones beside them, are those of ``benchmarks.verdict_pools``:
``called usable`` counts "use it", which is wrong for the first and right for the others. A second table has the
coverage of intervals (``benchmarks.verdict_intervals``). The whole takes about 7 minutes on one core, 4 of them for
texts.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, ndtr, ndtri

from benchmarks.verdict_intervals import DRAWS, print_intervals
from benchmarks.verdict_pools import POOLS
from curation.arms import FREE
from curation.metrics import Estimate, compute_proportion
from curation.metrics.shift import compare_samples
from curation.report.evidence import Evidence, EvidenceInputs, Quality, compute_evidence, find_rivals
from curation.report.rows import FunctionScores, GradedRows
from curation.report.rules import USE
from curation.report.verdict import ReportVerdict, reach_verdict
from curation.trust.calibration import Calibration, fit_calibration

CHANCE = 0.2
NUM_COMPARED = 5_000
"""Number of pool rows with gold labels, or of held-out questions, on which trust is compared with free signals."""
NUM_STATES, NUM_DIMENSIONS, MOVED = 500, 8, 0.8
"""Number of compared states per side, their size, and the distance by which a shift moves each of their numbers."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The truth of a simulated run: its numbers of rows and of right labels, and the information of its scores."""

    share_right: float
    num_validation: int
    auc: float
    audit: bool
    pool_share: float
    pool_auc: float
    steep: float = 1.0
    """Factor by which the logits are too steep; 1 means calibrated as in a fit."""
    moved: float = 0.0
    """Distance by which each number of the pool's states is moved."""
    taken: float = 0.25
    """Share of the pool that is selected."""
    chance: float = CHANCE

    @property
    def purity(self) -> float:
        """The expected share of right labels among the selected rows of the pool."""
        gap = np.sqrt(2) * ndtri(self.pool_auc)
        cut_G = np.linspace(-6, 12, 4001)
        right_G, wrong_G = self.pool_share * ndtr(gap - cut_G), (1 - self.pool_share) * ndtr(-cut_G)
        place = np.argmin(np.abs(right_G + wrong_G - self.taken))
        return float(right_G[place] / (right_G[place] + wrong_G[place]))


def healthy(rng: np.random.Generator) -> Drawn:
    """Draw a run that should be used."""
    while (run := _draw(rng)).purity < 0.55:
        pass
    return run


def _draw(rng: np.random.Generator) -> Drawn:
    share, auc, audit = rng.uniform(0.3, 0.8), rng.uniform(0.70, 0.92), bool(rng.random() < 0.5)
    return Drawn(
        taken=rng.uniform(0.1, 0.4),
        share_right=share,
        num_validation=int(np.exp(rng.uniform(np.log(300), np.log(3000)))),
        auc=auc,
        audit=audit,
        pool_share=share,
        pool_auc=auc,
        moved=MOVED if audit and rng.random() < 0.5 else 0.0,
    )


def no_signal(rng: np.random.Generator) -> Drawn:
    """Draw trust at chance."""
    return replace(healthy(rng), auc=0.5, pool_auc=0.5)


def below_chance(rng: np.random.Generator) -> Drawn:
    """Draw a teacher at or below the chance line."""
    share = CHANCE if rng.random() < 0.25 else rng.uniform(0.05, 0.15)
    return replace(healthy(rng), share_right=share, pool_share=share)


def over_confident(rng: np.random.Generator) -> Drawn:
    """Draw trust near 0 and 1 that is not right that often."""
    auc = rng.uniform(0.65, 0.8)
    return replace(healthy(rng), steep=rng.uniform(3, 6), auc=auc, pool_auc=auc)


def shifted(rng: np.random.Generator) -> Drawn:
    """Draw a pool on which trust is worth less, and the teacher too."""
    run = replace(healthy(rng), moved=MOVED)
    return replace(run, pool_auc=0.5 + (run.auc - 0.5) * rng.uniform(0, 0.5), pool_share=0.6 * run.share_right)


def few_rows(rng: np.random.Generator) -> Drawn:
    """Draw too few validation rows."""
    return replace(healthy(rng), num_validation=int(rng.integers(10, 81)), audit=False, moved=0.0)


def mostly_wrong(rng: np.random.Generator) -> Drawn:
    """Draw a selection that teaches more wrong than right labels, of a teacher above chance."""
    while True:
        share, auc = rng.uniform(0.05, 0.25), rng.uniform(0.6, 0.8)
        run = replace(healthy(rng), audit=True, share_right=share, pool_share=share, auc=auc, pool_auc=auc, chance=0.01)
        if run.purity < 0.4:
            return run


SICK = {
    "no signal": (no_signal, {"signal"}),
    "below chance": (below_chance, {"chance"}),
    "over-confident": (over_confident, {"probability", "promise"}),
    "shifted pool": (shifted, {"purity", "shift", "signal"}),
    "too few rows": (few_rows, {"rows"}),
    "mostly wrong": (mostly_wrong, {"useful"}),
}
"""Functions that simulate a sick run, with the rules of which one must find it, by kind."""


def rows(num: int, share: float, auc: float, rng: np.random.Generator, first: int) -> tuple[GradedRows, np.ndarray]:
    """Draw rows whose logit is that of the model that drew them, so its sigmoid is their probability; their logits."""
    correct_N = rng.random(num) < share
    gap = np.sqrt(2) * float(ndtri(auc))
    score_N = rng.normal(size=num) + gap * correct_N
    logit_N = gap * score_N - gap**2 / 2 + np.log(share / (1 - share))
    ids_N = first + np.arange(num)
    return GradedRows(row_ids_N=ids_N, correct_N=correct_N, parsed_N=np.ones(num, dtype=bool), scores={}), logit_N


def simulate(drawn: Drawn, rng: np.random.Generator) -> ReportVerdict:
    """Draw a run's rows, and judge it."""
    return reach_verdict(compute_evidence(material(drawn, rng)), "RUN_DIR")


def material(drawn: Drawn, rng: np.random.Generator) -> EvidenceInputs:
    """Draw a run's rows."""
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

    def scored(of: GradedRows, logit: np.ndarray) -> GradedRows:
        raw = drawn.steep * logit
        trust = expit(raw) if drawn.steep != 1 else calibration.to_trust(raw.astype(np.float32)).astype(np.float64)
        return replace(of, scores={"trust": FunctionScores(raw_N=raw, trust_N=trust)})

    seed = int(rng.integers(2**31))
    source_states, pool_states = rng.normal(size=(2, NUM_STATES, NUM_DIMENSIONS))
    shift = compare_samples(source_states, pool_states + drawn.moved, seed=seed).to_json()
    judged_pool = scored(pool, logit_N)
    order = np.argsort(-judged_pool.scores["trust"].raw_N)[: int(num_pool * drawn.taken)]
    selected = {"trust": judged_pool.row_ids_N[order]}
    held_out = scored(validation, logit_V)
    source = GradedRows(
        row_ids_N=np.concatenate([fitted.row_ids_N, held_out.row_ids_N]),
        correct_N=np.concatenate([fitted.correct_N, held_out.correct_N]),
        parsed_N=np.ones(len(fitted) + len(held_out), dtype=bool),
        scores={},
    )
    return EvidenceInputs(
        known=Evidence(arm="trust", chance=drawn.chance, shift=shift),
        function="trust",
        validation=replace(held_out, seed=seed),
        pool=replace(judged_pool, selected=selected, seed=seed) if drawn.audit else None,
        source=source,
        selected_trust_M=judged_pool.scores["trust"].trust_N[order],
        num_pool=num_pool,
        seed=seed,
    )


def in_pools(kind: str, num: int, seed: int, *, wrong: bool) -> tuple[int, Counter[str]]:
    """Count the usable ones among ``num`` wrong or honest pools of a kind, and all findings."""
    change, _ = POOLS[kind]
    rng = np.random.default_rng([seed, 300 + list(POOLS).index(kind), wrong])
    found = []
    for _ in range(num):
        drawn = replace(healthy(rng), audit=False, moved=0.0)
        found.append(reach_verdict(compute_evidence(change(material(drawn, rng), rng, wrong=wrong)), "RUN_DIR"))
    said = Counter(item["rule"] for judged in found for item in judged.findings)
    return sum(judged.level == USE for judged in found), said


def false_alarms(num: int, seed: int) -> tuple[int, Counter[str]]:
    """Count the unusable ones among ``num`` healthy runs, and the rules that said so."""
    rng = np.random.default_rng([seed, 0])
    found = [simulate(healthy(rng), rng) for _ in range(num)]
    rules = Counter(item["rule"] for judged in found for item in judged.findings)
    return sum(judged.level != USE for judged in found), rules


def misses(kind: str, num: int, seed: int) -> tuple[int, int, Counter[str]]:
    """Count sick runs without a finding of the rules of ``kind``, those called usable, and all findings."""
    draw, rules = SICK[kind]
    rng = np.random.default_rng([seed, 1 + list(SICK).index(kind)])
    found = [simulate(draw(rng), rng) for _ in range(num)]
    missed = sum(not rules & {item["rule"] for item in judged.findings} for judged in found)
    said = Counter(item["rule"] for judged in found for item in judged.findings)
    return missed, sum(judged.level == USE for judged in found), said


@dataclass(frozen=True, kw_only=True)
class Rivalry:
    """The truth of a simulated run in which trust is compared with free signals."""

    share_right: float
    auc: float
    signals: tuple[float, ...]
    """AUC of each free signal."""
    correlation: float
    """Correlation of all scores among rows of one outcome."""
    taken: float
    audit: bool


def _rivalry(rng: np.random.Generator, ahead: float, behind_K: np.ndarray) -> Rivalry:
    """Draw a rivalry in which the best signal is ``ahead`` of trust and the others are behind it."""
    auc = rng.uniform(0.60, 0.85)
    return Rivalry(
        share_right=rng.uniform(0.3, 0.7),
        auc=auc,
        signals=tuple(rng.permutation(np.maximum(auc + ahead - np.append(behind_K, 0.0), 0.5))),
        correlation=rng.uniform(0.3, 0.9),
        taken=rng.uniform(0.1, 0.4),
        audit=bool(rng.random() < 0.5),
    )


def _behind(rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(0, 0.1, len(FREE) - 1)


RIVALS: dict[str, Callable[[np.random.Generator], Rivalry]] = {
    "beaten": lambda rng: _rivalry(rng, rng.uniform(0.03, 0.08), _behind(rng)),
    "beaten by 3 points": lambda rng: _rivalry(rng, 0.03, _behind(rng)),
    "equal": lambda rng: _rivalry(rng, 0.0, _behind(rng) * (rng.random() < 0.5)),
    "better": lambda rng: _rivalry(rng, -rng.uniform(0.01, 0.08), _behind(rng)),
}
"""Functions that simulate a run with free signals, by kind; a rule must find the first two kinds."""


_SURE = Estimate(value=0.8, low=0.78, high=0.82, n=NUM_COMPARED)
_HEALTHY = Quality(
    rows=NUM_COMPARED,
    rarer=NUM_COMPARED // 3,
    auc=_SURE,
    share_right=Estimate(value=0.5, low=0.48, high=0.52, n=NUM_COMPARED),
    brier_excess=Estimate(value=-0.1, low=-0.11, high=-0.09, n=NUM_COMPARED),
    top=replace(_SURE, n=NUM_COMPARED // 4),
    top_trust=0.8,
    believed=_SURE,
    believed_trust=0.8,
)


def compared(drawn: Rivalry, rng: np.random.Generator) -> Evidence:
    """Draw a run's rows with the scores of trust and of every free signal, and set them against each other."""
    num = NUM_COMPARED
    correct_N = rng.random(num) < drawn.share_right
    gap_K = np.sqrt(2) * ndtri(np.array([drawn.auc, *drawn.signals]))
    shared, own = np.sqrt(drawn.correlation), np.sqrt(1 - drawn.correlation)
    raw_NK = shared * rng.normal(size=(num, 1)) + own * rng.normal(size=(num, len(gap_K))) + correct_N[:, None] * gap_K
    scores = {
        name: FunctionScores(raw_N=raw_N, trust_N=expit(raw_N))
        for name, raw_N in zip(("trust", *FREE), raw_NK.T, strict=True)
    }
    rows = GradedRows(row_ids_N=np.arange(num), correct_N=correct_N, parsed_N=np.ones(num, dtype=bool), scores=scores)
    seed, where = int(rng.integers(2**31)), "pool" if drawn.audit else "validation"
    graded = replace(rows, seed=seed)
    num_top = int(num * drawn.taken)
    return Evidence(
        arm="trust",
        num_selected=num_top,
        validation=_HEALTHY,
        pool=_HEALTHY if drawn.audit else None,
        teacher=_SURE,
        chance=None,
        foreseen=None,
        shift=None,
        rivals=find_rivals(graded, where, "trust", num_top, seed),
    )


def found_better(kind: str, num: int, seed: int) -> tuple[int, int, Counter[str]]:
    """Count runs with a signal found to be better among ``num`` runs with rivals, the usable ones, and all findings."""
    rng = np.random.default_rng([seed, 100 + list(RIVALS).index(kind)])
    judged = [reach_verdict(compared(RIVALS[kind](rng), rng), "RUN_DIR") for _ in range(num)]
    said = Counter(item["rule"] for one in judged for item in one.findings)
    return said["free signal"], sum(one.level == USE for one in judged), said


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="runs of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="kinds of runs")
    options = parser.parse_args()
    print("| runs | number | wrong | 95 % interval | called usable | findings |\n| --- | --- | --- | --- | --- | --- |")

    def line(name: str, wrong: int, usable: int, said: Counter[str]) -> None:
        share = compute_proportion(wrong, options.runs)
        rules = ", ".join(f"{rule} {count}" for rule, count in said.most_common())
        bounds = f"{100 * share.low:.1f} to {100 * share.high:.1f} %"
        print(f"| {name} | {options.runs} | {wrong} | {bounds} | {usable} | {rules} |", flush=True)

    wanted = [kind for kind in ("healthy", *SICK, *RIVALS, *POOLS) if options.only is None or kind in options.only]
    for kind in wanted:
        if kind == "healthy":
            alarms, rules = false_alarms(options.runs, options.seed)
            line(kind, alarms, options.runs - alarms, rules)
            continue
        if kind in SICK:
            line(kind, *misses(kind, options.runs, options.seed))
            continue
        if kind in POOLS:
            for what, wrong in (("wrong", True), ("honest", False)):
                usable, rules = in_pools(kind, options.runs, options.seed, wrong=wrong)
                line(f"{kind}, {what}", usable if wrong else options.runs - usable, usable, rules)
            continue
        found, usable, rules = found_better(kind, options.runs, options.seed)
        line(kind, options.runs - found if kind.startswith("beaten") else found, usable, rules)
    if options.only is None:
        print_intervals(DRAWS, options.seed)


if __name__ == "__main__":
    main()
