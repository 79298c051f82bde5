"""Models of a run: bases resolved or made from scratch, fine-tuned on rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from curation import models
from curation.config import DomainConfig, InitConfig, ModelConfig, SftConfig, StudentConfig
from curation.escaping import escaped
from curation.pipeline.training import training, training_host
from curation.refs import ModelRef, TableRef
from curation.registry import METHODS, code
from curation.rundir.graph import Built, Done, Model, Out, Table
from curation.rundir.run import Task

REVISION = 2
"""Of trainings: raised when their order of rows changed."""
NUM_NAMED, NAMED_CHARACTERS = 3, 80
"""Of the rows that a training left out: how many the terminal names, and how much of their errors."""


def base_model(model: ModelConfig, domain: DomainConfig, *, name: str, seed: int, needs: Sequence[Out] = ()) -> Model:
    """A model; one that is to come from scratch is made by the stage ``name``."""
    if model.path is not None:
        return models.named(model)
    inputs = {"init": model.init, "domain": domain, "seed": seed}
    return Built(name=name, work=make_base, inputs=inputs, needs=needs, num_rows=0).model("model")


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
    stage = Built(
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
        num_rows=rows,
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
) -> Built:
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
    return Built(
        name=name,
        work=train,
        inputs=inputs | ({"rows": rows} if reads_trust else {}),
        settings={
            "examples": {"examples": pool} if "examples" in method.reads else {},  # the digest names the rows
            "resources": recipe.resources,
        }
        | ({} if reads_trust else {"rows": rows}),
        needs=needs,
        num_rows=num,
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

    rows = adaptation_rows(examples, domain, task.directory)
    trained_by = METHODS["sft"].trained_by
    return train(task, base, "", recipe, seed, trained_by, {}, rows.table, {}, resources, left_out=rows.left_out)


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
    left_out: Mapping[int, str] = MappingProxyType({}),
) -> Done:
    """Train on selected rows by the method that is configured; ``left_out`` were left out before, with their errors.

    The stage's table lists all rows that were left out.
    """
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
    record = asdict(result.record)
    too_long = f"max_length: prompt and answer have more than {recipe.max_length} tokens"
    without = {**left_out, **dict.fromkeys(record.pop("dropped"), too_long)}
    if result.record.stopped:
        task.say(f"ended early: {result.record.stopped}")
    outputs = {"model": result.model.to_json(), "training": record}
    if without:
        outputs["left_out"] = list_left_out(task, without, num_given=io.count(rows) + len(left_out)).to_json()
    return Done(outputs=outputs, rows=io.count(rows))


def list_left_out(task: Task, errors: Mapping[int, str], *, num_given: int) -> TableRef:
    """Write the rows that a training left out as a table (``schemas.LEFT_OUT``), and name the first of them."""
    import pyarrow as pa

    from curation.tables import io, schemas

    ids = sorted(errors)
    named = [f"row {row_id} ({escaped(errors[row_id][:NAMED_CHARACTERS])})" for row_id in ids[:NUM_NAMED]]
    more = ", ..." if len(ids) > len(named) else ""
    task.say(
        f"{len(ids):,} of {num_given:,} rows are left out: {', '.join(named)}{more}; "
        f"`curate inspect {task.manifest.directory} {task.name}` lists them"
    )
    rows = pa.table({"row_id": ids, "error": [errors[row_id] for row_id in ids]}, schema=schemas.LEFT_OUT)
    return io.write(rows, str(task.directory / "left_out.lance"))
