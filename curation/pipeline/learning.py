"""Models of a run: bases resolved or made from scratch, fine-tuned on rows."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from curation import models
from curation.config import DomainConfig, InitConfig, ModelConfig, SftConfig, StudentConfig
from curation.pipeline.training import training, training_host
from curation.refs import ModelRef, TableRef
from curation.registry import METHODS, code
from curation.rundir.graph import Done, Model, Out, Stage, Table
from curation.rundir.run import Task

REVISION = 2
"""Of trainings: raised when their order of rows changed."""


def base_model(model: ModelConfig, domain: DomainConfig, *, name: str, seed: int, needs: Sequence[Out] = ()) -> Model:
    """A model; one that is to come from scratch is made by the stage ``name``."""
    if model.path is not None:
        return models.named(model)
    inputs = {"init": model.init, "domain": domain, "seed": seed}
    return Stage(name=name, work=make_base, inputs=inputs, needs=needs, rows=0).model("model")


def make_base(task: Task, init: InitConfig, domain: DomainConfig, seed: int) -> Done:
    """Make a model of random weights, with a tokenizer of the domain's vocabulary."""
    from curation.domains import get_domain

    vocabulary = get_domain(domain).vocabulary()
    ref = models.create(
        task.directory,
        family=init.family,
        shape=init.shape(),
        words=vocabulary.words,
        pattern=vocabulary.pattern,
        seed=seed,
    )
    return Done(outputs={"model": ref.to_json()}, rows=0)


def adapted(
    base: Model,
    examples: Table,
    recipe: SftConfig,
    domain: DomainConfig,
    *,
    name: str,
    seed: int,
    rows: int | None,
    needs: Sequence[Out] = (),
) -> Model:
    """A model fine-tuned on all rows of a labelled split, with their gold labels."""
    stage = Stage(
        name=name,
        work=adapt,
        inputs={
            "base": base,
            "examples": examples,
            "domain": domain,
            "recipe": recipe.without(recipe.RESOURCES),
            "seed": seed,
        },
        settings={"resources": recipe.resources},
        needs=needs,
        rows=rows,
        takes=recipe.takes,
        host=training_host(recipe),
        revision=REVISION,
    )
    return stage.model("model")


def student(
    name: str,
    base: Model,
    rows: Out,
    digest: Out,
    recipe: StudentConfig,
    domain: DomainConfig,
    pool: Table,
    *,
    seed: int,
    num: int | None,
    needs: Sequence[Out] = (),
) -> Stage:
    """A student of the selected ``rows``; it is trained again only where what they teach changed.

    That is their ``digest``, and the rows themselves where a recipe reads more of them.
    """
    method = METHODS[recipe.method]
    inputs = {
        "base": base,
        "digest": digest,
        "recipe": recipe.without(recipe.RESOURCES),
        "seed": seed,
        "trained_by": method.trained_by,
        "read": {"domain": domain} if "domain" in method.reads else {},
    }
    reads_trust = isinstance(recipe, SftConfig) and recipe.weight_by_trust
    return Stage(
        name=name,
        work=train,
        inputs=inputs | ({"rows": rows} if reads_trust else {}),
        settings={
            "examples": {"examples": pool} if "examples" in method.reads else {},  # the digest names the rows
            "resources": recipe.resources,
        }
        | ({} if reads_trust else {"rows": rows}),
        needs=needs,
        rows=num,
        takes=recipe.takes,
        host=training_host(recipe),
        revision=REVISION,
    )


def adapt(
    task: Task,
    base: ModelRef,
    examples: TableRef,
    domain: DomainConfig,
    recipe: SftConfig,
    seed: int,
    resources: dict[str, Any],
) -> Done:
    """Fine-tune on gold labels."""
    from curation.stages.select import adaptation_rows
    from curation.stages.usable import count_split, in_words
    from curation.tables import io

    rows = adaptation_rows(examples, domain, task.directory)
    total, used = io.count(examples), io.count(rows)
    if used < total:
        why = in_words(count_split(examples, "adapt").errors) or "their prompt cannot be made"
        task.say(f"{total - used:,} of {total:,} rows are left out, as they cannot be used ({why})")
    return train(task, base, "", recipe, seed, METHODS["sft"].trained_by, {}, rows, {}, resources)


def train(
    task: Task,
    base: ModelRef,
    digest: str,
    recipe: StudentConfig,
    seed: int,
    trained_by: str,
    read: dict[str, Any],
    rows: TableRef,
    examples: dict[str, TableRef],
    resources: dict[str, Any],
) -> Done:
    """Train on selected rows by the method that is configured."""
    from curation.tables import io

    with task.progress() as update, training(task, recipe.model_copy(update=resources)):
        result = code(trained_by)(
            base,
            rows,
            recipe.model_copy(update=resources),
            seed=seed,
            output=task.directory / "model",
            name=task.name.replace("/", "-"),
            update=update,
            **read,
            **examples,
        )
    if result.record.num_dropped:
        task.say(f"{result.record.num_dropped:,} rows are longer than max_length and were not trained on")
    if result.record.stopped:
        task.say(f"ended early: {result.record.stopped}")
    outputs = {"model": result.model.to_json(), "training": asdict(result.record)}
    return Done(outputs=outputs, rows=io.count(rows))
