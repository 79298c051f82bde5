"""Finds the rows that an arm of a run selected, by configuration and manifest alone."""

from curation.commands.export.run import choose_arm
from curation.commands.export.student import Student
from curation.config import RunConfig
from curation.errors import ExportError
from curation.refs import TableRef
from curation.rundir.manifest import Manifest
from curation.stages.selected import WritePreferences


def find_selection(config: RunConfig, manifest: Manifest, arm: str | None, generation: int) -> tuple[Student, TableRef]:
    """Return the student, trained or not, of an arm and the table of the arm's rows.

    The table has the schema ``schemas.SELECTION``, or ``schemas.PREFERENCES`` for pairs once these are written.

    Raises:
        ExportError: the run has no such arm, the arm dropped out, or its rows are not selected yet.
    """
    directory, arm = manifest.directory, choose_arm(config, arm, "give one of them")
    student = Student(config=config, manifest=manifest, arm=arm, generation=generation)
    selected = student.selecting
    outputs = {} if selected is None else selected.outputs
    if (why := (outputs.get("dropped") or {}).get(arm)) is not None:
        raise ExportError(f"{directory}: the arm {arm} dropped out of generation {generation}: {why}; take another arm")
    if (made := (outputs.get("arms") or {}).get(arm)) is None:
        raise ExportError(
            f"{directory}: no rows of the arm {arm} yet, stage {student.home}/select is not done; "
            f"`curate run {directory}` goes on with it"
        )
    pairs = student.of_generation("pool", WritePreferences)
    if pairs is not None and pairs.inputs["selected"].get(arm) == made["table"]:
        made = pairs.outputs["arms"][arm]
    return student, TableRef.from_json(made["table"])
