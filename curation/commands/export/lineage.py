"""Lineage of an exported student or an arm's rows: model, teacher, trust, selection, data, recipe, results."""

from datetime import UTC, datetime

from curation.arms import ARMS, TRUST, Draw
from curation.cluster.versions import find_versions
from curation.commands.export.files import is_on_hub
from curation.commands.export.run import Student, Trained
from curation.config import TrustConfig
from curation.config.models import find_student_section
from curation.json_types import Json, JsonView
from curation.refs import ModelRef, TableRef
from curation.report.rules import STOP
from curation.report.tested import collect_trainings, describe_decoding
from curation.stages.chooser import is_ranked_as_reference
from curation.stages.label import Label
from curation.stages.score import Score
from curation.tables import io

METRICS = ("auc", "ece", "brier")


def make_lineage(student: Trained, written: JsonView, command: str) -> Json:
    """Return the content of a student's card; ``evaluation`` is ``None`` if the run has no metrics of the student."""
    generation = student.numbers
    # A further student has base and arms of its own in it; trust, selection and teacher are the generation's.
    further = {} if generation is None else {item["name"]: item for item in generation["students"]}
    results = further.get(student.name, generation)
    own = _find_arm(student, results)
    recipe = find_student_section(student.record.inputs["recipe"]).from_key(student.record.inputs["recipe"])
    settings = recipe.model_dump(mode="json", exclude=recipe.RESOURCES)  # all that the weights depend on
    record: Json = student.record.outputs["training"]
    curves = {k: v for k, v in collect_trainings({student.arm: record})[student.arm]["curves"].items() if k != "step"}
    base = ModelRef.from_json(student.record.inputs["base"])
    return {
        **_describe_origin(student, own, command),
        "student": {
            "stage": student.training,
            "arm": student.arm,
            "words": ARMS[student.arm].words,
            "generation": student.generation,
            "name": student.name or None,
            **written,
        },
        "base": {**base.to_json(), "on_hub": is_on_hub(base)},
        "recipe": {**settings, "seed": student.record.inputs["seed"]},
        "training": {
            "last": {k: next((value for value in reversed(v) if value is not None), None) for k, v in curves.items()},
            "record": record,
        },
        "evaluation": None if own is None else _describe_evaluation(student, generation, results, own),
    }


def describe_rows_lineage(student: Student, num_rows: int, files: Json, command: str) -> Json:
    """Return the content of the card of an arm's rows."""
    generation = student.numbers
    return {
        **_describe_origin(student, _find_arm(student, generation), command),
        "rows": {
            "arm": student.arm,
            "words": ARMS[student.arm].words,
            "generation": student.generation,
            "num_rows": num_rows,
            "num_pool": None if generation is None else generation["num_pool"],
            "right_in_pool": None if generation is None else generation["teacher"]["pool"],
            "files": files,
        },
    }


def _find_arm(student: Student, results: JsonView | None) -> Json | None:
    """Return the metrics of the student's arm, ``None`` without results."""
    return None if results is None else next(item for item in results["arms"] if item["name"] == student.arm)


def stop_lines(lineage: JsonView) -> list[str]:
    """Return a warning if the run's verdict is not to use its rows, else an empty list."""
    verdict = lineage["verdict"]
    if verdict is None or verdict["level"] != STOP:
        return []
    return [f"warning: the run's verdict on the rows of {verdict['arm']}: {verdict['sentence']} The card says so"]


def _describe_origin(student: Student, own: Json | None, command: str) -> Json:
    """Return the origin of the rows of a student's arm; ``own`` has the metrics of the arm."""
    measured, generation, selected = student.measured, student.numbers, student.selecting
    assert selected is not None, "rows that are exported were selected"
    verdict = None if generation is None else generation.get("verdict")
    if generation is not None and verdict is not None:  # None if no arm ranks by trust
        verdict = {"arm": generation["evidence"]["arm"], "level": verdict["level"], "sentence": verdict["sentence"]}
    teacher = {
        "base": student.config.teacher.backend,
        "on_hub": False,
        **dict.fromkeys(("revision", "adapter", "made_by")),
    }
    if (found := selected.inputs["teacher"]) is not None:
        made = next((item for item in student.manifest.stages.values() if item.outputs.get("model") == found), None)
        made_by = None if made is None else {"stage": made.name, "base": made.inputs.get("base")}
        teacher = {**found, "on_hub": is_on_hub(ModelRef.from_json(found)), "made_by": made_by}
    return {
        "format": 1,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "run": {
            "name": student.config.name,
            "directory": str(student.manifest.directory.resolve()),
            "command": None if measured is None else measured["made_by"]["command"],
            "seed": student.config.seed,
        },
        "teacher": teacher,  # with the stage that made it, if it is adapted or an earlier generation's student
        "trust_function": _describe_trust(student, generation),
        "selection": _describe_selection(student, selected.outputs, own),
        "guarantee": _describe_guarantee(student, selected.outputs["budget"], generation),
        "data": _describe_data(student),
        "verdict": verdict,
        "versions": {
            "run": dict(find_versions() if measured is None else measured["made_by"]["versions"]),
            "export": dict(find_versions()),
        },
    }


