"""Comparison of finished runs: what differs in their configurations, and their results with differences.

Differences are from the first run. Two tested models that answered the same test rows are compared row by row (paired);
all other differences treat the runs' rows as different ones, which makes intervals too wide if they are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from curation import metrics
from curation.arms import ARMS, REFERENCE_ARM
from curation.extras.combine.combined import Member, list_benchmarks
from curation.json_types import Json
from curation.metrics import Estimate
from curation.report.collect import collect
from curation.report.evidence import compute_difference
from curation.report.headline import describe_name
from curation.report.measures import make_finite
from curation.report.record import BASE, TEACHER
from curation.report.tested import Tests, compute_test_differences, describe_asking, find_common_rows, read_tests

UNSHOWN = ("name", "run_dir", "report_rows", "tracking")
"""Keys of the configuration that change no result and are not compared."""


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A run to compare: its report, its last generation's part, and the grades of its tests."""

    report: Json
    last: Json
    tests: Tests
    benchmark: str
    seed: int


def compare(members: Sequence[Member]) -> Json:
    """Return the comparison of the runs' last generations, as JSON."""
    benchmarks = list_benchmarks([member.run for member in members])
    runs = []
    for member, benchmark in zip(members, benchmarks, strict=True):
        report = collect(member.run)
        tests = read_tests(member.run.generations[-1].tests)
        last = report["generations"][-1]
        runs.append(_Run(report=report, last=last, tests=tests, benchmark=benchmark, seed=member.run.seed))
    content = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": [
            {
                "directory": member.directory,
                "name": run.report["name"],
                "verdict": run.report["verdict"],
                "domain": run.report["domain"],
                "benchmark": run.benchmark,
                "teacher": run.last["teacher_model"]["name"],
            }
            for member, run in zip(members, runs, strict=True)
        ],
        "configuration": find_differing_keys([run.report["config"] for run in runs]),
        "measures": [*_collect_measures(runs)],
        "costs": [
            {"words": words, "name": name, "values": [run.report["spent"]["total"][name] for run in runs]}
            for name, words in (
                ("elapsed", "time"),
                ("actor_seconds", "actors' seconds"),
                ("output_tokens", "output tokens"),
            )
        ],
    }
    result: Json = make_finite(content)
    return result


def find_differing_keys(configs: Sequence[Mapping[str, object]]) -> list[Json]:
    """Return keys at which configurations differ, with their values; a list is one value, a missing key is ``None``."""
    leaves = [_flatten_keys({key: value for key, value in config.items() if key not in UNSHOWN}) for config in configs]
    keys = dict.fromkeys(key for found in leaves for key in found)
    values = {key: [found.get(key) for found in leaves] for key in keys}
    return [{"key": key, "values": of} for key, of in sorted(values.items()) if any(value != of[0] for value in of[1:])]


def _flatten_keys(value: Mapping[str, object], path: str = "") -> Json:
    found: Json = {}
    for key, item in value.items():
        name = f"{path}.{key}" if path else str(key)
        found |= _flatten_keys(item, name) if isinstance(item, Mapping) and item else {name: item}
    return found


def _collect_measures(runs: Sequence[_Run]) -> Sequence[Json]:
    """Return the measures that at least one run has, with each run's value and its difference from the first run's."""
    arms = dict.fromkeys(arm["name"] for run in runs for arm in run.last["arms"])
    found = [
        _make_line(f"validation AUC of {describe_name(REFERENCE_ARM)}", "number", runs, _make_auc_getter("validation"))
    ]
    found += [_make_line(f"pool AUC of {describe_name(REFERENCE_ARM)}", "number", runs, _make_auc_getter("pool"))]
    found += [
        _make_line("teacher right in the pool", "share", runs, lambda run: run.last["teacher"]["pool"], asked="teacher")
    ]
    for arm in arms:
        if not ARMS[arm].gold:
            found.append(_make_line(f"purity, {describe_name(arm)}", "share", runs, _make_arm_getter(arm, "purity")))
    tested: list[tuple[str, Callable[[_Run], Any]]] = [
        (TEACHER, lambda run: run.last["teacher"]["test"]),
        (BASE, lambda run: run.last["base"]),
        *((arm, _make_arm_getter(arm, "accuracy")) for arm in arms),
    ]
    for model, take in tested:
        found.append(
            _make_line(f"test accuracy, {describe_name(model)}", "share", runs, take, model=model, asked="evaluation")
        )
    return [line for line in found if any(value is not None for value in line["values"])]


