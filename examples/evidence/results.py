"""Results of finished cells as JSON: means over seeds, and paired differences pooled over seeds and test rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from curation import metrics
from curation.arms import ARMS
from curation.report.record import BASE, GROUND_TRUTH, TEACHER
from curation.report.tested import Tests, compute_test_differences, convert_comparison
from examples.evidence.cells import Cell
from examples.evidence.gates import Gate

AGAINST = (GROUND_TRUTH, TEACHER, "naive_parsed", "internal_confidence")
"""Names of the models that every arm is compared with, row by row."""
CAPPED = ", capped"
MEASURES = ("auc", "ece", "brier")


def task_results(cells: Sequence[Cell], capped: Sequence[Cell] = ()) -> dict[str, Any]:
    """Return the results of one task over its finished seeds; most numbers are a mean with the values of all seeds.

    ``capped`` are cells of the same seeds with a cap on rows of one label. Their arms are listed beside the others, as
    ``ARM, capped``.
    """
    reports, others = [cell.report for cell in cells], [cell.report for cell in capped]
    tests = [_all_tests(cell, capped) for cell in cells]
    named = [(name, name, reports) for name in _names(reports)]
    named += [(f"{name}{CAPPED}", name, others) for name in _names(others)]
    return {
        "seeds": [cell.seed for cell in cells],
        "n": reports[0]["generations"][-1]["n"],
        "num_pool": [report["generations"][-1]["num_pool"] for report in reports],
        "parsed": mean([1 - pool["unparsed"] / pool["rows"] for pool in map(_labelled_pool, reports)]),
        "right_in_pool": mean([report["teacher"]["pool"]["value"] for report in reports]),
        "teacher": _accuracy(tests, TEACHER),
        "base": _accuracy(tests, BASE),
        "arms": {
            name: {
                "words": ARMS[arm].words + name.removeprefix(arm),
                "purity": _purity(arm, of_reports),
                **(_accuracy(tests, name) or {}),
                "against": {other: pooled(tests, name, other) for other in AGAINST if other != name},
            }
            for name, arm, of_reports in named
        },
        "regimes": regimes(reports),
        "seconds": [cell.done["seconds"] for cell in cells if cell.done],
    }


def _all_tests(cell: Cell, capped: Sequence[Cell]) -> Tests:
    """Return the tests of a cell, and those of the capped arms of the same seed."""
    tests = dict(cell.tests)
    for other in capped:
        if other.seed == cell.seed:
            tests |= {f"{name}{CAPPED}": of for name, of in other.tests.items() if name not in (TEACHER, BASE)}
    return tests


def _names(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    return [arm["name"] for arm in reports[0]["arms"]] if reports else []


def pooled(tests: Sequence[Tests], first: str, second: str) -> dict[str, Any] | None:
    """Return first minus second on the test rows of all seeds together, and the interval over the seeds' differences.

    ``low`` and ``high`` are over rows, and take the rows of different seeds as independent. ``seeds`` is the t interval
    over seeds, which also covers variation between splits and between trainings.
    """
    strata = [rows for of_seed in tests if (rows := compute_test_differences(of_seed, first, second)) is not None]
    if not strata:
        return None
    found = convert_comparison(metrics.compare_rows(metrics.pool_strata(strata)))
    each = [float(rows.steps_N.sum()) / rows.per_unit / len(rows) for rows in strata]
    over = metrics.average_over_seeds(each) if len(each) > 1 else None
    return None if found is None else {**found, "each": each, "seeds": None if over is None else over.to_json()}


def regimes(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return AUC, ECE and Brier score of the reference arm's trust function by labelled set, as means over seeds."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for report in reports:
        for line in report["regimes"]:
            lines.setdefault(line["set"], []).append(line)
    return {
        name: {
            "regime": of_set[0]["regime"],
            "share_right": mean([line["share_right"]["value"] for line in of_set]),
            **{key: mean([line[key]["value"] for line in of_set if line[key] is not None]) for key in MEASURES},
            "constant_brier": mean([line["constant"]["brier"]["value"] for line in of_set]),
        }
        for name, of_set in lines.items()
    }


def gate_results(found: Mapping[str, Sequence[Gate]]) -> dict[str, Any]:
    """Return the gates by task, as JSON objects."""
    return {
        task: [
            {"words": gate.words, "value": gate.value, "wanted": gate.wanted, "passed": gate.passed} for gate in gates
        ]
        for task, gates in found.items()
    }


def mean(values: Sequence[float]) -> dict[str, Any] | None:
    """Return the mean of the seeds' values, and the values; None without values."""
    return {"value": sum(values) / len(values), "each": list(values)} if values else None


def _accuracy(tests: Sequence[Tests], name: str) -> dict[str, Any] | None:
    """Return the share of right answers on the test rows of all seeds, its exact interval, and each seed's share."""
    graded = [run.correct_N for of_seed in tests if name in of_seed for run in of_seed[name]]
    if not graded:
        return None
    found = metrics.compute_proportion(sum(int(of_run.sum()) for of_run in graded), sum(map(len, graded)))
    return {"accuracy": {**found.to_json(), "each": [float(of_run.mean()) for of_run in graded]}}


def _purity(name: str, reports: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    found = [arm["purity"] for report in reports for arm in report["arms"] if arm["name"] == name]
    return mean([purity["value"] for purity in found if purity is not None])


def _labelled_pool(report: Mapping[str, Any]) -> Mapping[str, Any]:
    pool: Mapping[str, Any] = report["funnel"]["generations"][-1]["labelled"]["pool"]
    return pool
