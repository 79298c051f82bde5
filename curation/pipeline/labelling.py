"""A model's answers to a split: labels of a generation's teacher, and what models say to the test split."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from curation.config import AskConfig, DecodingConfig, DomainConfig
from curation.pipeline.asking import Asked, Running, pass_of, passing, whole
from curation.refs import ModelRef, ProjectionRef, TableRef, TrustRef, fingerprint
from curation.rundir.graph import Built, Done, Out, Table
from curation.rundir.run import Task
from curation.storage.paths import Place

if TYPE_CHECKING:
    from curation.stages.asks import Ask
    from curation.stages.first_cut import Cut
    from curation.stages.reduce import Reduction


LABEL_REVISION = 2
"""Of the stages that do :func:`label`, in runs and filters; 2: labels have margin, entropy and their like."""


def labelling(
    name: str,
    *,
    examples: Table,
    asked: Asked,
    decoding: DecodingConfig,
    domain: DomainConfig,
    seed: int,
    rows: int | None,
    settings: Mapping[str, Any],
    share: Mapping[str, int] | None = None,
    projection: Out | None = None,
    fitted: Mapping[str, Out] | None = None,
    sample: Mapping[str, Any] | None = None,
    signals: Mapping[str, Mapping[str, Any]] | None = None,
    asks_teacher: bool = False,
    needs: Sequence[Out] = (),
) -> Built:
    """The answers of a model to the examples of a split, or to its ``share`` of them.

    With all hidden states; with their ``projection`` instead; or with the scores of ``fitted`` trust functions instead,
    and the ``states`` of a ``sample`` by ``seed``. ``signals`` ask the same model: they are measured as the rows are
    labelled, for their own stages to find.
    """
    inputs = {
        "examples": examples,
        "domain": domain,
        "decoding": decoding,
        "seed": seed,
        "share": share,
        "projection": projection,
        "fitted": fitted,
        "sample": sample,
    }
    settings = {**settings, "signals": signals or {}}
    return asked.stage(
        name,
        label,
        inputs,
        settings=settings,
        rows=rows,
        asks_teacher=asks_teacher,
        needs=needs,
        revision=LABEL_REVISION,
    )


def label(
    task: Task,
    *,
    examples: TableRef,
    model: ModelRef | None,
    ask: AskConfig,
    backend: str,
    running: Running,
    domain: DomainConfig,
    decoding: DecodingConfig,
    seed: int,
    share: Mapping[str, int] | None,
    projection: ProjectionRef | None,
    fitted: Mapping[str, TrustRef] | None,
    sample: Mapping[str, Any] | None,
    signals: Mapping[str, Mapping[str, Any]],
    commit_seconds: float,
    fragment_mb: int,
    first_cut: "Cut | None" = None,
) -> Done:
    """Label the rows that are not labelled yet, and count; rows that a first cut drops are not answered."""
    from curation.stages.label import Share, count_labels
    from curation.stages.label import label as label_stage
    from curation.stages.label_chunks import LabelJob
    from curation.tables import io
    from curation.tables.compaction import compact
    from curation.teachers import width

    teacher, part = whole(ask, backend, running, decoding), Share(**(share or {}))
    with passing(task, backend, running, commit_seconds) as (engine, how):
        job = LabelJob(
            examples=examples,
            labels_uri=str(task.directory / "labels.lance"),
            domain=domain,
            teacher=teacher,
            engine=engine,
            model=model,
            decoding=decoding,
            seed=seed,
            reduction=_reduction(projection, fitted, sample, num_rows=io.count(examples) // part.of),
            asks=tuple(ask_of(signal, **how, directory=task.directory) for signal, how in signals.items()),
            told=task.telemetry,
            first_cut=first_cut,
        )
        result = label_stage(job, state_size=width(teacher, model), share=part, **how)
    table = compact(result.table, fragment_mb, guard=task.guard)
    counts = count_labels(table)
    if first_cut is not None:
        task.say(f"first cut: {counts.first_cut}")
    outputs = {
        "labels": table.to_json(),
        "counts": asdict(counts),
        "pass": pass_of(result, backend, model),
    }
    return Done(outputs=outputs, rows=counts.rows)


def ask_of(signal: str, *, seed: int, options: Mapping[str, Any], shots: TableRef | None, directory: Place) -> "Ask":
    """A signal whose values are to stand in ``directory``, by a name that tells other settings apart."""
    from curation.stages.asks import Ask
    from curation.tables import io

    told = {"options": options, "shots": None if shots is None else shots.to_json(), "seed": seed}
    name = f"{signal}-{fingerprint(told)[:8]}.lance"
    if shots is not None:
        options = {**options, "shots": io.read(shots, filter="error IS NULL").to_pylist()}
    return Ask(signal=signal, options=options, seed=seed, uri=str(directory / name))


def _reduction(
    projection: ProjectionRef | None,
    fitted: Mapping[str, TrustRef] | None,
    sample: Mapping[str, Any] | None,
    *,
    num_rows: int,
) -> "Reduction | None":
    from curation.stages.reduce import Projected, ScoredOnly

    if projection is not None:
        return Projected(projection=projection)
    if fitted is None or sample is None:
        return None
    return ScoredOnly(
        fitted=tuple(fitted.items()), states=tuple(sample["states"]), num_rows=num_rows, seed=sample["seed"]
    )
