"""Which rows taught a student: how many, the files that hold them, and the first ones."""

from curation.arms import REFERENCE_ARM
from curation.commands.explain.recorded import RecordedRun
from curation.commands.export.run import read_run
from curation.commands.export.student import find_student, students_of
from curation.errors import TableError
from curation.json_types import Json
from curation.refs import TableRef
from curation.storage.paths import Place
from curation.tables import io

COLUMNS = ["row_id", "rank", "trust", "prompt", "completion", "label", "label_source"]


def explain_student(run: Place, student: str, generation: int | None, num_rows: int) -> Json:
    """The rows that taught a student, as JSON; ``student`` is an arm or the name of the stage that trained it.

    Raises:
        ExportError: the directory is no run, or has no such student.
        TableError: the stage's name and the generation contradict each other.
    """
    arm, name = student or REFERENCE_ARM, None
    named = next((item for item in students_of(*read_run(run)) if item.stage == student), None)
    if named is not None:
        if generation not in (None, named.generation):
            raise TableError(
                f"--student {student}: is of generation {named.generation}, not {generation}; leave --generation out"
            )
        arm, generation, name = named.arm, named.generation, named.name or None
    found = find_student(run, arm, generation, name)
    recorded = RecordedRun.of(run)
    selected = found.selecting
    assert selected is not None, "find_student compares the digest of its rows"
    made = selected.outputs["arms"][found.arm]
    table = TableRef.from_json(made["table"])
    first = io.read(table, columns=COLUMNS, filter=f"rank < {num_rows}").sort_by("rank").to_pylist()
    training = found.record.outputs["training"]
    return {
        "student": found.stage,
        "arm": found.arm,
        "generation": found.generation,
        "base": found.base.to_json(),
        "model": found.model.to_json(),
        "teacher": selected.inputs["teacher"],
        "num_rows": made["num_rows"],
        "rows_trained": training["num_rows"],
        "rows_dropped": training["num_dropped"],
        "epochs": training["num_epochs"],
        "digest": made["digest"],
        "table": table.to_json(),
        "files": {kind: made[kind] for kind in ("parquet", "jsonl")},
        "read_all": f"curate inspect {run} {found.home}/select/{found.arm} --rows {made['num_rows']}",
        "rows": [{**row, "origin": recorded.origin(row["row_id"], "pool")} for row in first],
    }
