"""The stages of a filter that rank the rows that pass and write them, a round at a time."""

from collections.abc import Mapping, Sequence
from typing import Any

from curation.config.filter import FilterConfig, Format
from curation.refs import TableRef, fingerprint
from curation.rundir.graph import Built, Done, Stage
from curation.rundir.run import Task
from curation.stages.cut import Threshold
from curation.stages.pool import PoolRows
from curation.stages.ranking import rank_rows
from curation.stages.write import WriteJob, write_rows
from curation.storage.paths import place
from curation.tables import io, schemas


def ranking(
    config: FilterConfig, function: str, labelled: Mapping[str, Stage], base: Sequence[str], cut: Built
) -> Built:
    """The stage that ranks the rows of which the ``cut`` was made: those of the rounds ``base`` that pass."""
    return Built(
        name="rank",
        work=rank_all,
        inputs={
            "tables": [labelled[name].out("labels") for name in base],
            "rounds": list(base),
            "threshold": cut.value("threshold"),
            "function": function,
            "seed": config.seed,
        },
    )


def writing(
    config: FilterConfig,
    function: str,
    name: str,
    rows: PoolRows,
    pool: Built,
    labelled: Stage,
    cut: Built,
    rank: Built | None,
) -> Built:
    """The stage that writes a round; ``rank``: the one that has ranked it, if any."""
    return Built(
        name=f"write-{name}",
        work=write,
        inputs={
            "labels": labelled.out("labels"),
            "examples": pool.table("pool"),
            "threshold": cut.value("threshold"),
            "cut": cut.value("id"),
            "form": config.output.format,
            "rows_per_file": config.output.rows_per_file,
            "partition_by": list(config.output.partition_by),
            "with_rank": config.output.rank,
            "ranks": None if rank is None else rank.table("ranks"),
            "first_rank": 0 if rank is None else rank.value("starts", name),
        },
        settings={
            "rows": rows,
            "function": function,
            "output": str(config.output_directory / "data"),
            "commit_seconds": config.commit_seconds,
        },
    )


def rank_all(
    task: Task,
    *,
    tables: Sequence[TableRef],
    rounds: Sequence[str],
    threshold: dict[str, Any],
    function: str,
    seed: int,
) -> Done:
    """Rank the rows that pass."""
    uri = str(task.directory / "ranks.lance")
    found = rank_rows(tables, Threshold.from_json(threshold), function, uri, seed=seed)
    starts = dict(zip(rounds, found.starts, strict=True))
    return Done(outputs={"ranks": found.table.to_json(), "starts": starts}, rows=io.count(found.table))


def write(
    task: Task,
    *,
    labels: TableRef,
    examples: TableRef,
    threshold: dict[str, Any],
    cut: str,
    form: Format,
    rows_per_file: int,
    partition_by: Sequence[str],
    with_rank: bool,
    ranks: TableRef | None,
    first_rank: int,
    rows: PoolRows,
    function: str,
    output: str,
    commit_seconds: float,
) -> Done:
    """Write the rows of a round that pass."""
    # Files of a round carry its own digest; a Lance table takes all rounds of a cut.
    table = fingerprint([cut, rows_per_file, rows.columns, with_rank])[:8]
    stem = f"rows-{table}" if form == "lance" else f"part-{task.directory.name[-8:]}"
    job = WriteJob(
        labels=labels,
        examples=examples,
        rows=rows,
        threshold=Threshold.from_json(threshold),
        trust=schemas.trust_column(function),
        output=output,
        stem=stem,
        form=form,
        partition_by=tuple(partition_by),
        with_rank=with_rank,
        ranks=ranks,
    )
    place(output).mkdir(parents=True, exist_ok=True)
    with task.progress() as update:
        files = write_rows(
            job,
            task.directory / "notes",
            rows_per_file=rows_per_file,
            first_rank=first_rank,
            commit_seconds=commit_seconds,
            guard=task.guard,
            progress=update,
        )
    return Done(outputs={"files": files, "columns": job.columns.names}, rows=sum(file["rows"] for file in files))
