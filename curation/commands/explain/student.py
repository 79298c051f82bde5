"""Which rows taught a student: how many, the files that hold them, and the first ones."""

import re

from curation.arms import REFERENCE_ARM
from curation.commands.explain.recorded import Json, RecordedRun
from curation.commands.export.student import find_student
from curation.errors import TableError
from curation.storage.paths import Place
from curation.tables import io

STAGE = re.compile(r"gen-(\d+)/student-(.+)")
COLUMNS = ["row_id", "rank", "trust", "prompt", "completion", "label", "label_source"]


def explain_student(run: Place, student: str, generation: int | None, num_rows: int) -> Json:
    """The rows that taught a student, as JSON; ``student`` is an arm or the name of the stage that trained it.

    Raises:
        ExportError: the directory is no run, or has no such student.
        TableError: the stage's name and the generation contradict each other.
    """
    if (match := STAGE.fullmatch(student)) is not None:
        if generation is not None and generation != int(match[1]):
            raise TableError(
                f"--student {student}: is of generation {match[1]}, not {generation}; leave --generation out"
            )
        student, generation = match[2], int(match[1])
    found = find_student(run, student or REFERENCE_ARM, generation)
    recorded = RecordedRun.of(run)
    selected = found.of_generation("select")
    assert selected is not None, "find_student compares the digest of its rows"
    made = selected.outputs["arms"][found.arm]
    table = recorded.table(made["table"])
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
        "files": {kind: recorded.path(made[kind]) for kind in ("parquet", "jsonl")},
        "read_all": f"curate inspect {run} gen-{found.generation}/select/{found.arm} --rows {made['num_rows']}",
        "rows": [{**row, "origin": recorded.origin(row["row_id"], "pool")} for row in first],
    }