def _describe_trust(student: Student, generation: Json | None) -> Json | None:
    """Return the function that ranked the rows, with metrics of its discrimination; ``None`` for a draw."""
    arm = ARMS[student.arm]
    if not arm.ranked:
        return None
    trust = TRUST[arm.trust]
    found: Json = {"name": arm.trust, "words": trust.words, "kind": None, "digest": None, "reads": None, "fit": None}
    if (fitted := student.trust) is not None:
        key = fitted.inputs.get("trust")
        settings = {} if key is None else TrustConfig.from_key(key).model_dump(mode="json")
        fit = fitted.outputs.get("fit", {})
        found |= {
            "kind": fit.get("kind", arm.trust),
            "digest": fitted.outputs["trust"]["digest"],
            "reads": [*settings.get("states", ()), *settings.get("columns", ())] or None,
            "fit": fit,
            "settings": settings,
        }
    tables, measured = {} if generation is None else generation["trust"], None
    for rows in ("validation", "pool"):  # on parsed rows, of the pool if it is graded
        functions = tables.get(rows, {}).get("parsed", {}).get("functions", {})
        if arm.trust in functions:
            measured = {"rows": rows, **{name: functions[arm.trust][name] for name in METRICS}}
    return {**found, "measured": measured}


def _describe_selection(student: Student, selected: JsonView, own: Json | None) -> Json:
    arm = ARMS[student.arm]
    return {
        **selected["arms"][student.arm],
        "label_source": "gold" if arm.gold else "weak",
        "is_draw": isinstance(TRUST[arm.trust], Draw),
        "budget": selected["budget"],
        "purity": None if own is None else own["purity"],
        "left_out": count_left_out(student),
        "by_definition": arm.gold,
    }


def count_left_out(student: Student) -> dict[str, int]:
    """Return the number of rows that each feature leaves out of an arm."""
    has_some = is_ranked_as_reference(ARMS[student.arm], student.config.selection)
    tables = student.selecting.inputs["choice"].get("left_out", {}) if student.selecting and has_some else {}
    return {by: io.count(TableRef.from_json(ref)) for by, ref in tables.items()}


def _describe_guarantee(student: Student, budget: JsonView, generation: Json | None) -> Json:
    """Return whether a share of wrong labels is guaranteed, with the guarantee, or the reason against it, in words."""
    if budget["risk"] is None:
        return {"claimed": False, "words": f"none was asked for: the budget's rule is {budget['rule']}"}
    if student.arm != budget["reference"]:
        return {"claimed": False, "words": f"none: it is of the rows of the arm {budget['reference']}, not of these"}
    found = None if generation is None else generation["guarantee"]
    if found is None:
        return {"claimed": False, "words": "not known: no report of the run tells of this student"}
    if not found["claimed"]:
        return {"claimed": False, "words": f"withheld: {found['withheld']}", "text": found["text"]}
    return {"claimed": True, "words": f"{found['text']} (exchangeable rows: {found['exchangeable']})"}


def _describe_data(student: Student) -> Json:
    config, scored = student.config, student.of_generation("pool", Score, Label)
    return {
        "domain": config.domain.model_dump(mode="json"),
        "sources": {
            name: {"path": source.path, "files": student.manifest.files.get(name, [])}
            for name, source in config.sources.items()
        },
        "tables": {name: table.to_json() for name, table in student.splits.items()},
        "labels": None if scored is None else scored.outputs.get("labels"),
    }


def _describe_evaluation(student: Student, generation: Json | None, results: Json | None, own: Json) -> Json:
    """Return the arm's measures, with the results on the test split of the models that it is compared with."""
    assert generation is not None and results is not None, "its arm was found in them"
    arms = {arm["name"]: arm["accuracy"] for arm in results["arms"]}
    evaluation = student.config.evaluation
    return {
        **own,
        "decoding": {"words": describe_decoding(evaluation.decoding), **evaluation.decoding.model_dump(mode="json")},
        "num_runs": evaluation.num_runs,
        "accuracy": {
            "student": own["accuracy"],
            "base": results["base"],
            "teacher": generation["teacher"]["test"],
            "ground truth": None if student.arm == "ground_truth" else arms.get("ground_truth"),
        },
    }
