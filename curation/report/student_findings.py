"""The verdict's finding on students: whether the student of ground truth, with all labels right, learned anything."""

from collections.abc import Mapping
from dataclasses import replace

from curation.json_types import JsonView
from curation.metrics import Estimate
from curation.report.evidence import Evidence, GoldStudent
from curation.report.headline import format_difference
from curation.report.levels import CARE, Finding
from curation.report.record import GROUND_TRUTH


def with_students(
    evidence: Evidence | None, students: JsonView, training: Mapping[str, JsonView], config: JsonView
) -> Evidence | None:
    """Return the evidence with the student of ground truth, if both it and its base were tested.

    ``students`` is the JSON of ``report.students.collect_students``, ``training`` the record of each arm's training.
    """
    arm = next((arm for arm in students["arms"] if arm["name"] == GROUND_TRUTH), None)
    record = training.get(GROUND_TRUTH)
    if evidence is None or arm is None or record is None or arm["against_base"] is None:
        return evidence
    gain = arm["against_base"]
    steps = record.get("curves", {}).get("step")
    student = GoldStudent(
        gain=Estimate(value=gain["difference"], low=gain["low"], high=gain["high"], n=gain["n"]),
        rows=arm["rows_trained"],
        epochs=arm["epochs"],
        steps=round(steps[-1]) if steps else None,
        learning_rate=(config.get("student") or {}).get("learning_rate"),
    )
    return replace(evidence, gold_student=student)


def find_no_learning(evidence: Evidence) -> Finding | None:
    """Return a finding if ground truth's student is not shown to beat its base, so that no student shows anything."""
    student = evidence.gold_student
    if student is None or student.gain.low > 0:
        return None
    trained = [f"{student.rows:,} rows", f"{student.epochs:,} epoch{'s' if student.epochs != 1 else ''}"]
    if student.steps is not None:
        trained.append(f"{student.steps:,} optimizer step{'s' if student.steps != 1 else ''}")
    if student.learning_rate is not None:
        trained.append(f"a learning rate of {student.learning_rate:g}")
    gain = format_difference(student.gain.value, student.gain.low, student.gain.high)
    return CARE, (
        f"these students learned nothing that {student.gain.n:,} test rows show: after {', '.join(trained)} that of "
        f"ground truth differs from its base by {gain}"
    )
