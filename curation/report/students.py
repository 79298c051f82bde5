"""The students of a generation, as JSON: those that teach, and further ones trained on the same selections."""

from collections.abc import Mapping
from pathlib import Path

from curation import metrics
from curation.arrays import Int64s
from curation.config.given import GIVEN
from curation.json_types import Json, JsonView
from curation.refs import ModelRef
from curation.report.comparable import explain_unlike, explain_withheld, withhold
from curation.report.decodings import collect_decodings
from curation.report.record import BASE, GenerationRecord, RunInputs
from curation.report.tested import (
    collect_test_results,
    compute_accuracy,
    compute_test_differences,
    convert_comparison,
    decompose_gap,
    explain_no_recovery,
    read_tests,
)
from curation.report.trained import collect_trainings


def collect_students(
    run: RunInputs, record: GenerationRecord, chosen: Mapping[str, Json], selected: Mapping[str, Int64s]
) -> Json:
    """Return the students of a base: each arm's training and results, the base, and why comparisons are withheld.

    ``chosen`` has the facts of each arm's selection, ``selected`` its row ids.
    """
    tests, margin = read_tests(record.tests), float(run.config["evaluation"]["margin"])
    nothing = explain_no_recovery(tests, run.seed)
    arms = withhold(
        [
            {
                **facts,
                **_collect_training(record.training.get(arm)),
                **collect_test_results(arm, tests, margin=margin, seed=run.seed, nothing=nothing),
            }
            for arm, facts in chosen.items()
        ],
        explain_unlike(run.config),
    )
    return {
        "student_base": None if record.student_base is None else describe_model(record.student_base),
        "arms": arms,
        "trained_unlike": explain_withheld(arms),
        "gap": decompose_gap(arms, selected, tests, seed=run.seed),
        "training": collect_trainings(record.training),
        "base": compute_accuracy(tests, BASE),
        "decodings": collect_decodings(record, run.config["evaluation"]),
    }


def collect_further_students(
    run: RunInputs, record: GenerationRecord, chosen: Mapping[str, Json], selected: Mapping[str, Int64s]
) -> list[Json]:
    """Return the further students, each with ``name`` and the keys of :func:`collect_students`.

    ``against_first`` is the student's accuracy minus that of the student that teaches, by arm, paired by test row.
    """
    first = read_tests(record.tests)
    found = []
    for name in record.students:
        own = record.of_student(name)
        tests = read_tests(own.tests)
        both = {arm: {"own": tests[arm], "first": first[arm]} for arm in chosen if arm in tests and arm in first}
        pairs = {arm: compute_test_differences(pair, "own", "first") for arm, pair in both.items()}
        against = {
            arm: convert_comparison(metrics.compare_rows(rows, seed=run.seed))
            for arm, rows in pairs.items()
            if rows is not None
        }
        found.append({"name": name, **collect_students(run, own, chosen, selected), "against_first": against})
    return found


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


def _collect_training(training: Mapping[str, object] | None) -> Json:
    """Return a student's numbers of training rows, of rows dropped in training and of epochs; None if not trained."""
    names = {"rows_trained": "num_rows", "rows_dropped": "num_dropped", "epochs": "num_epochs"}
    return {name: None if training is None else training[field] for name, field in names.items()}
