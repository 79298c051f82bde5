"""Models of a run: bases resolved or made from scratch, fine-tuned on rows.

Each function here is one stage, handed to :meth:`curation.runs.Run.stage`.
"""

from collections.abc import Mapping
from dataclasses import asdict

from curation import models, progress, store
from curation.config import ModelConfig, SftConfig, TrainSection
from curation.domains import get_domain
from curation.hashing import derive
from curation.places import Place
from curation.refs import ModelRef, TableRef, fingerprint
from curation.runs import Done, Run, say


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
            say(f"{name}: {result.record.num_dropped:,} rows are longer than max_length and were left out")
        return Done(
            outputs={"model": result.model.to_json(), "training": asdict(result.record)}, rows=store.count(selected)
        )

    return ModelRef.from_json(run.stage(name, inputs, work)["model"])
