"""Results of the students on the test split, compared with each other, their teacher and ground truth, as JSON.

Arms should differ only in their selection. If training itself differed, a difference in accuracy says nothing about the
selection, so the report gives no verdict, p-value or recovery. All models of a run are tested in one way. If its labels
were asked for in another way, a student that passes its teacher in the test may still be below the labels that it
learned from (a model that chooses among listed answers is right more often), and it is not called weak-to-strong.

The paper (App. "Strategy Games", evaluation) reports for each model the best accuracy of greedy decoding and two
sampled ones. That is a choice on the test set, so it is too high on average. The report gives it beside the main
decoding's accuracy and never compares arms by it. The best is chosen among decodings that ask in the same way
(``constrained``) as the main one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from statistics import NormalDist

import numpy as np

from curation import metrics
from curation.arms import ARMS
from curation.arrays import Bools, Int64s
from curation.config import DecodingConfig, DomainConfig
from curation.config.evaluation import MAIN, EvaluationConfig
from curation.config.external import GIVEN
from curation.domains.grading import Graded, read_grades
from curation.json_types import Json, JsonView
from curation.metrics.estimates import NO_ROWS, NORMAL_QUANTILE
from curation.refs import ModelRef, TableRef
from curation.registry import DOMAINS
from curation.report.headline import describe_name, format_difference
from curation.report.measures import compute_share
from curation.report.record import BASE, GROUND_TRUTH, TEACHER, GenerationRecord, RunInputs

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


TRAINED = {"rows_trained": "num_rows", "rows_dropped": "num_dropped", "epochs": "num_epochs"}
"""Fields of a training's record, by the field of an arm in the report."""


def collect_students(run: RunInputs, record: GenerationRecord, selections: Mapping[str, Json]) -> Json:
    """Return a base's students from the facts of each arm's selection: training, and results.

    ``withheld`` of an arm says why it is not compared with ground truth, or is None. If :func:`explain_unlike` has a
    reason, no arm says whether it is weak-to-strong.
    """
    tests, margin = read_tests(record.tests), float(run.config["evaluation"]["margin"])
    gain, nothing = compare_models(tests, GROUND_TRUTH, BASE, run.seed), None
    if gain is not None and gain["low"] <= 0:
        differs = format_difference(gain["difference"], gain["low"], gain["high"])
        nothing = f"ground truth differs from the base by {differs}, so nothing is sure to be recovered"
    entries = []
    for arm, facts in selections.items():
        training = record.training.get(arm)
        trained = {name: None if training is None else training[of] for name, of in TRAINED.items()}
        results = collect_test_results(arm, tests, margin=margin, seed=run.seed, nothing=nothing)
        entries.append({**facts, **trained, **results})
    # An arm is not compared with a ground truth that trained differently.
    unlike = ["weak_to_strong"] if explain_unlike(run.config) else []
    truth = next((entry for entry in entries if entry["name"] == GROUND_TRUTH), None)
    arms = []
    for entry in entries:
        reason = None if truth is None or entry is truth else explain_withheld([entry, truth])
        arms.append({**entry, **dict.fromkeys([*(CLAIMS if reason else ()), *unlike]), "withheld": reason})
    return {
        "student_base": None if record.student_base is None else describe_model(record.student_base),
        "arms": arms,
        "trained_unlike": explain_withheld(arms),
        "training": collect_trainings(record.training),
        "base": compute_accuracy(tests, BASE),
        "decodings": collect_decodings(record, run.config["evaluation"]),
    }


def collect_further_students(run: RunInputs, record: GenerationRecord, selections: Mapping[str, Json]) -> list[Json]:
    """Return the further students, each with ``name`` and the keys of :func:`collect_students`.

    ``against_first`` is the student's accuracy minus that of the student that teaches, by arm, paired by test row.
    """
    first = read_tests(record.tests)
    found = []
    for name in record.students:
        own = replace(record, students={}, **record.students[name])
        tests = read_tests(own.tests)
        both = {arm: {"own": tests[arm], "first": first[arm]} for arm in selections if arm in tests and arm in first}
        against = {arm: compare_models(pair, "own", "first", run.seed) for arm, pair in both.items()}
        found.append({"name": name, **collect_students(run, own, selections), "against_first": against})
    return found


def collect_test_results(arm: str, tests: Tests, *, margin: float, seed: int, nothing: str | None) -> Json:
    """Return the results of an arm's student: accuracy, recovery, verdict and paired tests.

    ``nothing`` says why no arm can recover anything: ground truth is not shown to gain over the base. It is None if it
    is.
    """
    truth = compute_test_differences(tests, arm, GROUND_TRUTH) if arm != GROUND_TRUTH else None
    against_teacher, against_truth = compare_models(tests, arm, TEACHER, seed), None
    verdict: Json = {}
    if truth is not None and len(truth):
        base = compute_accuracy(tests, BASE)
        (_, truth_NJ), _ = align_grades(tests, (arm, GROUND_TRUTH))
        gain = float(truth_NJ.mean()) - (0.0 if base is None else float(base["value"]))
        found = metrics.compute_rows_verdict(truth, gain=gain, margin=margin, seed=seed)
        verdict, against_truth = found.to_json(), convert_comparison(found.test)
    recovery, names = None, (arm, BASE, GROUND_TRUTH)
    if not nothing and all(name in tests for name in names):
        (arm_NJ, base_NJ, gold_NJ), cluster_N = align_grades(tests, names)
        if len(arm_NJ):
            recovery = metrics.compute_runs_recovery(arm_NJ, base_NJ, gold_NJ, cluster_N, seed=seed)
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
        "against_ground_truth": against_truth,
        "against_teacher": against_teacher,
        "against_base": compare_models(tests, arm, BASE, seed),
        # Claimed only if the interval of the paired difference lies above zero, and never for gold labels.
        "weak_to_strong": None if against_teacher is None or ARMS[arm].gold else against_teacher["low"] > 0,
    }


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
"""How answers are asked for, in words, by ``DecodingConfig.constrained``."""