def _make_line(
    words: str,
    unit: str,
    runs: Sequence[_Run],
    take: Callable[[_Run], Any],
    *,
    model: str | None = None,
    asked: str | None = None,
) -> Json:
    """Return a measure of each run; compare only runs that ask in one way in the configuration's section ``asked``."""
    values = [take(run) for run in runs]
    first = values[0]
    differences: list[Json | None] = [None]
    for run, value in zip(runs[1:], values[1:], strict=True):
        unlike = asked is not None and describe_asking(runs[0].report["config"], asked) != describe_asking(
            run.report["config"], asked
        )
        if first is None or value is None or unlike:
            differences.append(None)
        elif model is not None and (paired := _compare_pair(runs[0], run, model)) is not None:
            differences.append({**paired.to_json(), "paired": True})
        else:
            differences.append({**compute_difference(_estimate(value), _estimate(first)).to_json(), "paired": False})
    return {"words": words, "unit": unit, "values": values, "differences": differences}


def _compare_pair(first: _Run, second: _Run, model: str) -> Estimate | None:
    """Return the second run's accuracy minus the first's, or None if they did not answer the same test rows."""
    if model not in first.tests or model not in second.tests or first.benchmark != second.benchmark:
        return None
    rows = [find_common_rows(run.tests, model) for run in (first, second)]
    if not np.array_equal(rows[0], rows[1]) or not len(rows[0]):
        return None
    pair = compute_test_differences({"first": first.tests[model], "second": second.tests[model]}, "second", "first")
    return None if pair is None else metrics.compare_rows(pair, seed=first.seed).difference


def _make_auc_getter(where: str) -> Callable[[_Run], Any]:
    def take(run: _Run) -> Any:
        found = run.last["trust"].get(where, {}).get("parsed")
        return None if found is None else found["functions"].get(REFERENCE_ARM, {}).get("auc")

    return take


def _make_arm_getter(name: str, key: str) -> Callable[[_Run], Any]:
    return lambda run: next((arm[key] for arm in run.last["arms"] if arm["name"] == name), None)


def _estimate(value: Json) -> Estimate:
    return Estimate(**{key: value[key] for key in ("value", "low", "high", "n")})


def format_compared(content: Json) -> str:
    """Return lines on the runs, differences of their configurations, and each measure with changes from run 1."""
    lines = []
    for number, run in enumerate(content["runs"], 1):
        verdict = "" if run["verdict"] is None else f": {run['verdict']['sign']} {run['verdict']['level']}"
        lines.append(f"{number}  {run['directory']}{verdict}")
    for line in content["configuration"]:
        lines.append(f"{line['key']}: {' | '.join(str(value) for value in line['values'])}")
    for line in content["measures"]:
        scale, digits = (100, 1) if line["unit"] == "share" else (1, 3)
        cells = []
        for value, change in zip(line["values"], line["differences"], strict=True):
            cell = "-" if value is None else f"{scale * value['value']:.{digits}f}"
            if change is not None:
                low, middle, high = (f"{scale * change[key]:+.{digits}f}" for key in ("low", "value", "high"))
                cell += f" [{middle}: {low} to {high}{', paired' if change['paired'] else ''}]"
            cells.append(cell)
        lines.append(f"{line['words']:<44} {' | '.join(cells)}")
    return "\n".join(lines)
