"""One generation: a teacher labels, a trust function is fitted and scores, arms select, students learn and are tested.

Each function here is one stage: what it reads and how it is done, handed to :meth:`curation.runs.Run.stage`.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from curation import models, progress, report
from curation.config import DecodingConfig, ModelConfig, SftConfig, TeacherConfig, TrainSection
from curation.domains import get_domain
from curation.hashing import derive
from curation.refs import ModelRef, TableRef, TrustRef
from curation.runs import Done, Run, say


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What a generation works with."""

    index: int
    teacher: ModelRef | None
    tables: dict[str, TableRef]
    num_shares: int

    def name(self, stage: str) -> str:
        """The name of one of its stages, e.g. ``gen-0/select``."""
        return f"gen-{self.index}/{stage}"


def base_model(run: Run, model: ModelConfig, name: str) -> ModelRef:
    """Resolve a model; one that is to come from scratch is made by the stage ``name``."""
    if model.path is not None:
        return models.resolve(model.path, model.revision, model.adapter)
    init = model.init
    assert init is not None, "ModelConfig takes one of path and init"
    seed = derive(run.config.seed, name)

    def work(directory: Path) -> Done:
        vocabulary = get_domain(run.config.domain).vocabulary()
        ref = models.create(
            directory,
            family=init.family,
            shape=init.shape(),
            words=vocabulary.words,
            pattern=vocabulary.pattern,
            seed=seed,
        )
        return Done(outputs={"model": ref.to_json()}, rows=0)

    inputs = {"init": init.model_dump(mode="json"), "domain": run.config.domain, "seed": seed}
    return ModelRef.from_json(run.stage(name, inputs, work)["model"])


def run_generation(run: Run, generation: Generation) -> tuple[report.GenerationRecord, dict[str, ModelRef]]:
    """Label, fit, score, select, train and test; the record for the report and the students by arm."""
    config = run.config
    labels = {split: _label(run, generation, split, share=split == "pool") for split in ("source", "pool")}
    trust = _fit(run, generation, labels["source"])
    scored = {split: _score(run, generation, split, labels[split], trust) for split in ("source", "pool")}
    n, selected = _select(run, generation, scored["pool"])
    selections = {arm: TableRef.from_json(item["table"]) for arm, item in selected.items()}
    students: dict[str, ModelRef] = {}
    evaluations: dict[str, TableRef] = {}
    base: ModelRef | None = None
    if config.generations:
        base = base_model(run, config.generations[generation.index].student, generation.name("student-base"))
        for arm, selection in selections.items():
            name, digest = generation.name(f"student-{arm}"), selected[arm]["digest"]
            students[arm] = train_model(run, name, base, config.student, selection, digest)
        plain = config.teacher.model_copy(update={"states": ()})
        student = plain if plain.backend != "scripted" else plain.model_copy(update={"backend": "transformers"})
        evaluations["base"] = _test(run, generation, "base", base, student)
        evaluations["teacher"] = _test(run, generation, "teacher", generation.teacher, plain)
        for arm, model in students.items():
            evaluations[arm] = _test(run, generation, arm, model, student)
    record = report.GenerationRecord(
        index=generation.index,
        teacher=generation.teacher,
        student_base=base,
        labels_source=scored["source"],
        labels_pool=scored["pool"],
        trust=trust,
        selections=selections,
        n=n,
        budget_is_oracle=config.selection.budget.oracle,
        evaluations=evaluations,
        label_counts={
            split: run.manifest.stages[generation.name(f"label-{split}")].outputs["counts"]
            for split in ("source", "pool")
        },
    )
    return record, students


def _label(run: Run, generation: Generation, split: str, *, share: bool) -> TableRef:
    from curation.stages.label import Share

    part = Share()
    if share and generation.num_shares > 1:
        part = Share(index=generation.index, of=generation.num_shares, seed=derive(run.config.seed, "share"))
    return _complete(
        run,
        generation.name(f"label-{split}"),
        generation.tables[split],
        generation.teacher,
        run.config.teacher,
        run.config.teacher.decoding,
        part,
    )


def _test(run: Run, generation: Generation, name: str, model: ModelRef | None, teacher: TeacherConfig) -> TableRef:
    from curation.stages.label import Share

    return _complete(
        run,
        generation.name(f"test-{name}"),
        generation.tables["test"],
        model,
        teacher,
        run.config.evaluation.decoding,
        Share(),
    )


