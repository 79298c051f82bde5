"""Ways to make a stack's logits a probability, the default among them: ``python -m benchmarks.real.calibrations``.

    python -m benchmarks.real.calibrations --work FOLDER [--sets sciq,irony] [--run NAME=DIR] [--labelled 1000]

The sets are those that ``benchmarks.real`` has labelled. Their rows are dealt again and again into labelled ones and
others (``benchmarks.real.promises``). A deal fits one stack; each way maps its out-of-fold logits to outcomes, and is
measured on the other rows:

- ``none``: the logits as the combination gives them;
- ``line``: slope and intercept (Platt);
- ``bend .5``, ``bend .75``: a line with a bend at that quantile of the logits;
- ``two bends``: one with a bend at .5 and one at .8;
- ``average``: the two lines with one bend, each weighed by its likelihood: the default from ``BEND_ROWS`` rows on;
- ``beta``: beta calibration (Kull, Silva Filho and Flach 2017), slopes of at least 0;
- ``isotonic``: the least squares among functions that never fall, by scikit-learn.

Printed are, for each set and way, the rows a deal whose trust is above .9, of these the promise less the share right in
points by deals and by rows with their standard errors, and Brier score and log loss on all rows.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss

from benchmarks.real.__main__ import labelled, rows_of
from benchmarks.real.promises import LABELLED, Sure, dealt, summed
from benchmarks.real.tasks import TASKS
from curation.arrays import Bools, Float64s
from curation.config import TrustConfig
from curation.trust.combining import average_lines, fit_line
from curation.trust.stacked import PiecewiseLinearCalibrator, StackedTrust
from train.stack import fit_stacked
from train.trust_loop import LabelledRows

Map = Callable[[Float64s], Float64s]
"""From raw logits to those of a probability."""
ALMOST = 1e-6
"""No probability is nearer to 0 or 1."""


class Dealt(NamedTuple):
    """What a deal's stack gives before it is calibrated."""

    out_of_fold_M: Float64s
    labelled_M: Bools
    raw_N: Float64s
    """Of the other rows."""
    correct_N: Bools


def unbent(found: Dealt) -> Map:
    """Return the logits as they are."""
    return lambda raw_N: raw_N


def bent_at(*quantiles: float) -> Callable[[Dealt], Map]:
    """Return a line with bends at these quantiles."""

    def fit(found: Dealt) -> Map:
        knees = np.quantile(found.out_of_fold_M, quantiles).tolist()
        return fit_line(found.out_of_fold_M, found.labelled_M, *knees) or PiecewiseLinearCalibrator()

    return fit


def beta(found: Dealt) -> Map:
    """Fit beta calibration: a logistic regression on log p and -log(1 - p), without one whose slope is below 0."""

    def columns(raw_N: Float64s) -> Float64s:
        both: Float64s = np.stack([-np.logaddexp(0, -raw_N), np.logaddexp(0, raw_N)], axis=1)
        return both[:, kept]

    kept = [0, 1]
    model = LogisticRegression(C=np.inf, max_iter=2_000).fit(columns(found.out_of_fold_M), found.labelled_M)
    if model.coef_.min() < 0:
        kept = [int(model.coef_[0].argmax())]
        model = LogisticRegression(C=np.inf, max_iter=2_000).fit(columns(found.out_of_fold_M), found.labelled_M)
    return lambda raw_N: model.decision_function(columns(raw_N))


def isotonic(found: Dealt) -> Map:
    """Fit an isotonic regression."""
    model = IsotonicRegression(y_min=ALMOST, y_max=1 - ALMOST, out_of_bounds="clip")
    model.fit(found.out_of_fold_M, found.labelled_M.astype(np.float64))
    return lambda raw_N: logit(model.predict(raw_N))


def average(found: Dealt) -> Map:
    """Return the product's, with bends however few the rows, and where it takes a free signal alone."""
    return average_lines(found.out_of_fold_M, found.labelled_M) or PiecewiseLinearCalibrator()


