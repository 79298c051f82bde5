"""Input files become the tables of the splits."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from curation.config import RowsConfig
from curation.rundir.graph import Built, Done
from curation.rundir.run import Task

if TYPE_CHECKING:
    from curation.sources import SourceFile


def preparing(
    rows: RowsConfig, files: Mapping[str, Sequence["SourceFile"]], *, settings: Mapping[str, Any], num_rows: int | None
) -> Built:
    """All splits, from ``files`` by source."""
    described = {name: [file.to_json() for file in items] for name, items in files.items()}
    inputs = {"config": rows, "files": described}
    return Built(name="prepare", work=prepare, inputs=inputs, settings=settings, num_rows=num_rows)


def prepare(
    task: Task,
    *,
    config: RowsConfig,
    files: Mapping[str, Any],
    commit_seconds: float,
    fragment_mb: int,
    max_error_rate: float,
) -> Done:
    """Deal the rows of the files to the splits."""
    from curation.sources import SourceFile
    from curation.stages.prepare import prepare as prepare_stage
    from curation.stages.usable import told

    known = {name: [SourceFile.from_json(item) for item in items] for name, items in files.items()}
    with task.progress() as update:
        prepared = prepare_stage(
            config,
            task.directory,
            known,
            commit_seconds=commit_seconds,
            fragment_mb=fragment_mb,
            max_error_rate=max_error_rate,
            guard=task.guard,
            progress=update,
        )
    for sentence in [*told(prepared.counts), *prepared.overlap.told()]:
        task.say(sentence)
    return Done(outputs=prepared.to_json(), rows=sum(counts.rows for counts in prepared.counts.values()))