def _complete(
    run: Run,
    name: str,
    examples: TableRef,
    model: ModelRef | None,
    teacher: TeacherConfig,
    decoding: DecodingConfig,
    share: Any,
) -> TableRef:
    """Label a table with a model: the label stage of a teacher, and the test of a student."""
    from curation.stages.label import count_labels, label
    from curation.stages.label_actor import LabelJob

    job = LabelJob(
        examples=examples,
        labels_uri="",
        domain=run.config.domain,
        teacher=teacher,
        model=model,
        decoding=decoding,
        seed=derive(run.config.seed, name),
    )
    # How rows are spread over actors changes nothing in the labels.
    what = teacher.model_dump(
        mode="json", exclude={"model", "adapt", "decoding", "actors", "chunk_rows", "max_error_rate"}
    )
    inputs = {
        "examples": examples.to_json(),
        "model": None if model is None else model.to_json(),
        "domain": job.domain,
        "teacher": what,
        "decoding": decoding.model_dump(mode="json"),
        "seed": job.seed,
        "share": asdict(share),
    }

    def work(directory: Path) -> Done:
        with progress.bar(name) as shown:

            def update(done: int, total: int) -> None:
                shown(done, total)
                run.manifest.event("progress", stage=name, rows=done, total=total)

            ref = label(
                replace(job, labels_uri=str(directory / "labels.lance")),
                state_size=teacher.scripted.state_size if model is None else models.state_size(model),
                share=share,
                commit_seconds=run.config.commit_seconds,
                progress=update,
            )
        counts = count_labels(ref)
        return Done(outputs={"labels": ref.to_json(), "counts": asdict(counts)}, rows=counts.rows)

    return TableRef.from_json(run.stage(name, inputs, work)["labels"])


def _fit(run: Run, generation: Generation, labels: TableRef) -> TrustRef:
    config, gold = run.config, generation.tables["source"]
    inputs = {
        "labels": labels.to_json(),
        "gold": gold.to_json(),
        "domain": config.domain,
        "trust": config.trust.model_dump(mode="json", exclude=TrainSection.RESOURCES),
        "seed": config.seed,
    }

    def work(directory: Path) -> Done:
        from curation import store
        from train.trust import fit_trust

        trust = fit_trust(labels, gold, get_domain(config.domain), config.trust, seed=config.seed, output=directory)
        return Done(outputs={"trust": trust.to_json()}, rows=store.count(labels))

    return TrustRef.from_json(run.stage(generation.name("trust"), inputs, work)["trust"])


def _score(run: Run, generation: Generation, split: str, labels: TableRef, trust: TrustRef) -> TableRef:
    def work(directory: Path) -> Done:
        from curation import store
        from curation.stages.score import score

        scored = score(labels, trust)
        return Done(outputs={"labels": scored.to_json()}, rows=store.count(scored))

    inputs = {"labels": labels.to_json(), "trust": trust.to_json()}
    return TableRef.from_json(run.stage(generation.name(f"score-{split}"), inputs, work)["labels"])


def _select(run: Run, generation: Generation, labels: TableRef) -> tuple[int, dict[str, dict[str, Any]]]:
    """The budget, and each arm's ``Selection`` as JSON."""
    config, tables = run.config, generation.tables
    inputs = {
        "pool": tables["pool"].to_json(),
        "labels": labels.to_json(),
        "audit": tables["audit"].to_json() if "audit" in tables else None,
        "domain": config.domain,
        "selection": config.selection.model_dump(mode="json"),
        "seed": config.seed,
    }

    def work(directory: Path) -> Done:
        from curation.stages.select import SelectJob, select

        job = SelectJob(
            pool=tables["pool"],
            labels=labels,
            audit=tables.get("audit"),
            domain=config.domain,
            selection=config.selection,
            teacher=generation.teacher,
            generation=generation.index,
            seed=config.seed,
        )
        n, selections = select(job, directory)
        arms = {selection.arm: asdict(selection) for selection in selections}
        return Done(outputs={"n": n, "arms": arms}, rows=sum(selection.num_rows for selection in selections))

    outputs = run.stage(generation.name("select"), inputs, work)
    return outputs["n"], outputs["arms"]


def train_model(
    run: Run, name: str, base: ModelRef, recipe: SftConfig, rows: TableRef, digest: str, *, adapt: bool = False
) -> ModelRef:
    """Fine-tune a base on rows of that digest; ``adapt``: on all rows of a labelled split, with their gold labels."""
    seed = derive(run.config.seed, name.partition("/")[0])  # one seed for all arms of a generation
    inputs = {
        "base": base.to_json(),
        "rows": digest,
        "recipe": recipe.model_dump(mode="json", exclude=TrainSection.RESOURCES),
        "seed": seed,
    }

    def work(directory: Path) -> Done:
        from curation import store
        from curation.stages.select import adaptation_rows
        from train.student import train_student

        selected = adaptation_rows(rows, run.config.domain, directory) if adapt else rows
        with progress.bar(name) as shown:
            result = train_student(
                base,
                selected,
                recipe,
                seed=seed,
                output=directory / "model",
                name=name.replace("/", "-"),
                update=shown,
            )
        if result.record.num_dropped:
            say(f"{name}: {result.record.num_dropped:,} rows are longer than max_length and were left out")
        return Done(
            outputs={"model": result.model.to_json(), "training": asdict(result.record)}, rows=store.count(selected)
        )

    return ModelRef.from_json(run.stage(name, inputs, work)["model"])
