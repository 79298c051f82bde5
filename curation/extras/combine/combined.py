"""Combines several finished runs in one report: averages over seeds, benchmarks and teachers, and pooled paired tests.

The report separates two kinds of uncertainty. ``low`` and ``high`` of an average are about rows: they combine the runs'
own intervals. ``runs`` is about seeds, splits and trainings: a t interval of the runs within their benchmark. Both hold
for the given benchmarks, and neither says how much others would differ.

Recovery is that of the averaged accuracies (paper, eq. "Recovery" in Table 2), not the mean of the runs' recoveries.
Its bounds come from a bootstrap of each run's test rows.

A pooled test takes runs of different benchmarks, and runs that test on different rows, as independent. Where runs of a
benchmark share test rows (``test_rows`` counts them), a test row is a cluster of its answers in all runs. Intervals of
averages over rows are then too narrow, and readers should use ``runs``.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from curation import metrics
from curation.arms import ARMS
from curation.arrays import Int64s
from curation.commands.printing import format_percent_interval
from curation.errors import CombineError
from curation.extras.combine.runs import Part, read_parts
from curation.json_types import Json
from curation.report.headline import format_difference, make_environment
from curation.report.html import write_page
from curation.report.measures import make_finite
from curation.report.record import BASE, GROUND_TRUTH, TEACHER
from curation.report.tested import align_grades, compute_test_differences, convert_comparison, find_common_rows
from curation.storage.paths import Place, to_place


def combine(directories: Sequence[str], output: str | None) -> tuple[Json, Place, str]:
    """Write ``combined.html`` and ``.json`` of the runs' last generations; return the report, the page and a text."""
    folder = to_place(output or "combined-report")
    if folder.is_file():
        raise CombineError(f"--output: {folder} is a file; name a folder for combined.html and combined.json")
    parts = read_parts(directories)
    benchmarks = [part.benchmark for part in parts]
    ids: dict[str, list[Int64s]] = {}
    for part in parts:
        if part.tests:
            ids.setdefault(part.benchmark, []).append(next(iter(part.tests.values()))[0].row_ids_N)
    # Fewer than the total number of test rows are distinct if runs of a benchmark share some.
    tested = [np.concatenate(of_runs) for of_runs in ids.values()]
    total, distinct = sum(map(len, tested)), sum(len(np.unique(ids_N)) for ids_N in tested)
    content: Json = make_finite(
        {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "domain": parts[0].run.domain.name,
            "benchmarks": {name: benchmarks.count(name) for name in dict.fromkeys(benchmarks)},
            "runs": [_describe_run(part) for part in parts],
            "arms": [_combine_arm(name, parts, shared=distinct < total) for name in parts[0].arms],
            "teacher": {
                what: average(parts, [part.generation["teacher"][what] for part in parts]) for what in ("test", "pool")
            },
            "base": average(parts, [part.generation["base"] for part in parts]),
            "test_rows": {"total": total, "distinct": distinct} if ids else None,
        }
    )
    page, _ = write_page("curation.extras.combine:combined.html.j2", "combined", content, folder)
    texts = make_environment("curation.extras.combine")
    texts.filters["shown"] = format_percent_interval
    return content, page, texts.get_template("combined.txt.j2").render(content=content).rstrip("\n")


def average(parts: Sequence[Part], values: Sequence[Json | None]) -> Json | None:
    """Return the mean over benchmarks of the mean over their runs, or ``None`` if no run has a value.

    ``low`` and ``high`` are about rows, ``n`` is their number, ``runs`` is the interval over runs, and ``num_runs`` the
    number of runs that have a value.
    """
    strata, estimates = [], []
    for part, found in zip(parts, values, strict=True):
        if found is not None and found["value"] is not None:
            low, high = (math.nan if found[bound] is None else float(found[bound]) for bound in ("low", "high"))
            strata.append(part.benchmark)
            estimates.append(metrics.Estimate(value=float(found["value"]), low=low, high=high, n=int(found["n"])))
    if not estimates:
        return None
    mean = metrics.average_over_strata(estimates, strata)
    runs = metrics.average_over_runs([estimate.value for estimate in estimates], strata)
    return {**mean.to_json(), "num_runs": len(estimates), "runs": None if runs is None else runs.to_json()}


def _combine_arm(name: str, parts: Sequence[Part], *, shared: bool) -> Json:
    arms, gold = [part.arms[name] for part in parts], ARMS[name].gold
    against_teacher = _pool_rows(name, TEACHER, parts, shared=shared)
    teacher = None if against_teacher is None else convert_comparison(metrics.compare_rows(against_teacher))
    withheld_why = next((reason for arm in arms if (reason := arm.get("withheld"))), None)
    unlike = any(part.generation["asked_unlike"] for part in parts)
    against = [arm["against_ground_truth"] for arm in arms]
    return {
        "name": name,
        "label_source": "gold" if gold else "weak",
        "oracle": any(arm["oracle"] for arm in arms),
        "num_selected": sum(arm["num_selected"] for arm in arms),
        "purity_by_definition": gold,
        "purity": average(parts, [arm["purity"] for arm in arms]),
        "accuracy": average(parts, [arm["accuracy"] for arm in arms]),
        **_combine_recovery(name, parts, withheld=withheld_why is not None),
        "withheld": withheld_why,
        "difference": average(parts, [None if of is None else {**of, "value": of["difference"]} for of in against]),
        **_combine_comparison(name, parts, shared=shared, withheld=withheld_why is not None),
        "against_teacher": teacher,
        "weak_to_strong": None if teacher is None or gold or unlike else teacher["low"] > 0,
    }


