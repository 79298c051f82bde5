"""Comparison of finished runs: what differs in their configurations, and their results with differences.

Differences are from the first run. Two tested models that answered the same test rows are compared row by row (paired);
all other differences treat the runs' rows as different ones, which makes intervals too wide if they are the same.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from curation import metrics
from curation.arms import ARMS, REFERENCE_ARM
from curation.extras.combine.runs import Part, read_members, read_parts, to_estimate, write_several
from curation.json_types import Json
from curation.metrics import Estimate
from curation.metrics.estimates import compute_difference
from curation.report.headline import describe_name
from curation.report.measures import make_finite
from curation.report.record import BASE, TEACHER
from curation.report.tested import compute_test_differences, describe_asking, find_common_rows
from curation.storage.paths import Place

UNSHOWN = ("name", "run_dir", "report_rows", "tracking")
"""Keys of the configuration that change no result and are not compared."""
COSTS = {"elapsed": "time", "actor_seconds": "actors' seconds", "output_tokens": "output tokens"}


def compare(directories: Sequence[str], output: str | None) -> tuple[Json, Place, str]:
    """Write the pages of the runs' last generations; return the comparison, the page's path and a text table."""
    (runs,) = read_parts(read_members(directories, "--compare"), [-1])
    configs = [{key: of for key, of in run.report["config"].items() if key not in UNSHOWN} for run in runs]
    leaves = [_flatten_keys(config) for config in configs]  # a list is one value, a missing key is None
    keys = {key for found in leaves for key in found}
    values = {key: [found.get(key) for found in leaves] for key in keys}
    content: Json = make_finite(
        {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "runs": [
                {
                    "directory": run.member.directory,
                    "name": run.report["name"],
                    "verdict": run.report["verdict"],
                    "domain": run.report["domain"],
                    "benchmark": run.benchmark,
                    "teacher": run.generation["teacher_model"]["name"],
                }
                for run in runs
            ],
            "configuration": [
                {"key": key, "values": of} for key, of in sorted(values.items()) if any(value != of[0] for value in of)
            ],
            "measures": _collect_measures(runs),
            "costs": [
                {"words": words, "name": name, "values": [run.report["spent"]["total"][name] for run in runs]}
                for name, words in COSTS.items()
            ],
        }
    )
    return content, *write_several(content, "compared", output)


def _flatten_keys(value: Mapping[str, object], path: str = "") -> Json:
    found: Json = {}
    for key, item in value.items():
        name = f"{path}.{key}" if path else str(key)
        found |= _flatten_keys(item, name) if isinstance(item, Mapping) and item else {name: item}
    return found


def _collect_measures(runs: Sequence[Part]) -> list[Json]:
    """Return the measures that at least one run has, with each run's value and its difference from the first run's."""
    names = dict.fromkeys(name for run in runs for name in run.arms)
    found = []
    for where in ("validation", "pool"):
        tables = [run.generation["trust"].get(where, {}).get("parsed") or {"functions": {}} for run in runs]
        aucs = [table["functions"].get(REFERENCE_ARM, {}).get("auc") for table in tables]
        found.append(_make_line(f"{where} AUC of {describe_name(REFERENCE_ARM)}", "number", runs, aucs))
    right = [run.generation["teacher"]["pool"] for run in runs]
    found.append(_make_line("teacher right in the pool", "share", runs, right, asked="teacher"))
    for name in names:
        if not ARMS[name].gold:
            purities = [run.arms.get(name, {}).get("purity") for run in runs]
            found.append(_make_line(f"purity, {describe_name(name)}", "share", runs, purities))
    tested = {
        TEACHER: [run.generation["teacher"]["test"] for run in runs],
        BASE: [run.generation["base"] for run in runs],
        **{name: [run.arms.get(name, {}).get("accuracy") for run in runs] for name in names},
    }
    for model, values in tested.items():
        words = f"test accuracy, {describe_name(model)}"
        found.append(_make_line(words, "share", runs, values, model=model, asked="evaluation"))
    return [line for line in found if any(value is not None for value in line["values"])]


def _make_line(
    words: str,
    unit: str,
    runs: Sequence[Part],
    values: Sequence[Json | None],
    *,
    model: str | None = None,
    asked: str | None = None,
) -> Json:
    """Return a measure of each run; compare only runs that ask in one way in the configuration's section ``asked``."""
    first, *others = (to_estimate(value) for value in values)
    differences: list[Json | None] = [None]
    for run, other in zip(runs[1:], others, strict=True):
        unlike = asked is not None and describe_asking(runs[0].report["config"], asked) != describe_asking(
            run.report["config"], asked
        )
        if first is None or other is None or unlike:
            differences.append(None)
        elif model is not None and (paired := _compare_pair(runs[0], run, model)) is not None:
            differences.append({**paired.to_json(), "paired": True})
        else:
            differences.append({**compute_difference(other, first).to_json(), "paired": False})
    return {"words": words, "unit": unit, "values": list(values), "differences": differences}


def _compare_pair(first: Part, second: Part, model: str) -> Estimate | None:
    """Return the second run's accuracy minus the first's, or None if they did not answer the same test rows."""
    if model not in first.tests or model not in second.tests or first.benchmark != second.benchmark:
        return None
    rows = [find_common_rows(run.tests, model) for run in (first, second)]
    if not np.array_equal(rows[0], rows[1]) or not len(rows[0]):
        return None
    pair = compute_test_differences({"first": first.tests[model], "second": second.tests[model]}, "second", "first")
    return None if pair is None else metrics.compare_rows(pair, seed=first.member.run.seed).difference
