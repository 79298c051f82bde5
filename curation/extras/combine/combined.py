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

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import get_args, get_type_hints

import numpy as np

from curation import metrics
from curation.arms import ARMS
from curation.arrays import Int64s
from curation.extras.combine.runs import Part, read_members, read_parts, require_alike, to_estimate, write_several
from curation.json_types import Json
from curation.report.headline import format_difference
from curation.report.measures import make_finite
from curation.report.record import BASE, GROUND_TRUTH, TEACHER
from curation.report.tested import align_grades, compute_test_differences, convert_comparison, find_common_rows
from curation.storage.paths import Place

VERDICTS = get_args(get_type_hints(metrics.Verdict)["verdict"])


def combine(directories: Sequence[str], output: str | None) -> tuple[Json, Place, str]:
    """Write ``combined.html`` and ``.json``; return the report, the last generation on top, the page and a text."""
    members = read_members(directories, "--combine")
    for other in members[1:]:
        require_alike(members[0], other)
    records = members[0].run.generations
    of_generations = read_parts(members, range(len(records)))
    generations = [
        {"index": record.index, **_combine_generation(parts)}
        for record, parts in zip(records, of_generations, strict=True)
    ]
    last, benchmarks = generations[-1], [part.benchmark for part in of_generations[-1]]
    content: Json = make_finite(
        {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "domain": members[0].run.domain.name,
            "benchmarks": {name: benchmarks.count(name) for name in dict.fromkeys(benchmarks)},
            "runs": [_describe_run(part) for part in of_generations[-1]],
            **{key: last[key] for key in ("arms", "teacher", "base", "trust", "test_rows")},
            "generations": generations,
        }
    )
    return content, *write_several(content, "combined", output)


def average(parts: Sequence[Part], values: Sequence[Json | None]) -> Json | None:
    """Return the mean over benchmarks of the mean over their runs, or ``None`` if no run has a value.

    ``low`` and ``high`` are about rows, ``n`` is their number, ``runs`` is the interval over runs, and ``num_runs`` the
    number of runs that have a value.
    """
    taken = [(part.benchmark, to_estimate(value)) for part, value in zip(parts, values, strict=True)]
    kept = [(benchmark, estimate) for benchmark, estimate in taken if estimate is not None]
    if not kept:
        return None
    strata = [benchmark for benchmark, _ in kept]
    mean = metrics.average_over_strata([estimate for _, estimate in kept], strata)
    runs = metrics.average_over_runs([estimate.value for _, estimate in kept], strata)
    return {**mean.to_json(), "num_runs": len(kept), "runs": None if runs is None else runs.to_json()}


def _combine_generation(parts: Sequence[Part]) -> Json:
    """Return a generation's averages; runs may share test rows, so that fewer are ``distinct`` than their ``total``."""
    ids: dict[str, list[Int64s]] = {}
    for part in parts:
        if part.tests:
            ids.setdefault(part.benchmark, []).append(next(iter(part.tests.values()))[0].row_ids_N)
    every = [np.concatenate(of_runs) for of_runs in ids.values()]
    total, distinct = sum(map(len, every)), sum(len(np.unique(ids_N)) for ids_N in every)

    def average_each(tables: Sequence[Json], measures: Sequence[str]) -> Json:
        return {measure: average(parts, [table[measure] for table in tables]) for measure in measures}

    trust: Json = {}
    for where in ("validation", "pool"):
        views = [part.generation["trust"].get(where, {}) for part in parts]
        for view in (name for name in views[0] if all(name in of_run for of_run in views)):
            tables = [of_run[view]["functions"] for of_run in views]
            trust.setdefault(where, {})[view] = {
                "functions": {
                    name: average_each([table[name] for table in tables], ("auc", "ece", "brier"))
                    for name in tables[0]
                    if all(name in table for table in tables)
                },
                "constant": average_each([of_run[view]["constant"] for of_run in views], ("ece", "brier")),
            }
    return {
        "arms": [_combine_arm(name, parts, shared=distinct < total) for name in parts[0].arms],
        "teacher": average_each([part.generation["teacher"] for part in parts], ("test", "pool")),
        "base": average(parts, [part.generation["base"] for part in parts]),
        "trust": trust,
        "test_rows": {"total": total, "distinct": distinct} if ids else None,
    }


