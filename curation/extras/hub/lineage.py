"""Origin of an exported student or of an arm's rows, of which its card tells. The run's report says more."""

from datetime import UTC, datetime

from curation.arms import ARMS
from curation.cluster.versions import find_versions
from curation.commands.export.run import Student
from curation.json_types import Json, JsonView
from curation.refs import ModelRef
from curation.report.headline import describe_results
from curation.report.rules import STOP


def make_lineage(student: Student, command: str) -> Json:
    """Return the origin of a student or its rows; ``numbers`` is None if the run has no metrics of them."""
    generation, selected, arm = student.numbers, student.selecting, ARMS[student.arm]
    assert selected is not None, "rows that are exported were selected"
    verdict = None if generation is None else generation.get("verdict")
    if generation is not None and verdict is not None:  # None if no arm ranks by trust
        verdict = {"arm": generation["evidence"]["arm"], "level": verdict["level"], "sentence": verdict["sentence"]}
    return {
        "format": 2,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "run": {
            "name": student.config.name,
            "directory": str(student.manifest.directory.resolve()),
            "seed": student.config.seed,
        },
        "arm": {"name": student.arm, "words": arm.words, "labels": "gold" if arm.gold else "weak"},
        "generation": student.generation,
        "domain": student.config.domain.model_dump(mode="json"),
        "sources": {name: source.path for name, source in student.config.sources.items()},
        "teacher": selected.inputs["teacher"] or ModelRef(base=student.config.teacher.backend).to_json(),
        "selection": {**selected.outputs["arms"][student.arm], "budget": selected.outputs["budget"]},
        "guarantee": _describe_guarantee(student, selected.outputs["budget"], generation),
        "verdict": verdict,
        "numbers": None if generation is None else _collect_numbers(student, generation),
        "headline": [] if generation is None else describe_results(generation),
        "versions": dict(find_versions()),
    }


def _collect_numbers(student: Student, generation: JsonView) -> Json:
    """Return the purity of the arm's rows, and accuracies on the test split, each with its interval."""
    # A further student has base and arms of its own in it; the teacher is the generation's.
    results = next((item for item in generation["students"] if item["name"] == student.name), generation)
    own = next(item for item in results["arms"] if item["name"] == student.arm)
    accuracy = {"student": own["accuracy"], "base": results["base"], "teacher": generation["teacher"]["test"]}
    return {"purity": own["purity"], "purity_of_pool": generation["teacher"]["pool"], "accuracy": accuracy}


def _describe_guarantee(student: Student, budget: JsonView, generation: JsonView | None) -> str:
    """Return the guarantee of a share of wrong labels, or the reason why there is none."""
    if budget["risk"] is None:
        return f"none was asked for: the budget's rule is {budget['rule']}"
    if student.arm != budget["reference"]:
        return f"none: it is of the rows of the arm {budget['reference']}, not of these"
    if (found := None if generation is None else generation["guarantee"]) is None:
        return "not known: no report of the run tells of these rows"
    if not found["claimed"]:
        return f"withheld: {found['withheld']}"
    return f"claimed: {found['text']} (exchangeable rows: {found['exchangeable']})"


def stop_lines(lineage: JsonView) -> list[str]:
    """Return a warning if the run's verdict is not to use its rows, else an empty list."""
    verdict = lineage["verdict"]
    if verdict is None or verdict["level"] != STOP:
        return []
    return [f"warning: the run's verdict on the rows of {verdict['arm']}: {verdict['sentence']} The card says so"]