WAYS: Mapping[str, Callable[[Dealt], Map]] = {
    "none": unbent,
    "line": bent_at(),
    "bend .5": bent_at(0.5),
    "bend .75": bent_at(0.75),
    "two bends": bent_at(0.5, 0.8),
    "average": average,
    "beta": beta,
    "isotonic": isotonic,
}


def stacked(given: LabelledRows, rest: LabelledRows, states: tuple[str, ...], seed: int) -> Dealt:
    """Return a stack of the labelled rows, with the logits that its calibration was fitted on."""
    trust = fit_stacked(given, TrustConfig(states=states), seed=seed, origin={})
    assert trust.held_out is not None, "a fit keeps its out-of-fold scores"
    raw_N = trust.raw_with(torch.from_numpy(np.asarray(rest.hidden_ND)), rest.numbers_NK, rest.numbers)
    straight, known_M = straightened(trust), ~np.isnan(trust.held_out.raw_N)
    of_row = dict(zip(given.row_ids_N.tolist(), given.correct_N.tolist(), strict=True))
    labelled_M = np.array([of_row[row_id] for row_id in trust.held_out.row_ids_N[known_M].tolist()])
    return Dealt(straight(trust.held_out.raw_N[known_M]), labelled_M, straight(raw_N), rest.correct_N)


def straightened(trust: StackedTrust) -> Callable[[np.ndarray], Float64s]:
    """From a stack's logits back to those before its line, by interpolation between the bends."""
    calibrator = trust.combination.calibrator
    ends = np.array([-1e3, *sorted(calibrator.knees), 1e3])
    return lambda logit_N: np.interp(logit_N.astype(np.float64), calibrator(ends), ends)


def measured(name: str, deals: Sequence[Dealt]) -> list[str]:
    """Return the lines of a set's table, a way each."""
    lines = []
    for way, fit in WAYS.items():
        trusts = [expit(fit(found)(found.raw_N)) for found in deals]
        sure = summed([Sure.of(trust_N, found.correct_N) for trust_N, found in zip(trusts, deals, strict=True)])
        off = [
            f"{100 * sure[of]:+.1f} ({100 * sure[error]:.1f})" if of in sure else ""
            for of, error in (("mean", "error"), ("of_rows", "of_rows_error"))
        ]
        losses = [
            np.mean([loss(found.correct_N, of_N) for of_N, found in zip(trusts, deals, strict=True)])
            for loss in (brier_score_loss, log_loss)
        ]
        lines.append(f"| {name} | {way} | {sure['rows']:.0f} | {' | '.join(off)} | {losses[0]:.5f} | {losses[1]:.5f} |")
    return lines


def main() -> None:
    """Assign rows, fit, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/real"), help="where benchmarks.real kept its labels")
    parser.add_argument("--sets", default=",".join(TASKS), help="names, joined by commas")
    parser.add_argument("--run", action="append", default=[], metavar="NAME=DIR", help="a finished run beside the sets")
    parser.add_argument("--labelled", type=int, default=LABELLED, help="labelled rows of a deal")
    parser.add_argument("--deals", type=int, default=20, help="deals of each set's rows")
    given = parser.parse_args()
    if given.deals < 1:
        parser.error(f"--deals: {given.deals} deals measure nothing; give 1 or more")
    directories = {name: given.work.absolute() / name for name in given.sets.split(",") if name}
    directories |= {name: Path(path) for name, _, path in (item.partition("=") for item in given.run)}
    print("| set | way | rows above .9 | off by deals | off by rows | Brier | log loss |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name, directory in directories.items():
        if not labelled(directory):
            print(f"{name}: not labelled to the end, left out ({directory})")
            continue
        (source, states), (pool, _) = (rows_of(directory, split) for split in ("source", "pool"))
        deals = dealt(source, pool, deals=given.deals, labelled=given.labelled)
        print("\n".join(measured(name, [stacked(own, rest, states, deal) for deal, own, rest in deals])), flush=True)


if __name__ == "__main__":
    main()
