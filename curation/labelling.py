"""A model's answers to a split: labels of a generation's teacher, and what models say to the test split.

Each function here is one stage: what it reads and how it is done, handed to :meth:`curation.runs.Run.stage`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from curation import models, progress, store
from curation.backends import identity, own_teacher
from curation.compaction import compact
from curation.config import DecodingConfig, TeacherConfig
from curation.hashing import derive
from curation.measuring import ask
from curation.places import Place
from curation.refs import ModelRef, ProjectionRef, TableRef, TrustRef
from curation.runs import Done, Generation, Run
from curation.signals import ASK_AGAIN

if TYPE_CHECKING:
    from curation.stages.label import Share
    from curation.stages.reduce import Reduction


def label(
    run: Run,
    generation: Generation,
    split: str,
    *,
    signals: Sequence[str] = (),
    projection: ProjectionRef | None = None,
    fitted: Mapping[str, TrustRef] | None = None,
) -> TableRef:
    """The teacher's labels of a split; of the pool those of the generation's share.

    With all states; with their ``projection`` instead; or with the scores of ``fitted`` trust functions instead.
    Those of ``signals`` that ask the teacher again are measured as the rows are labelled, for :func:`signal` to find.
    """
    from curation.stages.label import Share
    from curation.stages.reduce import Projected, Reduction, ScoredOnly

    share = Share()
    if split == "pool" and generation.num_shares > 1:
        share = Share(index=generation.index, of=generation.num_shares, seed=derive(run.config.seed, "share"))
    reduction: Reduction | None = None if projection is None else Projected(projection=projection)
    if fitted is not None:
        reduction = ScoredOnly(
            fitted=tuple(fitted.items()),
            states=run.config.trust.states,
            num_rows=store.count(generation.tables[split]) // share.of,
            seed=run.config.seed,
        )
    teacher = own_teacher(run, generation)
    return _complete(
        run,
        generation,
        f"label-{split}",
        split,
        generation.teacher,
        teacher,
        teacher.decoding,
        share=share,
        reduction=reduction,
        signals=signals,
    )


def answer(run: Run, generation: Generation, stage: str, model: ModelRef | None, teacher: TeacherConfig) -> TableRef:
    """A model's answers to the test split, asked as ``teacher`` says."""
    evaluation = run.config.evaluation
    changes: dict[str, Any] = {"states": (), "chat_template": evaluation.chat_template}
    if model is not None and teacher.backend == "scripted":
        changes["backend"] = "transformers"
    return _complete(run, generation, stage, "test", model, teacher.model_copy(update=changes), evaluation.decoding)


def _complete(
    run: Run,
    generation: Generation,
    stage: str,
    split: str,
    model: ModelRef | None,
    teacher: TeacherConfig,
    decoding: DecodingConfig,
    *,
    share: "Share | None" = None,
    reduction: "Reduction | None" = None,
    signals: Sequence[str] = (),
) -> TableRef:
    from curation.stages.label import Share, count_labels
    from curation.stages.label import label as label_stage
    from curation.stages.label_actor import LabelJob

    name, share = generation.name(stage), share or Share()
    job = LabelJob(
        examples=generation.tables[split],
        labels_uri="",
        domain=run.config.domain_of(split),
        teacher=teacher,
        model=model,
        decoding=decoding,
        seed=derive(run.config.seed, name),
        reduction=reduction,
        told=run.telemetry(name),
    )
    inputs = {
        "examples": job.examples.to_json(),
        "model": None if model is None else model.to_json(),
        "domain": job.domain.model_dump(mode="json"),
        "teacher": identity(teacher),
        "decoding": decoding.model_dump(mode="json"),
        "seed": job.seed,
        "share": asdict(share),
        **({} if reduction is None else reduction.to_json()),
    }

    def work(directory: Place) -> Done:
        asks = tuple(ask(run, generation, signal, split, directory) for signal in signals if signal in ASK_AGAIN)
        with progress.bar(name) as shown:
            result = label_stage(
                replace(job, labels_uri=str(directory / "labels.lance"), asks=asks),
                state_size=teacher.scripted.state_size if model is None else models.state_size(model, teacher.states),
                share=share,
                commit_seconds=run.config.commit_seconds,
                progress=run.progress(name, shown),
            )
        table = compact(result.table, run.config.fragment_mb)
        counts = count_labels(table)
        outputs = {
            "labels": table.to_json(),
            "counts": asdict(counts),
            "pass": {
                "backend": teacher.backend,
                "rows": result.rows,
                "seconds": result.seconds,
                "deaths": result.deaths,
                "teachers": result.teachers,
            },
        }
        return Done(outputs=outputs, rows=counts.rows)

    return TableRef.from_json(run.stage(name, inputs, work)["labels"])
