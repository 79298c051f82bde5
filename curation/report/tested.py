"""Results of the students on the test split, compared with each other, their teacher and ground truth, as JSON.

Arms should differ only in their selection. If training itself differed, a difference in accuracy says nothing about the
selection, so the report gives no verdict, p-value or recovery. All models of a run are tested in one way. If its labels
were asked for in another way, a student that passes its teacher in the test may still be below the labels that it
learned from (who answers among listed answers is right more often), and it is not called weak-to-strong.
"""

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from statistics import NormalDist

import numpy as np

from curation import metrics
from curation.arms import ARMS, REFERENCE_ARM, REFERENCE_GOLD
from curation.arrays import Bools, Int64s
from curation.config import DecodingConfig, DomainConfig
from curation.config.defaults import find_traits
from curation.domains.grading import Graded, read_grades
from curation.json_types import Json, JsonView
from curation.metrics.estimates import NO_ROWS, NORMAL_QUANTILE
from curation.refs import TableRef
from curation.registry import DOMAINS
from curation.report.headline import describe_name, format_difference
from curation.report.measures import compute_share
from curation.report.record import BASE, GROUND_TRUTH, TEACHER

Tests = Mapping[str, Sequence[Graded]]
"""Graded test rows of each model, one entry per run."""


def read_tests(tests: Mapping[str, Sequence[TableRef]]) -> dict[str, list[Graded]]:
    """Return the grades of every tested model."""
    return {name: [read_grades(ref) for ref in runs] for name, runs in tests.items()}


def compute_accuracy(tests: Tests, name: str, *, confidence: float = metrics.CONFIDENCE) -> Json | None:
    """Return a model's accuracy with its interval, or ``None`` if it was not tested.

    With several runs it is their mean with an interval over rows; ``runs`` has the mean with an interval over runs.
    """
    if name not in tests:
        return None
    if len(tests[name]) == 1:
        return compute_share(tests[name][0].correct_N, tests[name][0].cluster_N, confidence=confidence)
    (right_NJ,), cluster_N = align_grades(tests, (name,))
    if not len(right_NJ):
        return None
    mean_N = right_NJ.mean(axis=1)
    value, num_rows = float(mean_N.mean()), len(mean_N)
    # Wilson's interval for the number of rows that would vary as much as the runs' mean: never a point, within [0, 1].
    variance = float(mean_N.var())
    effective = num_rows * value * (1 - value) / variance if variance else float(num_rows)
    effective = max(effective / metrics.compute_inflation(mean_N - value, cluster_N, confidence=confidence), NO_ROWS)
    z = NORMAL_QUANTILE if confidence == metrics.CONFIDENCE else NormalDist().inv_cdf((1 + confidence) / 2)
    z2 = z**2
    centre = (value + z2 / (2 * effective)) / (1 + z2 / effective)
    spread = (z2 * (value * (1 - value) / effective + z2 / (4 * effective**2))) ** 0.5 / (1 + z2 / effective)
    runs = metrics.average_over_seeds([float(run.correct_N.mean()) for run in tests[name]])
    bounds = {"low": max(0.0, centre - spread), "high": min(1.0, centre + spread)}
    return {"value": value, **bounds, "n": num_rows, "runs": runs.to_json()}


