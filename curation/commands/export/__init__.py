"""Exports: a student as a folder with card and lineage, and a trust function as a package (``trust``)."""

from curation.commands.export.card import format_card
from curation.commands.export.files import write_folder, write_model
from curation.commands.export.lineage import make_lineage, stop_lines
from curation.commands.export.student import find_student
from curation.storage.paths import Place

__all__ = ["export_student"]


def export_student(
    run: Place,
    output: Place,
    *,
    arm: str | None,
    generation: int | None,
    student: str | None = None,
    merged: bool,
    force: bool,
    command: str,
) -> list[str]:
    """Write a student of a run to a folder; return sentences on what was written, and warnings.

    Args:
        run: a run directory.
        output: the folder, which must be empty or missing, or with ``force`` hold an earlier export.
        arm: the arm on whose rows the student was trained; by default ``trust`` or the only one.
        generation: the student's generation; by default the last one.
        student: a further student's name; by default the one that teaches the next generation.
        merged: write full weights if the student is an adapter.
        force: replace an earlier export.
        command: the command line, for the card.

    Raises:
        ExportError: there is no such student, the student is not trained, or ``output`` is taken or cannot be written.
        ModelError: the base does not load.
    """
    found = find_student(run, arm, generation, student)
    with write_folder(output, force=force) as folder:
        written = write_model(found, folder, output, merged=merged)
        lineage = make_lineage(found, written, command)
        folder.describe(lineage, format_card(lineage))
    words = [f"{output}: {written.kind} of {found.stage} of {found.run}, with README.md and lineage.json"]
    if lineage["evaluation"] is None:
        words.append(
            f"warning: {run} has no numbers of this student, so the card has no test accuracy, purity or "
            "trust metrics; when `curate run` has ended, export again with --force"
        )
    return words + stop_lines(lineage)
