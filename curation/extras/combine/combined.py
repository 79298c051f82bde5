"""Combines several finished runs in one report: averages over seeds, benchmarks and teachers, and pooled paired tests.

The report separates two kinds of uncertainty. ``low`` and ``high`` of an average are about rows: they combine the runs'
own intervals. ``runs`` is about seeds, splits and trainings: a t interval of the runs within their benchmark. Both hold
for the given benchmarks, and neither says how much others would differ.

Recovery is that of the averaged accuracies (paper, eq. "Recovery" in Table 2), not the mean of the runs' recoveries.
Its bounds over rows come from a bootstrap of each run's test rows, those over runs from the delta method.

A pooled test treats every pair of a run and a test row as independent of every other. That holds between benchmarks,
and if runs test on different rows. Runs of one benchmark may share test rows (``test_rows`` counts them). Then pooled
p-values and intervals over rows are too optimistic, no verdict is given, and readers should use ``runs``.
``p_value_distinct_rows`` stays valid: it tests the same sum, with the signs of a row flipped in all runs together.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import getitem
from typing import Any, get_args, get_type_hints

import numpy as np

from curation import metrics
from curation.arms import ARMS
from curation.arrays import Int64s
from curation.commands.tables import format_percent_interval
from curation.json_types import Json
from curation.report.collect import collect
from curation.report.headline import format_difference
from curation.report.measures import make_finite
from curation.report.record import BASE, GROUND_TRUTH, TEACHER, RunRecord
from curation.report.tested import (
    Tests,
    align_grades,
    compute_test_differences,
    convert_comparison,
    find_common_rows,
    read_tests,
)

MEASURES = ("auc", "ece", "brier")
AGAINST_GROUND_TRUTH = (
    "against_ground_truth",
    "p_value_vs_ground_truth",
    "p_value_distinct_rows",
    "verdict",
    "paper_verdict",
    "margin",
)
VERDICTS = get_args(get_type_hints(metrics.Verdict)["verdict"])


@dataclass(frozen=True, kw_only=True)
class Member:
    """A run to combine, and its directory."""

    directory: str
    run: RunRecord


@dataclass(frozen=True, kw_only=True)
class _RunGeneration:
    """A generation of a run: its part of the run's own report, and its grades."""

    benchmark: str
    report: Json
    tests: Tests
    margin: float
    seed: int


def combine(members: Sequence[Member]) -> Json:
    """Return the report of several runs of the same domain, arms and number of generations, as JSON.

    The report repeats arms, teacher and base of the last generation at the top level.
    """
    reports = [collect(member.run) for member in members]
    benchmarks = list_benchmarks([member.run for member in members])
    generations: list[Json] = []
    for index, record in enumerate(members[0].run.generations):
        parts = [
            _RunGeneration(
                benchmark=benchmark,
                report=report["generations"][index],
                tests=read_tests(member.run.generations[index].tests),
                margin=float(member.run.config["evaluation"]["margin"]),
                seed=member.run.seed,
            )
            for member, report, benchmark in zip(members, reports, benchmarks, strict=True)
        ]
        generations.append(_combine_generation(record.index, parts))
    last = generations[-1]
    content = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "domain": members[0].run.domain.name,
        "benchmarks": {name: benchmarks.count(name) for name in dict.fromkeys(benchmarks)},
        "runs": [_describe_member(*item) for item in zip(members, benchmarks, reports, strict=True)],
        **{key: last[key] for key in ("arms", "teacher", "base", "trust", "test_rows")},
        "generations": generations,
    }
    result: Json = make_finite(content)
    return result


def list_benchmarks(runs: Sequence[RunRecord]) -> list[str]:
    """Return the benchmark of each run: the source of its test rows, or of its pool if nothing is tested.

    Sources with one name at several places are distinguished by their path.
    """
    found = []
    for run in runs:
        splits = run.config["splits"]
        name = (splits.get("test") or splits["pool"])["from"]
        found.append((name, str(run.config["sources"][name]["path"])))
    paths: dict[str, set[str]] = {}
    for name, path in found:
        paths.setdefault(name, set()).add(path)
    return [name if len(paths[name]) == 1 else f"{name} ({path})" for name, path in found]


