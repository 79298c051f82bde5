"""Violations of risk rules over thousands of calibration draws, in Markdown: ``python -m benchmarks.risk_simulation``.

A run draws calibration rows and a pool from a model of scores whose noise above any threshold is known in closed form,
so that violations (rows are selected, and their noise is above alpha) are exact, not estimated. All rules see the same
draws. The candidates of the fixed sequence depend only on the pool and the numbers of rows.

Scores:

- ``chess``: 29 % right, AUC .93, normal scores, with a deviation of the right ones by which the uncorrected rule keeps
  16.1 % of the pool at n_cal = 3,000, alpha = delta = 0.1, as the paper reports;
- ``clear``: the same with a larger deviation of the right ones, so that this rule keeps 22 %;
- ``uninformative``: noise alpha + 1e-6 at every score, so that any selection is a violation.
"""

import argparse
import time
from typing import NamedTuple, get_args

import numpy as np
from scipy.special import ndtr, ndtri

from curation.arrays import Floats
from curation.metrics import compute_proportion
from curation.selection.risk import calibrate
from curation.selection.risk.rules import Kind, Rule

ALPHAS = (0.1, 0.5)
SIZES = (300, 3000)
DELTA = 0.1
POOL_ROWS = 5000
RULES: tuple[Rule, ...] = get_args(Rule)
KINDS: tuple[Kind, ...] = get_args(Kind)


class Scores(NamedTuple):
    """A model of scores: N(shift, spread^2) for right rows, N(0, 1) for wrong ones."""

    share_right: float
    shift: float
    spread: float

    def draw(self, num_rows: int, rng: np.random.Generator) -> tuple[Floats, np.ndarray]:
        """Draw scores and correctness of rows."""
        correct_N = rng.random(num_rows) < self.share_right
        normal_N = rng.normal(size=num_rows)
        return np.where(correct_N, self.shift + self.spread * normal_N, normal_N), correct_N

    def noise(self, threshold: float) -> float:
        """Return the share of wrong rows among those at or above a threshold."""
        right = self.share_right * ndtr((self.shift - threshold) / self.spread)
        wrong = (1 - self.share_right) * ndtr(-threshold)
        return float(wrong / (right + wrong))


def chess_like(spread: float) -> Scores:
    """Return scores with 29 % right labels and an AUC of .93."""
    return Scores(0.29, float(np.hypot(1, spread) * ndtri(0.93)), spread)


def models(alpha: float) -> dict[str, Scores]:
    """Return the models of scores by name."""
    return {"chess": chess_like(1.25), "clear": chess_like(2.0), "uninformative": Scores(1 - alpha - 1e-6, 0.0, 1.0)}


class Tally:
    """The outcomes of a rule of a kind in the runs of one setting."""

    def __init__(self) -> None:
        self.num_runs = self.num_violations = self.num_infeasible = 0
        self.kept = 0.0

    def add(self, threshold: float | None, pool_N: Floats, scores: Scores, alpha: float) -> None:
        """Count one run."""
        self.num_runs += 1
        if threshold is None:
            self.num_infeasible += 1
        else:
            self.num_violations += scores.noise(threshold) > alpha
            self.kept += float(np.mean(pool_N >= threshold))

    def cells(self) -> str:
        """Return violations with an exact 95 % interval, mean share kept, and infeasible runs; all in %."""
        rate = compute_proportion(self.num_violations, self.num_runs)
        return (
            f"{100 * rate.value:.1f} ({100 * rate.low:.1f}-{100 * rate.high:.1f}) "
            f"| {100 * self.kept / self.num_runs:.1f} | {100 * self.num_infeasible / self.num_runs:.1f}"
        )


def simulate(scores: Scores, alpha: float, num_rows: int, num_runs: int, seed: int) -> dict[tuple[Rule, Kind], Tally]:
    """Return the tally of each rule and kind over the same draws."""
    tallies = {(rule, kind): Tally() for rule in RULES for kind in KINDS}
    for run in range(num_runs):
        rng = np.random.default_rng((seed, run))
        scores_M, correct_M = scores.draw(num_rows, rng)
        pool_N = np.sort(scores.draw(POOL_ROWS, rng)[0])
        for (rule, kind), tally in tallies.items():
            cut = calibrate(scores_M, correct_M, pool_N, alpha=alpha, delta=DELTA, rule=rule, kind=kind, seed=run)
            tally.add(cut.threshold, pool_N, scores, alpha)
    return tallies


def main() -> None:
    """Print the table a setting at a time, then the worst rate of our rule and of the uncorrected one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    start = time.perf_counter()
    kinds = [f"{kind}: violation % (95 %) | kept % | infeasible %" for kind in KINDS]
    print(f"| scores | alpha | n_cal | rule | {' | '.join(kinds)} |\n|{' --- |' * (4 + 3 * len(KINDS))}")
    found: list[tuple[Rule, Tally]] = []
    for alpha in ALPHAS:
        for name, scores in models(alpha).items():
            for num_rows in SIZES:
                tallies = simulate(scores, alpha, num_rows, args.runs, args.seed)
                for rule in RULES:
                    cells = " | ".join(tallies[rule, kind].cells() for kind in KINDS)
                    print(f"| {name} | {alpha} | {num_rows:,} | `{rule}` | {cells} |", flush=True)
                found += [(rule, tally) for (rule, _), tally in tallies.items()]
    print(f"\n{args.runs:,} runs a row, delta {DELTA}, pools of {POOL_ROWS:,}; {time.perf_counter() - start:.0f} s.")
    limit = compute_proportion(round(DELTA * args.runs), args.runs).high
    print(f"A violation rate of delta would be shown with an upper 95 % limit of {100 * limit:.1f} %. Worst rates:")
    for rule in RULES:
        worst = max(tally.num_violations for name, tally in found if name == rule)
        high = compute_proportion(worst, args.runs).high
        print(f"- `{rule}`: {100 * worst / args.runs:.1f} %, upper limit {100 * high:.1f} %")


if __name__ == "__main__":
    main()