def collect_test_results(arm: str, tests: Tests, *, margin: float, seed: int, nothing: str | None) -> Json:
    """Return the results of an arm's student: accuracy, recovery, verdict and paired tests.

    ``nothing`` says why there is nothing to recover (:func:`explain_no_recovery`), for all arms alike.
    """
    truth = compute_test_differences(tests, arm, GROUND_TRUTH) if arm != GROUND_TRUTH else None
    against_teacher = compare_models(tests, arm, TEACHER, seed)
    verdict: Json = {}
    if truth is not None and len(truth):
        base = compute_accuracy(tests, BASE)
        (_, truth_NJ), _ = align_grades(tests, (arm, GROUND_TRUTH))
        gain = float(truth_NJ.mean()) - (0.0 if base is None else float(base["value"]))
        verdict = metrics.compute_rows_verdict(truth, gain=gain, margin=margin, seed=seed).to_json()
    recovery, names = None, (arm, BASE, GROUND_TRUTH)
    if not nothing and all(name in tests for name in names):
        (arm_NJ, base_NJ, truth_NJ), cluster_N = align_grades(tests, names)
        if len(arm_NJ):
            recovery = metrics.compute_runs_recovery(arm_NJ, base_NJ, truth_NJ, cluster_N, seed=seed)
    # Infinite where ground truth is not clearly above the base.
    bounds = [] if recovery is None or arm == GROUND_TRUTH else [recovery.low, recovery.high]
    return {
        "accuracy": compute_accuracy(tests, arm),
        "recovery": None if recovery is None else recovery.value,
        "recovery_withheld": nothing,
        "recovery_interval": bounds if bounds and all(map(math.isfinite, bounds)) else None,
        "p_value_vs_ground_truth": verdict["test"]["p_value"] if verdict else None,
        "verdict": verdict.get("verdict"),
        "paper_verdict": verdict.get("paper"),
        "margin": verdict.get("margin"),
        "detectable": verdict.get("detectable"),
        "against_ground_truth": None if truth is None else convert_comparison(metrics.compare_rows(truth, seed=seed)),
        "against_teacher": against_teacher,
        "against_base": compare_models(tests, arm, BASE, seed),
        # Claimed only if the interval of the paired difference lies above zero, and never for gold labels.
        "weak_to_strong": None if against_teacher is None or ARMS[arm].gold else against_teacher["low"] > 0,
    }


def decompose_gap(arms: Sequence[Json], selected: Mapping[str, Int64s], tests: Tests, *, seed: int) -> Json | None:
    """Return the gap of the method's student to ground truth, split by a student of the same rows with gold labels.

    ``choice`` is ground truth minus that student, the cost of the choice of rows. ``labels`` is that student minus the
    method's, the cost of wrong labels. They add up to ``gap``, all on the same test rows. ``withheld`` says why there
    is no decomposition although all three were tested. The result is ``None`` if one of the three was not tested.
    """
    names = (REFERENCE_ARM, REFERENCE_GOLD, GROUND_TRUTH)
    if any(name not in tests or name not in selected for name in names):
        return None
    reason = explain_withheld([arm for arm in arms if arm["name"] in names])
    if reason is None and set(selected[REFERENCE_ARM].tolist()) != set(selected[REFERENCE_GOLD].tolist()):
        reason = f"the arms {REFERENCE_ARM} and {REFERENCE_GOLD} have different rows"
    if reason is not None:
        return {"withheld": reason}
    (neural_NJ, gold_NJ, truth_NJ), cluster_N = align_grades(tests, names)
    found: Json = {"withheld": None}
    for name, pair in (
        ("gap", (truth_NJ, neural_NJ)),
        ("choice", (truth_NJ, gold_NJ)),
        ("labels", (gold_NJ, neural_NJ)),
    ):
        rows = metrics.compute_row_differences(*pair, cluster_N)
        found[name] = convert_comparison(metrics.compare_rows(rows, seed=seed))
    return found


def compute_test_differences(tests: Tests, first: str, second: str) -> metrics.RowDifferences | None:
    """Return the differences of two models on test rows that both answered in all runs; ``None`` if one is missing."""
    if first not in tests or second not in tests:
        return None
    (first_NJ, second_NJ), cluster_N = align_grades(tests, (first, second))
    return metrics.compute_row_differences(first_NJ, second_NJ, cluster_N)


def find_common_rows(tests: Tests, *names: str) -> Int64s:
    """Return the ids of the rows that all models answered in all their runs, ascending."""
    ids: Int64s = reduce(np.intersect1d, [run.row_ids_N for name in names for run in tests[name]])
    return ids


def convert_comparison(test: metrics.Comparison) -> Json | None:
    """Return a paired test as JSON, first minus second, or ``None`` for no rows."""
    if not test.difference.n:
        return None
    paired: Json = test.to_json()
    difference = paired.pop("difference")
    return {**paired, "difference": difference.pop("value"), **difference}