def average(parts: Sequence[_RunGeneration], take: Callable[[_RunGeneration], Any]) -> Json | None:
    """Return the mean over benchmarks of the mean over their runs, or ``None`` if ``take`` is ``None`` for every run.

    ``low`` and ``high`` are about rows, ``n`` is their number, ``runs`` is the interval over runs, and ``num_runs`` the
    number of runs that have a value.
    """
    taken = [(part.benchmark, _estimate(take(part))) for part in parts]
    kept = [(benchmark, estimate) for benchmark, estimate in taken if estimate is not None]
    if not kept:
        return None
    strata = [benchmark for benchmark, _ in kept]
    mean = metrics.average_over_strata([estimate for _, estimate in kept], strata)
    runs = metrics.average_over_runs([estimate.value for _, estimate in kept], strata)
    return {**mean.to_json(), "num_runs": len(kept), "runs": None if runs is None else runs.to_json()}


def _combine_generation(index: int, parts: Sequence[_RunGeneration]) -> Json:
    names = [arm["name"] for arm in parts[0].report["arms"]]
    test_rows = _test_rows(parts)
    shared = test_rows is not None and test_rows["distinct"] < test_rows["total"]
    return {
        "index": index,
        "arms": [_combine_arm(name, parts, shared=shared) for name in names],
        "teacher": {
            "test": average(parts, lambda part: part.report["teacher"]["test"]),
            "pool": average(parts, lambda part: part.report["teacher"]["pool"]),
        },
        "base": average(parts, lambda part: part.report["base"]),
        "trust": _trust(parts),
        "test_rows": test_rows,
    }


def _combine_arm(name: str, parts: Sequence[_RunGeneration], *, shared: bool) -> Json:
    purities = [arm["purity"] for part in parts if (arm := _find_arm(part, name))["purity"] is not None]
    rows = sum(purity["n"] for purity in purities)
    right = sum(round(purity["value"] * purity["n"]) for purity in purities)
    gold = ARMS[name].gold
    against_teacher = _pool_rows(name, TEACHER, parts)
    teacher = None if against_teacher is None else convert_comparison(metrics.compare_rows(against_teacher))
    held = next((reason for part in parts if (reason := _find_arm(part, name).get("withheld"))), None)
    unlike = any(part.report["asked_unlike"] for part in parts)
    return {
        "name": name,
        "label_source": "gold" if gold else "weak",
        "oracle": any(_find_arm(part, name)["oracle"] for part in parts),
        "num_selected": sum(_find_arm(part, name)["num_selected"] for part in parts),
        "purity_by_definition": gold,
        "purity": average(parts, lambda part: _find_arm(part, name)["purity"]),
        "purity_pooled": metrics.compute_proportion(right, rows).to_json() if rows else None,
        "accuracy": average(parts, lambda part: _find_arm(part, name)["accuracy"]),
        **_combine_recovery(name, parts, withheld=held is not None),
        "withheld": held,
        "difference": average(parts, lambda part: _add_value(_find_arm(part, name)["against_ground_truth"])),
        **_combine_comparison(name, parts, shared=shared),
        "against_teacher": teacher,
        "weak_to_strong": None if teacher is None or gold or unlike else teacher["low"] > 0,
    }


def _combine_recovery(name: str, parts: Sequence[_RunGeneration], *, withheld: bool) -> Json:
    """Return the recovery of the averaged accuracies, over the runs that tested arm, base and ground truth.

    A run's rows are those that all three answered in all their test runs. If all three were tested but the interval of
    ground truth's averaged gain over the base reaches zero, ``recovery_withheld`` says so and there is no recovery.
    """
    names = (name, BASE, GROUND_TRUTH)
    tested = [part for part in parts if all(model in part.tests for model in names)]
    rows = [(part.benchmark, *align_grades(part.tests, names)) for part in tested]
    kept = [of for of in rows if len(of[1][0])]
    nothing = {"recovery": None, "recovery_withheld": None}
    if withheld or not kept:
        return nothing
    strata, runs, clusters = [of[0] for of in kept], [of[1] for of in kept], [of[2] for of in kept]
    pairs = [metrics.compute_row_differences(truth, base, of_rows) for _, (_, base, truth), of_rows in kept]
    gains = [metrics.compare_rows(pair).difference for pair in pairs]
    gain = metrics.average_over_strata(gains, strata)
    if gain.low <= 0:
        differs = format_difference(gain.value, gain.low, gain.high)
        why = f"ground truth differs from the base by {differs} on average, so nothing is sure to be recovered"
        return {**nothing, "recovery_withheld": why}
    found = metrics.compute_averaged_recovery(runs, strata, clusters)
    assert found is not None, "ground truth gains on average"
    # The delta method: a run moves the ratio of two means by its own gain less so much of its gap.
    moves = [float(arm.mean() - base.mean() - found.value * (truth.mean() - base.mean())) for arm, base, truth in runs]
    of_runs = metrics.average_over_runs([found.value + move / gain.value for move in moves], strata)
    over_runs = None if of_runs is None else of_runs.to_json()
    return {**nothing, "recovery": {**found.to_json(), "num_runs": len(runs), "runs": over_runs}}


