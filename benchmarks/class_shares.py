"""Errors of the estimated class shares of a pool: ``python -m benchmarks.class_shares``.

By simulation: the teacher is right with a probability that depends on the class; else it gives one of a few popular
labels or an unreadable one. The pool's shares are random; the labelled rows have the same shares, other ones, or equal
ones. Our peers are the shares of the teacher's labels, those of the labelled rows, and adjusted counts: the system of
the confusion matrix, solved by non-negative least squares (Lipton, Wang, Smola 2018). Each number is the mean total
variation distance from the true shares, in percentage points, with its 95 % interval.
"""

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.optimize import nnls

from curation.arrays import Float64s, Int64s
from curation.selection.class_shares import compute_share_distance, estimate_shares

SETTINGS = (
    (2, 100, 0.7),
    (4, 100, 0.55),
    (4, 500, 0.55),
    (10, 300, 0.5),
    (77, 500, 0.3),
    (77, 500, 0.5),
    (77, 5000, 0.5),
)
"""Classes, labelled rows, accuracy."""
LABELLED = ("as the pool", "others", "equal")
POOL_ROWS, SEED = 100_000, 0


def teacher_of(num_classes: int, accuracy: float, rng: np.random.Generator) -> Float64s:
    """Return the probability of each label, and of none that can be read, given the class, [C, C + 1]."""
    popular_T = rng.dirichlet(np.full(num_classes + 1, 0.5))
    right_C = np.clip(rng.normal(accuracy, 0.1, num_classes), 0.1, 0.95)
    p_CT: Float64s = (1 - right_C)[:, None] * popular_T
    p_CT[np.arange(num_classes), np.arange(num_classes)] += right_C
    return p_CT / p_CT.sum(axis=1, keepdims=True)


def dealt(share_C: Float64s, p_CT: Float64s, num_rows: int, rng: np.random.Generator) -> tuple[Int64s, Int64s]:
    """Draw classes and labels of some rows, both int64 [N]; the label C cannot be read."""
    class_N = rng.choice(len(share_C), num_rows, p=share_C)
    label_N = (rng.random(num_rows)[:, None] > p_CT.cumsum(axis=1)[class_N]).sum(axis=1)
    return class_N, np.minimum(label_N, len(share_C))


def counted(class_N: Int64s, label_N: Int64s, num_classes: int) -> Int64s:
    """Return the rows by class and label, int64 [C, C + 1]."""
    counts = np.zeros((num_classes, num_classes + 1), dtype=np.int64)
    np.add.at(counts, (class_N, label_N), 1)
    return counts


def adjusted(given_T: Int64s, confusion_CT: Int64s) -> Float64s:
    """Return adjusted counts [C]; a class without a labelled row is taken to be always labelled right."""
    rows_C1 = confusion_CT.sum(axis=1, keepdims=True)
    matrix_CT = np.where(rows_C1 > 0, confusion_CT / np.maximum(rows_C1, 1), np.eye(*confusion_CT.shape))
    solved_C: Float64s = nnls(matrix_CT.T, given_T / given_T.sum())[0]
    return solved_C / solved_C.sum()


def errors(
    num_classes: int, num_labelled: int, accuracy: float, labelled: str, rng: np.random.Generator
) -> Mapping[str, float]:
    """Return the distance of each estimate from the true shares of one pool."""
    p_CT, share_C = teacher_of(num_classes, accuracy, rng), rng.dirichlet(np.full(num_classes, 1.5))
    drawn_C = rng.dirichlet(np.full(num_classes, 1.5))
    labelled_C = {"as the pool": share_C, "others": drawn_C, "equal": np.full(num_classes, 1 / num_classes)}[labelled]
    confusion_CT = counted(*dealt(labelled_C, p_CT, num_labelled, rng), num_classes)
    given_T = rng.multinomial(POOL_ROWS, share_C @ p_CT)
    found: dict[str, Any] = {
        "counts": given_T[:-1] / given_T[:-1].sum(),
        "labelled rows": confusion_CT.sum(axis=1) / num_labelled,
        "adjusted": adjusted(given_T, confusion_CT),
        "ours": estimate_shares([str(number) for number in range(num_classes)], given_T, confusion_CT).shares,
    }
    return {name: compute_share_distance(value, share_C) for name, value in found.items()}


def main() -> None:
    """Print a line for each setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    repeats, rng = parser.parse_args().repeats, np.random.default_rng(SEED)
    for num_classes, num_labelled, accuracy in SETTINGS:
        for labelled in LABELLED:
            runs = [errors(num_classes, num_labelled, accuracy, labelled, rng) for _ in range(repeats)]
            line = f"{num_classes} classes, {num_labelled} labelled rows ({labelled}), accuracy {accuracy}:"
            for name in runs[0]:
                values = 100 * np.array([run[name] for run in runs])
                line += f"  {name} {values.mean():.1f} +- {1.96 * values.std() / repeats**0.5:.1f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