def _combine_arm(name: str, parts: Sequence[Part], *, shared: bool) -> Json:
    arms, gold = [part.arms[name] for part in parts], ARMS[name].gold
    purities = [arm["purity"] for arm in arms if arm["purity"] is not None]
    rows = sum(purity["n"] for purity in purities)
    right = sum(round(purity["value"] * purity["n"]) for purity in purities)
    against_teacher = _pool_rows(name, TEACHER, parts)
    teacher = None if against_teacher is None else convert_comparison(metrics.compare_rows(against_teacher))
    held = next((reason for arm in arms if (reason := arm.get("withheld"))), None)
    unlike = any(part.generation["asked_unlike"] for part in parts)
    against = [arm["against_ground_truth"] for arm in arms]
    return {
        "name": name,
        "label_source": "gold" if gold else "weak",
        "oracle": any(arm["oracle"] for arm in arms),
        "num_selected": sum(arm["num_selected"] for arm in arms),
        "purity_by_definition": gold,
        "purity": average(parts, [arm["purity"] for arm in arms]),
        "purity_pooled": metrics.compute_proportion(right, rows).to_json() if rows else None,
        "accuracy": average(parts, [arm["accuracy"] for arm in arms]),
        **_combine_recovery(name, parts, withheld=held is not None),
        "withheld": held,
        "difference": average(parts, [None if of is None else {**of, "value": of["difference"]} for of in against]),
        **_combine_comparison(name, parts, shared=shared, withheld=held is not None),
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
    # The delta method: a run moves the ratio of two means by its own gain less so much of its gap.
    moves = [float(arm.mean() - base.mean() - found.value * (truth.mean() - base.mean())) for arm, base, truth in runs]
    of_runs = metrics.average_over_runs([found.value + move / gain.value for move in moves], strata)
    over_runs = None if of_runs is None else of_runs.to_json()
    return {**nothing, "recovery": {**found.to_json(), "num_runs": len(runs), "runs": over_runs}}


def _combine_comparison(name: str, parts: Sequence[Part], *, shared: bool, withheld: bool) -> Json:
    """Return the pooled paired test and its verdict; no verdict if runs share test rows, or if a run has no verdict."""
    keys = ("against_ground_truth", "p_value_vs_ground_truth", "p_value_distinct_rows")
    found: Json = dict.fromkeys((*keys, "verdict", "paper_verdict", "margin"))
    rows = _pool_rows(name, GROUND_TRUTH, parts) if name != GROUND_TRUTH else None
    if rows is None or not len(rows):
        return found
    compared = [part for part in parts if part.arms[name]["against_ground_truth"] is not None]
    sizes = [part.arms[name]["against_ground_truth"]["n"] for part in compared]
    gains = [
        part.arms[GROUND_TRUTH]["accuracy"]["value"] - (part.generation["base"] or {"value": 0.0})["value"]
        for part in compared
    ]
    gain = float(sum(n * gain for n, gain in zip(sizes, gains, strict=True)) / sum(sizes))
    margin = min(float(part.member.run.config["evaluation"]["margin"]) for part in parts)
    verdict = metrics.compute_rows_verdict(rows, gain=gain, margin=margin)
    found |= {"against_ground_truth": convert_comparison(verdict.test), "margin": verdict.margin}
    if withheld:
        return found
    distinct = verdict.test.p_value
    if shared and rows.cluster_N is None:  # differences are summed by test row over the runs of a benchmark
        tested = [part for part in parts if name in part.tests and GROUND_TRUTH in part.tests]  # as rows are pooled
        benchmarks = list(dict.fromkeys(part.benchmark for part in tested))
        ids = [find_common_rows(part.tests, name, GROUND_TRUTH) for part in tested]
        codes = [np.full(len(of), benchmarks.index(part.benchmark)) for part, of in zip(tested, ids, strict=True)]
        row_2N = np.stack([np.concatenate(codes), np.concatenate(ids)])
        _, place_N = np.unique(row_2N, axis=1, return_inverse=True)
        sums = np.zeros(int(place_N.max()) + 1, dtype=np.int64)
        np.add.at(sums, place_N.ravel(), rows.steps_N)
        distinct = metrics.compute_sign_flip(sums)
    found |= {"p_value_vs_ground_truth": verdict.test.p_value, "p_value_distinct_rows": distinct}
    if not shared and all(part.arms[name]["verdict"] in VERDICTS for part in compared):
        found |= {"verdict": verdict.verdict, "paper_verdict": verdict.paper}
    return found


def _pool_rows(first: str, second: str, parts: Sequence[Part]) -> metrics.RowDifferences | None:
    """Return the rows of all runs that tested both models, as one table."""
    strata = [rows for part in parts if (rows := compute_test_differences(part.tests, first, second)) is not None]
    return metrics.pool_strata(strata) if strata else None


def _describe_run(part: Part) -> Json:
    """Return a description of a run, and its own numbers of the generation."""
    run, last = part.member.run, part.generation
    shown = ("name", "num_selected", "purity", "accuracy", "recovery", "against_ground_truth", "verdict")
    return {
        "directory": part.member.directory,
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
