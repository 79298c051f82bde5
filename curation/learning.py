"""Models of a run: bases resolved or made from scratch, fine-tuned on rows.

Each function here is one stage, handed to :meth:`curation.runs.Run.stage`.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from curation import models, progress, store
from curation.arms import ARMS
from curation.config import ModelConfig, RunConfig, SftConfig, TrainSection
from curation.domains import get_domain
from curation.hashing import derive
from curation.places import Place
from curation.refs import ModelRef, TableRef, fingerprint
from curation.runs import Done, Generation, Run, say

if TYPE_CHECKING:
    from curation.stages.length import Limit


def base_model(run: Run, model: ModelConfig, name: str, *, trust_remote_code: bool = False) -> ModelRef:
    """Resolve a model; one that is to come from scratch is made by the stage ``name``."""
    if model.path is not None:
        return models.resolve(model.path, model.revision, model.adapter, trust_remote_code=trust_remote_code)
    init = model.init
    assert init is not None, "ModelConfig takes one of path and init"
    seed = derive(run.config.seed, name)

    def work(directory: Place) -> Done:
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

    domain = run.config.domain.model_dump(mode="json")
    inputs = {"init": init.model_dump(mode="json"), "domain": domain, "seed": seed}
    return ModelRef.from_json(run.stage(name, inputs, work)["model"])


def teacher_model(run: Run, model: ModelConfig, tables: Mapping[str, TableRef], name: str) -> ModelRef:
    """A weak teacher: its base, adapted to the task's format where the configuration says so."""
    base = base_model(run, model, f"gen-0/{name}-base")
    if run.config.teacher.adapt is None:
        return base
    adapt = tables["adapt"]
    digest = fingerprint(adapt.to_json())
    return train_model(run, f"gen-0/{name}", base, run.config.teacher.adapt, adapt, digest, adapt=True)


def limit_of(config: RunConfig, student: ModelRef) -> "Limit":
    """What the students of a base can be trained on."""
    from curation.stages.length import Limit

    settings = config.student
    return Limit(
        student=replace(student, adapter=None), max_length=settings.max_length, chat_template=settings.chat_template
    )


def too_long(run: Run, generation: Generation, split: str, labels: TableRef, student: ModelRef) -> TableRef | None:
    """The labelled rows of a split that some arm could not train a student on (``tables.TOO_LONG``); None: all fit.

    What is left out of the selection for one arm is left out for all; None rather than an empty table, so that another
    limit which leaves nothing out redoes no selection.
    """
    config, name = run.config, generation.name(f"length-{split}")
    arms = [ARMS[arm] for arm in config.selection.arms]
    gold = generation.tables["audit" if split == "pool" else split] if any(arm.gold for arm in arms) else None
    examples, wanted = generation.tables[split], config.selection.gold_rollouts.source
    limit = limit_of(config, student)
    weak, domain = not all(arm.gold for arm in arms), config.domain_of(split)
    inputs = {
        "examples": examples.to_json(),
        "labels": labels.to_json(),
        "weak": weak,
        "gold": None if gold is None else gold.to_json(),
        "domain": domain.model_dump(mode="json"),
        "limit": asdict(limit),
        # What the gold arms of the pool train on follows from these, the labels and the gold labels.
        **({"gold_rollouts": wanted, "seed": config.seed} if gold is not None and split == "pool" else {}),
    }

    def work(directory: Place) -> Done:
        from curation.stages.gold import decide
        from curation.stages.length import LengthJob
        from curation.stages.length import too_long as length_stage

        solutions = False
        if gold is not None and split == "pool":
            made = decide(examples, labels, gold, domain, wanted=wanted, seed=config.seed)
            solutions = made.source == "solution"

        job = LengthJob(
            examples=examples,
            labels=labels,
            weak=weak,
            gold=gold,
            solutions=solutions,
            domain=domain,
            limit=limit,
        )
        with progress.bar(name) as shown:
            update = run.progress(name, shown)
            found = length_stage(job, str(directory / "too_long.lance"), split=split, progress=update)
        if found.num_too_long:
            say(
                f"{name}: {found.num_too_long:,} of {found.num_rows:,} labelled rows have more than "
                f"{limit.max_length:,} tokens (student.max_length) and are no candidates for any arm"
            )
        return Done(outputs=asdict(found), rows=found.num_rows)

    outputs = run.stage(name, inputs, work)
    return TableRef.from_json(outputs["table"]) if outputs["num_too_long"] else None


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

    def work(directory: Place) -> Done:
        from curation.stages.select import adaptation_rows
        from train.student import train_student

        selected = adaptation_rows(rows, run.config.domain_of("adapt"), directory) if adapt else rows
        with progress.bar(name) as shown:
            result = train_student(
                base,
                selected,
                recipe,
                seed=seed,
                output=directory / "model",
                name=name.replace("/", "-"),
                update=run.progress(name, shown),
            )
        if result.record.num_dropped:
            say(f"{name}: {result.record.num_dropped:,} rows are longer than max_length and were not trained on")
        return Done(
            outputs={"model": result.model.to_json(), "training": asdict(result.record)}, rows=store.count(selected)
        )

    return ModelRef.from_json(run.stage(name, inputs, work)["model"])
