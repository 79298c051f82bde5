"""Detection rates of foreign rows in a pool, over simulated filters and runs: ``python -m benchmarks.foreign_rows``.

A teacher has states of 16 numbers, and the probability that it is right grows along one direction. Trust is a logistic
probe of the states, fitted on 1,000 labelled rows; 1,000 others have held-out scores. Foreign rows are 6 standard
deviations away in another direction, and further along the first, so they look trustworthy; a fifth of their labels are
right. The 25 % most trusted of 1,000 pool rows are kept. Counted for each share of foreign rows:

- ``filter``: alarms of a filter (exit code 3), by all rows or by rows that pass the cut;
- ``verdict``: verdicts of a run with the finding ``shift``, by all rows or by rows that pass the cut;
- ``foreseen``: runs with a finding of any rule, or an expected purity of the kept rows within the predicted interval.
"""

import argparse
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from curation.arrays import Bools, Floats
from curation.filter.stages.pool_shift import Rows, compare
from curation.metrics import compute_proportion
from curation.metrics.foreign import compute_distances, count_passing
from curation.metrics.shift import compare_samples
from curation.report.evidence import Evidence, EvidenceInputs, compute_evidence, widen_interval
from curation.report.rows import FunctionScores, GradedRows
from curation.report.verdict import reach_verdict
from curation.stages.shift import describe_foreign
from curation.trust.calibration import fit_calibration

SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
NUM_LABELLED, NUM_POOL, KEPT = 1000, 1000, 0.25
NUM_DIMENSIONS, OFF, RIGHT_OF_FOREIGN = 16, 6.0, 0.2
STEPS, RATE = 200, 1.0


@dataclass(frozen=True)
class Drawn:
    """Rows with their states and the correctness of their labels."""

    states_ND: Floats
    right_N: Floats
    """Probability that each label is right."""
    correct_N: Bools


def draw(num_rows: int, num_foreign: int, rng: np.random.Generator) -> Drawn:
    """Return rows in random order."""
    states_ND = rng.normal(size=(num_rows, NUM_DIMENSIONS))
    foreign_N = rng.permutation(num_rows) < num_foreign
    states_ND[foreign_N, 1] += OFF
    right_N = expit(1.5 * states_ND[:, 0] + 0.5)
    states_ND[foreign_N, 0] += 1.5
    right_N = np.where(foreign_N, RIGHT_OF_FOREIGN, right_N)
    return Drawn(states_ND, right_N, rng.random(num_rows) < right_N)


def fitted(rows: Drawn) -> Floats:
    """Return the weights of a logistic probe, [D + 1], by gradient descent."""
    weights, inputs = np.zeros(NUM_DIMENSIONS + 1), with_one(rows.states_ND)
    for _ in range(STEPS):
        weights = weights + RATE * inputs.T @ (rows.correct_N - expit(inputs @ weights)) / len(inputs)
    return weights


def with_one(states_ND: Floats) -> Floats:
    """Return the states with a column of ones."""
    return np.concatenate([states_ND, np.ones((len(states_ND), 1))], axis=1)


def simulate(share: float, rng: np.random.Generator) -> set[str]:
    """Simulate one pool; return which of the counted things it shows."""
    seed, num_foreign = int(rng.integers(2**31)), round(share * NUM_POOL)
    weights = fitted(draw(NUM_LABELLED, 0, rng))
    held, pool = draw(NUM_LABELLED, 0, rng), draw(NUM_POOL, num_foreign, rng)
    raw_K, raw_M = ((with_one(rows.states_ND) @ weights).astype(np.float32) for rows in (held, pool))
    calibration = fit_calibration(raw_K, held.correct_N)
    least = np.sort(raw_M)[-round(KEPT * NUM_POOL)]
    source = Rows(held.states_ND, raw_K)
    shift = compare_samples(held.states_ND, pool.states_ND, seed=seed)
    found = set()
    if compare(source, Rows(pool.states_ND, raw_M), least, seed=seed)["alarm"]:
        found.add("filter")
    passes_M = raw_M >= least
    distances = compute_distances(held.states_ND, pool.states_ND, np.random.default_rng(seed))
    passing = count_passing(distances, raw_K, raw_M, least)

    def judged(rows: Drawn, raw: Floats, first: int) -> GradedRows:
        scores = FunctionScores(raw_N=raw.astype(np.float64), trust_N=calibration.to_trust(raw).astype(np.float64))
        ids_N, parsed_N = first + np.arange(len(raw)), np.ones(len(raw), dtype=bool)
        return GradedRows(row_ids_N=ids_N, correct_N=rows.correct_N, parsed_N=parsed_N, scores={"trust": scores})

    known, foreign = judged(held, raw_K, 0), None if passing is None else describe_foreign(passing)
    evidence = compute_evidence(
        EvidenceInputs(
            known=Evidence(arm="trust", chance=None, shift=shift.to_json(), foreign=foreign),
            function="trust",
            validation=replace(known, seed=seed),
            pool=None,
            source=replace(known, scores={}),
            selected_trust_M=calibration.to_trust(raw_M[passes_M]).astype(np.float64),
            num_pool=NUM_POOL,
            seed=seed,
        )
    )
    rules = {item["rule"] for item in reach_verdict(evidence, "RUN_DIR").findings}
    if "shift" in rules:
        found.add("verdict")
    foreseen = None if evidence.foreseen is None else widen_interval(evidence.foreseen.purity)
    purity = pool.right_N[passes_M].mean()
    if rules or (foreseen is not None and foreseen.low <= purity <= foreseen.high):
        found.add("foreseen")
    return found


def count(share: float, num_runs: int, seed: int) -> Counter[str]:
    """Return how many of some simulated pools with this share of foreign rows show what."""
    rng = np.random.default_rng([seed, round(1000 * share)])
    return Counter(name for _ in range(num_runs) for name in simulate(share, rng))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    names = ("filter", "verdict", "foreseen")
    print("| foreign | " + " | ".join(names) + " |\n| --- |" + " --- |" * len(names))
    for share in SHARES:
        found = count(share, args.runs, args.seed)
        cells = [compute_proportion(found[name], args.runs) for name in names]
        words = [f"{100 * cell.value:.1f} % [{100 * cell.low:.1f}, {100 * cell.high:.1f}]" for cell in cells]
        print(f"| {100 * share:.0f} % | " + " | ".join(words) + " |", flush=True)


if __name__ == "__main__":
    main()