def _combine_recovery(name: str, parts: Sequence[Part], *, withheld: bool) -> Json:
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
    gain = metrics.average_over_strata([metrics.compare_rows(pair).difference for pair in pairs], strata)
    if gain.low <= 0:
        differs = format_difference(gain.value, gain.low, gain.high)
        why = f"ground truth differs from the base by {differs} on average, so nothing is sure to be recovered"
        return {**nothing, "recovery_withheld": why}
    found = metrics.compute_averaged_recovery(runs, strata, clusters)
    assert found is not None, "ground truth gains on average"
    return {**nothing, "recovery": {**found.to_json(), "num_runs": len(runs)}}


def _combine_comparison(name: str, parts: Sequence[Part], *, shared: bool, withheld: bool) -> Json:
    """Return the pooled paired test and its verdict; no verdict if a run has none."""
    keys = ("against_ground_truth", "p_value_vs_ground_truth", "verdict", "paper_verdict", "margin")
    found: Json = dict.fromkeys(keys)
    rows = _pool_rows(name, GROUND_TRUTH, parts, shared=shared) if name != GROUND_TRUTH else None
    if rows is None or not len(rows):
        return found
    compared = [part for part in parts if part.arms[name]["against_ground_truth"] is not None]
    sizes = [part.arms[name]["against_ground_truth"]["n"] for part in compared]
    gains = [
        part.arms[GROUND_TRUTH]["accuracy"]["value"] - (part.generation["base"] or {"value": 0.0})["value"]
        for part in compared
    ]
    gain = float(sum(n * gain for n, gain in zip(sizes, gains, strict=True)) / sum(sizes))
    margin = min(float(part.run.config["evaluation"]["margin"]) for part in parts)
    verdict = metrics.compute_rows_verdict(rows, gain=gain, margin=margin)
    found |= {"against_ground_truth": convert_comparison(verdict.test), "margin": verdict.margin}
    if withheld:
        return found
    found["p_value_vs_ground_truth"] = verdict.test.p_value
    if all(part.arms[name]["verdict"] is not None for part in compared):
        found |= {"verdict": verdict.verdict, "paper_verdict": verdict.paper}
    return found


def _pool_rows(first: str, second: str, parts: Sequence[Part], *, shared: bool) -> metrics.RowDifferences | None:
    """Return the rows of all runs that tested both models, as one table; ``shared`` test rows are clusters."""
    strata, keys = [], []
    benchmarks = [part.benchmark for part in parts]
    for part in parts:
        if (rows := compute_test_differences(part.tests, first, second)) is not None:
            strata.append(rows)
            own_N = find_common_rows(part.tests, first, second) if rows.cluster_N is None else rows.cluster_N
            place = 2 * benchmarks.index(part.benchmark) + (rows.cluster_N is not None)
            keys.append(np.stack([np.full(len(own_N), place), own_N]))
    if not strata:
        return None
    pooled = metrics.pool_strata(strata)
    if pooled.cluster_N is not None or not (shared or any(rows.cluster_N is not None for rows in strata)):
        return pooled
    # In a run without clusters, each row is a cluster of its own.
    return replace(pooled, cluster_N=np.unique(np.concatenate(keys, axis=1), axis=1, return_inverse=True)[1].ravel())


def _describe_run(part: Part) -> Json:
    """Return a description of a run, and its own numbers of the generation."""
    run, last = part.run, part.generation
    shown = ("name", "num_selected", "purity", "accuracy", "recovery", "against_ground_truth", "verdict")
    return {
        "directory": part.directory,
        "name": run.name,
        "seed": run.seed,
        "benchmark": part.benchmark,
        "sources": {name: source["path"] for name, source in run.config["sources"].items()},
        "teacher": last["teacher_model"]["name"],
        "student": None if last["student_base"] is None else last["student_base"]["name"],
        "n": last["n"],
        "num_test_runs": max((len(runs) for runs in run.generations[-1].tests.values()), default=0),
        "base": last["base"],
        "teacher_test": last["teacher"]["test"],
        "arms": [{key: arm[key] for key in shown} for arm in last["arms"]],
        "warnings": [
            *(shift["warning"] for shift in last["shift"].values() if shift["warning"] is not None),
            *(f"{arm}: {found['warning']}" for arm, found in last["foreign"].items() if found["warning"] is not None),
        ],
    }
