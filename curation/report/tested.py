"""How the students did on the test split, against each other, their teacher and ground truth, as JSON."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from curation import metrics
from curation.arms import ARMS
from curation.domains.grading import Graded, read_grades
from curation.metrics.estimates import NORMAL_QUANTILE
from curation.report.measures import Json, share
from curation.report.record import BASE, GROUND_TRUTH, TEACHER, GenerationRecord
from curation.report.rows import Bools, Ints

Tests = Mapping[str, Sequence[Graded]]
"""The graded test rows of each model, one a run."""


def read_tests(record: GenerationRecord) -> dict[str, list[Graded]]:
    """The grades of every model that was tested."""
    return {name: [read_grades(ref) for ref in runs] for name, runs in record.tests.items()}


def accuracy(tests: Tests, name: str) -> Json | None:
    """A model's accuracy with its interval; of several runs the mean over runs, its interval over rows, and each run's.

    ``None`` where it was not tested.
    """
    if name not in tests:
        return None
    if len(tests[name]) == 1:
        return share(tests[name][0].correct_N)
    mean_N = np.mean(_aligned(tests[name]), axis=0)
    if not len(mean_N):
        return None
    value, num_rows = float(mean_N.mean()), len(mean_N)
    # Wilson's interval of as many rows as make the runs' mean vary as much: never a point, and within [0, 1].
    variance = float(mean_N.var())
    effective = num_rows * value * (1 - value) / variance if variance else float(num_rows)
    z2 = NORMAL_QUANTILE**2
    centre = (value + z2 / (2 * effective)) / (1 + z2 / effective)
    spread = (z2 * (value * (1 - value) / effective + z2 / (4 * effective**2))) ** 0.5 / (1 + z2 / effective)
    runs = metrics.over_seeds([float(run.correct_N.mean()) for run in tests[name]])
    bounds = {"low": max(0.0, centre - spread), "high": min(1.0, centre + spread)}
    return {"value": value, **bounds, "n": num_rows, "runs": runs.to_json()}


def tested(arm: str, tests: Tests, *, margin: float, seed: int) -> Json:
    """How an arm's student did: accuracy, recovery, verdict, paired tests. Of several runs the first is paired."""
    truth = _pair(tests, arm, GROUND_TRUTH) if arm != GROUND_TRUTH else None
    teacher = _pair(tests, arm, TEACHER)
    against_teacher = None if teacher is None else _compared(*teacher)
    verdict = None
    if truth is not None and len(truth[0]):
        base = accuracy(tests, BASE)
        verdict = metrics.verdict(*truth, base=0.0 if base is None else base["value"], margin=margin).to_json()
    recovery = _recovery(tests, arm, seed)
    return {
        "accuracy": accuracy(tests, arm),
        "recovery": None if recovery is None else recovery.value,
        "recovery_interval": None if recovery is None or arm == GROUND_TRUTH else [recovery.low, recovery.high],
        "p_value_vs_ground_truth": None if verdict is None else verdict["test"]["p_value"],
        "verdict": None if verdict is None else verdict["verdict"],
        "paper_verdict": None if verdict is None else verdict["paper"],
        "margin": None if verdict is None else verdict["margin"],
        "detectable": None if verdict is None else verdict["detectable"],
        "against_ground_truth": None if truth is None else _compared(*truth),
        "against_teacher": against_teacher,
        # Claimed only where the interval of the paired difference lies above zero, and not of gold labels.
        "weak_to_strong": None if against_teacher is None or ARMS[arm].gold else against_teacher["low"] > 0,
    }


def _recovery(tests: Tests, arm: str, seed: int) -> metrics.Estimate | None:
    """Undefined (``None``) where a model is missing or ground truth does not beat the base."""
    names = (arm, BASE, GROUND_TRUTH)
    if any(name not in tests for name in names):
        return None
    arm_N, base_N, truth_N = _aligned([tests[name][0] for name in names])
    return metrics.paired_recovery(arm_N, base_N, truth_N, seed=seed) if len(arm_N) else None


def _pair(tests: Tests, first: str, second: str) -> tuple[Bools, Bools] | None:
    """Right or wrong on the test rows that both models answered, in their first runs."""
    if first not in tests or second not in tests:
        return None
    one_N, other_N = _aligned([tests[first][0], tests[second][0]])
    return one_N, other_N


def _aligned(runs: Sequence[Graded]) -> list[Bools]:
    """Each one's grades on the rows that all have; ids are unique and ascending."""
    common: Ints = reduce(np.intersect1d, [run.row_ids_N for run in runs])
    return [run.correct_N[np.isin(run.row_ids_N, common)] for run in runs]


def _compared(first_N: Bools, second_N: Bools) -> Json | None:
    """The paired test, first minus second."""
    if not len(first_N):
        return None
    paired: dict[str, Any] = metrics.paired_test(first_N, second_N).to_json()
    difference = paired.pop("difference")
    return {**paired, "difference": difference["value"], **{key: difference[key] for key in ("low", "high", "n")}}
