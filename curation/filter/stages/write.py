"""Writes the rows of a labels table that pass a threshold, with their prompts, as files of equal numbers of rows.

Ray tasks first count the rows of each fragment that pass; then each task writes one file (:mod:`.parts`). File names
follow from the stage's inputs and the number of the part, files are written atomically, and a note beside the stage's
other records marks a finished part: a repeated task writes the same file again, and a driver that resumes skips parts
with a note. A part of a Lance table is one fragment, which the driver commits (:mod:`curation.tables.commits`), so its
first row id shows whether it is committed.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import ray
import ray.exceptions

from curation.config.filter import Format
from curation.errors import CommitError
from curation.filter.stages.cut import ThresholdCut
from curation.filter.stages.parts import (
    FilePart,
    WriteJob,
    check_number,
    count_rows,
    divide,
    write_part,
    write_part_as_fragment,
)
from curation.filter.stages.pool import PoolRows
from curation.json_types import Json
from curation.refs import TableRef, fingerprint
from curation.rundir.graph import Done, In, Stage, setting
from curation.rundir.run import Task
from curation.storage.lease import Guard, guard_nothing
from curation.storage.paths import Place, to_place, write_atomically
from curation.tables import commits, io, schemas
from curation.tables.files import WrittenFile
from curation.tables.stream import CommitRound, commit_stream
from curation.tasks import make_driver_error, run_in_tasks
from curation.telemetry.standing import Standing, Update


class Write(Stage):
    """A stage that writes the rows of a round that pass."""

    class Made(NamedTuple):
        files: list[Json]
        columns: list[str]

    labels: In[TableRef]
    examples: In[TableRef]
    threshold: In[Json]
    cut: In[str]
    form: Format
    rows_per_file: int
    partition_by: list[str]
    with_rank: bool
    ranks: In[TableRef | None]
    first_rank: In[int]
    """Position of the round's first row in the ranks."""
    rows: PoolRows = setting()
    function: str = setting()
    output: str = setting()
    commit_seconds: float = setting()

    def run(self, task: Task) -> Done:
        """Write the rows."""
        # Files of a round carry its own digest; a Lance table takes all rounds of a cut.
        table = fingerprint([self.cut, self.rows_per_file, self.rows.columns, self.with_rank])[:8]
        stem = f"rows-{table}" if self.form == "lance" else f"part-{task.directory.name[-8:]}"
        job = WriteJob(
            labels=self.labels,
            examples=self.examples,
            rows=self.rows,
            threshold=ThresholdCut.from_json(self.threshold),
            trust=schemas.trust_column(self.function),
            output=self.output,
            stem=stem,
            form=self.form,
            rows_per_file=self.rows_per_file,
            partition_by=tuple(self.partition_by),
            with_rank=self.with_rank,
            ranks=self.ranks,
            first_rank=self.first_rank,
            commit_seconds=self.commit_seconds,
        )
        to_place(self.output).mkdir(parents=True, exist_ok=True)
        with task.progress() as update:
            files = write_rows(job, task.directory / "notes", guard=task.guard, progress=update)
        return Done(outputs=self.Made(files=files, columns=job.columns.names), rows=sum(file["rows"] for file in files))


def write_rows(
    job: WriteJob, notes: Place, *, guard: Guard = guard_nothing, progress: Update | None = None
) -> list[Json]:
    """Write the rows that pass and are not written yet; return all files as JSON.

    Files have ``path``, ``rows``, ``bytes`` and ``sha256``; a Lance table has its ``version`` instead of the last two.

    Raises:
        ConfigError: the columns to partition by have too many values, or one that is too long.
        CommitError: the store refused, or the numbers of rows that pass and of rows written differ.
        RunFailedError: Ray gave up.
    """
    try:
        shared = ray.put(job)
        fragments = [fragment.fragment_id for fragment in io.open_table(job.labels).get_fragments()]
        counts = list(run_in_tasks(count_rows, zip(fragments, itertools.repeat(shared))))
        check_number(folders := sorted({folder for found in counts for folder in found}))
        parts: list[FilePart] = []
        for folder in folders:
            of_folder = [(fragment, found[folder]) for fragment, found in zip(fragments, counts, strict=True)]
            parts += divide(of_folder, job.rows_per_file, folder=folder, number=len(parts))
        totals = [found.total() for found in counts]
        starts = itertools.accumulate([job.first_rank, *totals])
        job = replace(job, starts=dict(zip(fragments, starts, strict=False)))

        def update(rows: int) -> None:
            if progress is not None:
                progress(Standing(rows=rows, total=sum(totals)))

        if not parts:
            return []
        if job.form == "lance":
            return [_write_table(job, parts, update, guard=guard)]
        return _write_files(job, parts, notes, update, guard=guard)
    except ray.exceptions.RayError as error:
        raise make_driver_error(error, "writing") from error


def _write_files(
    job: WriteJob, parts: Sequence[FilePart], notes: Place, update: Callable[[int], None], *, guard: Guard
) -> list[Json]:
    noted = {path.name for path in notes.iterdir()} if notes.is_dir() else set()
    there = set(iter_data_files(to_place(job.output)))  # a file that a later cut removed has a note still
    done: dict[int, WrittenFile] = {}
    for part in parts:
        if (name := f"{part.number:05}.json") in noted:
            written = WrittenFile(**json.loads((notes / name).read_text()))
            if written.path in there:
                done[part.number] = written
    num_written = sum(written.rows for written in done.values())
    update(num_written)
    left = [part for part in parts if part.number not in done]
    for part, written in zip(left, run_in_tasks(write_part, zip(left, itertools.repeat(ray.put(job)))), strict=True):
        if written.rows != part.num_rows:
            raise CommitError(f"{job.output}/{written.path}: {part.num_rows} rows in, {written.rows} rows out")
        guard()
        write_atomically(notes / f"{part.number:05}.json", json.dumps(written.to_json()))
        done[part.number] = written
        num_written += written.rows
        update(num_written)
    return [done[part.number].to_json() for part in parts]


def _write_table(job: WriteJob, parts: Sequence[FilePart], update: Callable[[int], None], *, guard: Guard) -> Json:
    io.create(job.table_uri, job.schema)
    committer = commits.Committer(job.table_uri, guard)
    done = ray.put(committer.done.serialize())
    before, total = _count_committed(job), sum(part.num_rows for part in parts)
    update(before)

    def committed(done: CommitRound) -> None:
        update(before + sum(done.rows.values()))

    written = run_in_tasks(write_part_as_fragment, zip(parts, itertools.repeat(ray.put(job)), itertools.repeat(done)))
    commit_stream(written, [committer], seconds=job.commit_seconds, guard=guard, on_commit=committed)
    if (found := _count_committed(job)) != total:
        raise CommitError(f"{job.table_uri}: {total} rows pass, {found} are written")
    return {"path": f"{job.stem}.lance", "rows": total, "version": io.find_latest(job.table_uri).version}


def _count_committed(job: WriteJob) -> int:
    """Return the number of committed rows of the job's files, which have consecutive numbers."""
    first, last = job.rows.files[0].index, job.rows.files[-1].index
    within = f"row_id >= {first << schemas.FILE_SHIFT} AND row_id < {(last + 1) << schemas.FILE_SHIFT}"
    return io.count(io.find_latest(job.table_uri), filter=within)


def iter_data_files(folder: Place, within: str = "") -> Iterator[str]:
    """Yield the relative paths of the files and tables in an output's data folder and in its partitions."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if "=" in path.name:
            yield from iter_data_files(path, f"{within}{path.name}/")
        else:
            yield f"{within}{path.name}"