def _combine_comparison(name: str, parts: Sequence[_RunGeneration], *, shared: bool) -> Json:
    """Return the pooled paired test and its verdict; no verdict if runs share test rows, or if a run has no verdict."""
    rows = _pool_rows(name, GROUND_TRUTH, parts) if name != GROUND_TRUTH else None
    if rows is None or not len(rows):
        return dict.fromkeys(AGAINST_GROUND_TRUTH)
    judged = metrics.compute_rows_verdict(
        rows, gain=_compute_gain(name, parts), margin=min(part.margin for part in parts)
    )
    compared_runs = [part for part in parts if _find_arm(part, name)["against_ground_truth"] is not None]
    held = any(_find_arm(part, name).get("withheld") for part in parts)
    given = not shared and not held and all(_find_arm(part, name)["verdict"] in VERDICTS for part in compared_runs)
    values = (
        convert_comparison(judged.test),
        None if held else judged.test.p_value,
        None
        if held
        else metrics.compute_sign_flip(_sum_by_row(rows, name, parts))
        if shared and rows.cluster_N is None
        else judged.test.p_value,
        judged.verdict if given else None,
        judged.paper if given else None,
        judged.margin,
    )
    return dict(zip(AGAINST_GROUND_TRUTH, values, strict=True))


def _sum_by_row(rows: metrics.RowDifferences, name: str, parts: Sequence[_RunGeneration]) -> Int64s:
    """Return the pooled differences from ground truth, summed by test row over the runs of a benchmark.

    ``rows`` come from :func:`_pool_rows`, in the order of the runs.
    """
    tested = [part for part in parts if name in part.tests and GROUND_TRUTH in part.tests]
    benchmarks = list(dict.fromkeys(part.benchmark for part in tested))
    ids = [find_common_rows(part.tests, name, GROUND_TRUTH) for part in tested]
    codes = [np.full(len(of), benchmarks.index(part.benchmark)) for part, of in zip(tested, ids, strict=True)]
    keys = np.stack([np.concatenate(codes), np.concatenate(ids)])
    _, place_N = np.unique(keys, axis=1, return_inverse=True)
    sums: Int64s = np.zeros(int(place_N.max()) + 1, dtype=np.int64)
    np.add.at(sums, place_N.ravel(), rows.steps_N)
    return sums


def _pool_rows(first: str, second: str, parts: Sequence[_RunGeneration]) -> metrics.RowDifferences | None:
    """Return the rows of all runs that tested both models, as one table."""
    strata = [rows for part in parts if (rows := compute_test_differences(part.tests, first, second)) is not None]
    return metrics.pool_strata(strata) if strata else None


def _compute_gain(name: str, parts: Sequence[_RunGeneration]) -> float:
    """Return ground truth's gain over the base, averaged over runs weighted by their numbers of test rows."""
    gains = [
        (
            against["n"],
            _find_arm(part, GROUND_TRUTH)["accuracy"]["value"] - (part.report["base"] or {"value": 0.0})["value"],
        )
        for part in parts
        if (against := _find_arm(part, name)["against_ground_truth"]) is not None
    ]
    return float(sum(n * gain for n, gain in gains) / sum(n for n, _ in gains))


def _trust(parts: Sequence[_RunGeneration]) -> Json:
    """Return averaged AUC, ECE and Brier score of the trust functions that all runs have, by set and view of its rows.

    The averaged ECE and Brier score of the runs' constants are included.
    """
    result: Json = {}
    for where in ("validation", "pool"):
        have = [part.report["trust"].get(where, {}) for part in parts]
        for view in have[0]:
            if all(view in other for other in have):
                result.setdefault(where, {})[view] = _combine_table(parts, where, view)
    return result


def _combine_table(parts: Sequence[_RunGeneration], where: str, view: str) -> Json:
    def taker(*keys: str) -> Callable[[_RunGeneration], Any]:
        return lambda part: reduce(getitem, keys, part.report["trust"][where][view])

    names = [set(taker("functions")(part)) for part in parts]
    common = [name for name in taker("functions")(parts[0]) if all(name in found for found in names)]
    functions = {
        name: {measure: average(parts, taker("functions", name, measure)) for measure in MEASURES} for name in common
    }
    constant = {measure: average(parts, taker("constant", measure)) for measure in ("ece", "brier")}
    return {"functions": functions, "constant": constant}