def compare_models(tests: Tests, first: str, second: str, seed: int) -> Json | None:
    """Return the paired test of two models as JSON; ``None`` if one was not tested, or no row by both."""
    rows = compute_test_differences(tests, first, second)
    return None if rows is None else convert_comparison(metrics.compare_rows(rows, seed=seed))


def explain_no_recovery(tests: Tests, seed: int) -> str | None:
    """Return a reason to withhold recoveries if the interval of ground truth's gain reaches zero, or else ``None``."""
    gain = compare_models(tests, GROUND_TRUTH, BASE, seed)
    if gain is None or gain["low"] > 0:
        return None
    differs = format_difference(gain["difference"], gain["low"], gain["high"])
    return f"ground truth differs from the base by {differs}, so nothing is sure to be recovered"


def align_grades(tests: Tests, names: Sequence[str]) -> tuple[list[Bools], Int64s | None]:
    """Return each model's grades [N, J] on the rows, by id, that all answered in all runs, and the rows' clusters."""
    common = find_common_rows(tests, *names)
    kept = {name: [run.subset(np.isin(run.row_ids_N, common)) for run in tests[name]] for name in names}
    return [np.stack([run.correct_N for run in kept[name]], axis=1) for name in names], kept[names[0]][0].cluster_N


ALIKE = {
    "rows_trained": "rows trained on",
    "rows_dropped": "rows dropped in training",
    "epochs": "epochs",
    "format": "format",
}
"""Values that two students must have in common, in words; a value that an arm lacks is not compared."""
CLAIMS = ("recovery", "recovery_interval", "verdict", "paper_verdict", "p_value_vs_ground_truth")
"""Results that compare an arm's student with ground truth's."""


def explain_withheld(arms: Sequence[JsonView]) -> str | None:
    """Return why these arms' students cannot be compared, in words, or None if they can."""
    trained = [arm for arm in arms if arm.get("rows_trained") is not None]
    found = []
    for key, words in ALIKE.items():
        values = {describe_name(arm["name"]): arm[key] for arm in trained if arm.get(key) is not None}
        if len(set(values.values())) > 1:
            texts = [f"{name} {v:,}" if isinstance(v, int) else f"{name} {v}" for name, v in values.items()]
            found.append(f"{words}: {', '.join(texts)}")
    return f"the students trained differently ({'; '.join(found)})" if found else None


WAYS = {
    False: "freely",
    "scored": "by the likeliest of the listed answers",
    "stepwise": "token by token among the listed answers",
}
"""Descriptions of how answers are asked for, by ``DecodingConfig.constrained``."""


def read_domain(config: JsonView) -> DomainConfig:
    """Return the domain's section of a run's recorded configuration."""
    return DomainConfig.model_validate(config.get("domain", "chess"))


def describe_asking(config: JsonView, section: str) -> str:
    """Return how a run's ``teacher`` or ``evaluation`` asks for answers, in words; options are always scored."""
    decoding = DecodingConfig.model_validate(config.get(section, {}).get("decoding", {}))
    domain = read_domain(config)
    scored = domain.name not in DOMAINS or find_traits(domain.name, domain.options).answering == "scored"
    return WAYS[decoding.constrained or ("scored" if scored else False)]


def explain_unlike(config: JsonView) -> str | None:
    """Return why a student cannot be called better than its teacher's labels, in words, or None if it can."""
    labels, tests = describe_asking(config, "teacher"), describe_asking(config, "evaluation")
    return None if labels == tests else f"labels were asked for {labels}, tests {tests}"


def withhold(arms: Sequence[JsonView], unlike: str | None) -> list[Json]:
    """Return the arms' entries, without comparisons to a ground truth that trained differently.

    ``withheld`` of each entry says why, and is None if nothing is withheld. If ``unlike`` has a reason (from
    :func:`explain_unlike`), no entry says whether its arm is weak-to-strong.
    """
    truth = next((arm for arm in arms if arm["name"] == GROUND_TRUTH), None)
    entries = []
    for arm in arms:
        reason = None if truth is None or arm is truth else explain_withheld([arm, truth])
        held = (*(CLAIMS if reason else ()), *(["weak_to_strong"] if unlike else []))
        entries.append({**arm, **dict.fromkeys(held), "withheld": reason})
    return entries
