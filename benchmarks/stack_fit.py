"""Duration of a fit of the default trust function: ``python -m benchmarks.stack_fit``.

The rows are synthetic: float16 states of the prompt and of the answer, half of the inputs each, of 64 factors with
noise; ten classes that depend on the prompt's factors, half of which the teacher gets right; five free signals. Each
size is fitted with and without a class probe, in this process, with ``--threads`` threads. A run does the same with
fewer than 500 rows; with more, it fits the five networks in Ray Train workers. The peer is one ridge regression by
scikit-learn on the same states and targets, without folds, and with one penalty. Printed are elapsed seconds and CPU
seconds of the fit without a class probe, of the fit with it, of the class probe alone, and of the peer.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from curation.arms import FREE, TRUST, Column
from curation.config import TrustConfig
from curation.trust.class_probe import LABEL
from curation.trust.combining import assign_folds
from curation.trust.parts import FIT
from train.probes import compute_targets, fit_class_probe
from train.stack import FOLDS, fit_stacked
from train.trust_loop import LabelledRows

FACTORS, CLASSES = 64, 10
STATES = ("prompt_last", "output_last")
WIDTH, ROWS = 2_000, (1_500, 7_500)


class Seconds(NamedTuple):
    """Elapsed and CPU seconds of a piece of work."""

    clock: float
    cpu: float

    def __str__(self) -> str:
        """Return both, as a cell of the table."""
        return f"{self.clock:.1f} ({self.cpu:.1f})"


def made_up(num_rows: int, width: int) -> LabelledRows:
    """Make up labelled rows with states [N, ``width``], with classes."""
    rng = np.random.default_rng(0)
    gold_N = rng.integers(0, CLASSES, num_rows)
    correct_N = rng.random(num_rows) < 0.5
    label_N = np.where(correct_N, gold_N, (gold_N + rng.integers(1, CLASSES, num_rows)) % CLASSES)
    states = []
    for told_N, num_told in ((gold_N, CLASSES), (correct_N.astype(np.int64), 2)):
        factor_NF = rng.standard_normal((num_rows, FACTORS)) + rng.standard_normal((num_told, FACTORS))[told_N] / 2
        mixed_ND = factor_NF @ rng.standard_normal((FACTORS, width // 2))
        states.append((mixed_ND + 4 * rng.standard_normal(mixed_ND.shape)).astype(np.float16))
    signals = [trust.column for name in FREE if isinstance(trust := TRUST[name], Column)]
    signals_NK = correct_N[:, None] * 0.5 + rng.standard_normal((num_rows, len(signals)))
    return LabelledRows(
        hidden_ND=np.concatenate(states, axis=1),
        correct_N=correct_N,
        part_N=np.full(num_rows, FIT, dtype=np.int8),
        sizes=(width // 2, width // 2),
        row_ids_N=np.arange(num_rows, dtype=np.int64),
        numbers_NK=np.concatenate([signals_NK, label_N[:, None]], axis=1),
        numbers=(*signals, LABEL),
        classes=tuple(f"class {place}" for place in range(CLASSES)),
        gold_N=gold_N.astype(np.float64),
    )


def timed(work: Callable[[], object]) -> Seconds:
    """Return the seconds of ``work``, in all threads of this process."""
    clock, cpu = time.monotonic(), time.process_time()
    work()
    return Seconds(time.monotonic() - clock, time.process_time() - cpu)


def line(num_rows: int, width: int) -> str:
    """Return a row of the table."""
    from sklearn.linear_model import Ridge

    rows = made_up(num_rows, width)
    plain = rows._replace(numbers=rows.numbers[:-1], numbers_NK=rows.numbers_NK[:, :-1], classes=(), gold_N=None)
    config = TrustConfig(states=STATES)
    used_N = np.arange(num_rows)
    fold_N = assign_folds(rows.row_ids_N, rows.correct_N, FOLDS, seed=0)
    assert rows.gold_N is not None, "made with classes"
    target_NC = compute_targets(rows.numbers_NK[:, -1], rows.correct_N, rows.gold_N, CLASSES)
    prompt_ND = np.asarray(rows.hidden_ND[used_N])[:, : rows.sizes[0]].astype(np.float64)
    found = (
        timed(lambda: fit_stacked(plain, config, seed=0, origin={})),
        timed(lambda: fit_stacked(rows, config, seed=0, origin={})),
        timed(lambda: fit_class_probe(rows, used_N, fold_N, STATES)),
        timed(lambda: Ridge(alpha=float(width)).fit(prompt_ND, target_NC)),
    )
    ratio = found[2].cpu / max(found[3].cpu, 1e-9)
    return f"| {num_rows:,} x {width:,} | {' | '.join(map(str, found))} | {ratio:.1f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rows", type=int, nargs="+", default=[*ROWS])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{os.cpu_count()} cores, {options.threads} threads, load {os.getloadavg()[0]:.1f}; seconds (of CPU)\n")
    print("| rows x inputs | stack | with a class probe | class probe alone | one ridge (scikit-learn) | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for num_rows in options.rows:
        print(line(num_rows, WIDTH), flush=True)


if __name__ == "__main__":
    main()