def _test_rows(parts: Sequence[_RunGeneration]) -> Json | None:
    """Return the ``total`` number of test rows of all runs, and that of ``distinct`` ones: runs may share test rows."""
    ids: dict[str, list[Any]] = {}
    for part in parts:
        if part.tests:
            ids.setdefault(part.benchmark, []).append(next(iter(part.tests.values()))[0].row_ids_N)
    if not ids:
        return None
    every = {name: np.concatenate(of_runs) for name, of_runs in ids.items()}
    return {
        "total": sum(map(len, every.values())),
        "distinct": sum(len(np.unique(ids_N)) for ids_N in every.values()),
    }


def _describe_member(member: Member, benchmark: str, report: Json) -> Json:
    """Return a description of a run, and its own numbers of the last generation."""
    config, last = member.run.config, report["generations"][-1]
    shown = ("name", "num_selected", "purity", "accuracy", "recovery", "against_ground_truth", "verdict")
    return {
        "directory": member.directory,
        "name": member.run.name,
        "seed": member.run.seed,
        "benchmark": benchmark,
        "sources": {name: source["path"] for name, source in config["sources"].items()},
        "teacher": last["teacher_model"]["name"],
        "student": None if last["student_base"] is None else last["student_base"]["name"],
        "n": last["n"],
        "num_test_runs": max((len(runs) for runs in member.run.generations[-1].tests.values()), default=0),
        "base": last["base"],
        "teacher_test": last["teacher"]["test"],
        "arms": [{key: arm[key] for key in shown} for arm in last["arms"]],
        "warnings": [
            *(shift["warning"] for shift in last["shift"].values() if shift["warning"] is not None),
            *(f"{arm}: {found['warning']}" for arm, found in last["foreign"].items() if found["warning"] is not None),
        ],
    }


def _find_arm(part: _RunGeneration, arm: str) -> Json:
    found: Json = next(item for item in part.report["arms"] if item["name"] == arm)
    return found


def _add_value(against: Json | None) -> Json | None:
    return None if against is None else {**against, "value": against["difference"]}


def _estimate(value: Any) -> metrics.Estimate | None:
    """Return a number of a report as an estimate; missing bounds are NaN."""
    if value is None or value["value"] is None:
        return None
    low, high = (math.nan if value[bound] is None else float(value[bound]) for bound in ("low", "high"))
    return metrics.Estimate(value=float(value["value"]), low=low, high=high, n=int(value["n"]))


def format_combined(content: Json) -> str:
    """Return one line each for teacher, base and arms over all runs, in per cent with intervals over rows and runs."""
    strata = ", ".join(f"{name} ({runs})" for name, runs in content["benchmarks"].items())
    lines = [f"{len(content['runs'])} runs: {strata}", f"{'':<26}{'purity %':<24}{'over runs':<16}"]
    lines[-1] += f"{'test accuracy %':<24}{'over runs':<16}{'recovery':>9}  {'pooled p against GT':>19}"
    for name in ("teacher", "base"):
        accuracy: Json = content.get(name) or {}
        if text := format_percent_interval(accuracy := accuracy.get("test", accuracy)):
            lines.append(f"{name:<26}{'':<40}{text:<24}{_format_over_runs(accuracy)}")
    for arm in content["arms"]:
        recovery, p_value = arm["recovery"], arm["p_value_vs_ground_truth"]
        lines.append(
            f"{arm['name']:<26}{format_percent_interval(arm['purity']):<24}{_format_over_runs(arm['purity']):<16}"
            f"{format_percent_interval(arm['accuracy']):<24}{_format_over_runs(arm['accuracy']):<16}"
            f"{'' if recovery is None else format(recovery['value'], '.2f'):>9}  "
            f"{'' if p_value is None else format(p_value, '.3g'):>19}"
        )
    if (rows := content["test_rows"]) and (shared := rows["total"] - rows["distinct"]):
        lines.append(f"{shared:,} of {rows['total']:,} test rows occur in several runs: use the intervals over runs")
    return "\n".join(lines)


def _format_over_runs(value: Json | None) -> str:
    runs = (value or {}).get("runs")
    return "" if runs is None else f"{100 * runs['low']:.1f} to {100 * runs['high']:.1f}"