def read_domain(config: JsonView) -> DomainConfig:
    """Return the domain's section of a run's recorded configuration."""
    return DomainConfig.model_validate(config.get("domain", "chess"))


def describe_asking(config: JsonView, section: str) -> str:
    """Return how a run's ``teacher`` or ``evaluation`` asks for answers, in words; options are always scored."""
    decoding = DecodingConfig.model_validate(config.get(section, {}).get("decoding", {}))
    domain = read_domain(config)
    scored = domain.name not in [*DOMAINS] or domain.traits.answering == "scored"
    return WAYS[decoding.constrained or ("scored" if scored else False)]


def explain_unlike(config: JsonView) -> str | None:
    """Return why a student cannot be called better than its teacher's labels, in words, or None if it can."""
    labels, tests = describe_asking(config, "teacher"), describe_asking(config, "evaluation")
    return None if labels == tests else f"labels were asked for {labels}, tests {tests}"


WORDS = {GIVEN: "labels made elsewhere"}
"""Names of backends without a model, in words."""


def describe_model(ref: ModelRef | None, teacher: JsonView | None = None) -> Json:
    """Return a model as JSON, with a short ``name``: the last two parts of its path or hub id, or server or backend.

    ``teacher`` is that section of the configuration, for teachers without weights or whose model only reads labels.
    """
    if ref is None:
        backend = (teacher or {}).get("backend", "scripted")
        return {"name": ((teacher or {}).get("endpoint") or {}).get("model") or WORDS.get(backend, backend)}
    name = "/".join(Path(ref.adapter or ref.base).parts[-2:])
    reads = (teacher or {}).get("reader") is not None
    return {"name": f"{WORDS[GIVEN]}, read by {name}" if reads else name, **ref.to_json()}


NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


def collect_decodings(record: GenerationRecord, evaluation: Mapping[str, object]) -> Json | None:
    """Return each model's accuracy by each decoding, and its ``best``; ``None`` with one decoding or without tests.

    ``best.low`` and ``best.high`` are the bounds of an interval that holds for all decodings at once (Bonferroni), so
    for the chosen one too. Of equally accurate decodings the first is the best. ``best`` is None if no other decoding
    asks in the same way as the main one.
    """
    if not record.further_tests or not record.tests:
        return None
    config = EvaluationConfig.model_validate(evaluation)
    tests = {MAIN: read_tests(record.tests)}
    tests |= {name: read_tests(of_models) for name, of_models in record.further_tests.items()}
    alike = [name for name, decoding in config.decodings.items() if decoding.constrained == config.decoding.constrained]
    confidence, models = 1 - (1 - metrics.CONFIDENCE) / max(len(alike), 1), []
    for model in tests[MAIN]:
        found = {name: compute_accuracy(tests[name], model, confidence=confidence) for name in alike}
        known = [{"decoding": name, **estimate} for name, estimate in found.items() if estimate is not None]
        best = max(known, key=lambda estimate: estimate["value"], default=None) if len(alike) > 1 else None
        accuracy = {name: compute_accuracy(of_models, model) for name, of_models in tests.items()}
        models.append({"name": model, "accuracy": accuracy, "best": best})
    return {
        "decodings": [
            {"name": name, "words": describe_decoding(decoding), "num_runs": config.runs(decoding)}
            for name, decoding in config.decodings.items()
        ],
        "best_is": f"best of {NUMBERS.get(len(alike), len(alike))}, chosen on the test set" if len(alike) > 1 else None,
        "num_alike": len(alike),
        "models": models,
    }


def describe_decoding(decoding: DecodingConfig) -> str:
    """Return a decoding in words, e.g. ``greedy`` or ``temperature 0.7, top-p 0.8, top-k 20``."""
    if decoding.constrained == "scored":
        return "the likeliest of the listed answers"
    parts = [f"temperature {decoding.temperature:g}" if decoding.temperature else "greedy"]
    parts += ["among the listed answers"] if decoding.constrained else []
    words = {"top_p": "top-p", "top_k": "top-k", "min_p": "min-p"} if decoding.temperature else {}
    for key, word in {**words, "presence_penalty": "presence penalty"}.items():
        if (value := getattr(decoding, key)) != getattr(DecodingConfig(), key):
            parts.append(f"{word} {value:g}")
    return ", ".join(parts)


def collect_trainings(training: Mapping[str, JsonView]) -> dict[str, JsonView]:
    """Return each arm's training: its curves with the loss, and its seconds.

    All curves of an arm have a value, or ``None``, at each ``step``: an optimizer step, or the number of the logging
    interval if the method records no steps.
    """
    found: dict[str, JsonView] = {}
    for arm, record in training.items():
        losses, curves = record["losses"], dict(record.get("curves", {}))
        steps = curves.pop("step", None) or [float(number) for number in range(1, 1 + len(losses))]
        curves = {"step": steps, "loss": losses, **curves}
        found[arm] = {"curves": curves, "seconds": record["seconds"]}
    return found
