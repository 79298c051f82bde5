"""Stages that make a model, or fine-tune one: a base, a teacher that learns the task's format, a student."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from curation import models
from curation.config import DomainConfig, InitConfig, StudentConfig, TrainSection
from curation.domains import Example, attempt, get_domain
from curation.escaping import escape_text
from curation.json_types import Json
from curation.refs import ModelRef, TableRef, fingerprint
from curation.registry import METHODS, load_code
from curation.rundir.graph import Done, In, InEach, Stage, setting
from curation.rundir.hosts import Host
from curation.rundir.run import Task
from curation.storage.paths import Place
from curation.tables import io, schemas

MAX_IDLE_SECONDS = 120.0
"""Idle time, in seconds, after which a training process is ended."""
NUM_NAMED, NAMED_CHARACTERS = 3, 80
"""Maximum number of left-out rows that the terminal names, and maximum length of their errors in characters."""


def make_training_host(recipe: TrainSection) -> Host | None:
    """Return the host process for trainings with a recipe's resources, or None for a group of several workers."""
    if recipe.num_workers > 1:
        return None
    name = fingerprint(["training", recipe.per_worker])
    return Host(name=name, kind=name, shared=False)


@contextmanager
def training(task: Task, recipe: TrainSection) -> Iterator[None]:
    """Run training within the context in the process that the stage names as its host, if it names one.

    Once another driver has the run directory, the workers stop and do not write to it, and leaving the context fails.
    """
    from train.launch import TrainProcess, trained_in  # heavy

    hosted: AbstractContextManager[TrainProcess | None] = nullcontext()
    if task.stage.host is not None:
        hold_cpus = task.hosts.hold_cpus
        hosted = task.hosted(lambda: TrainProcess(recipe, hold_cpus=hold_cpus), max_idle_seconds=MAX_IDLE_SECONDS)
    with hosted as process, trained_in(process, None if task.lease is None else task.lease.claim):
        yield
    task.guard()


class Training(Stage):
    """A stage that fine-tunes a model by a recipe."""

    class Made(NamedTuple):
        model: ModelRef
        training: Json
        """The record of the training, without the rows that it dropped."""
        left_out: TableRef | None
        """Table of all rows that were left out (schema ``schemas.LEFT_OUT``), or None if there are none."""

    base: In[ModelRef]
    recipe: StudentConfig
    seed: int
    revision: int = 2  # another order of rows

    @property
    def takes(self) -> dict[str, float]:
        """Resources of the workers."""
        return self.recipe.takes

    @property
    def host(self) -> Host | None:
        """Training process, or None if the recipe has several workers."""
        return make_training_host(self.recipe)

    def _train(
        self,
        task: Task,
        trained_by: str,
        rows: TableRef,
        read: Mapping[str, object],
        left_out: Mapping[int, str] = MappingProxyType({}),
    ) -> Done:
        """Train on ``rows`` by ``trained_by``, which takes ``read``; ``left_out``: errors of rows left out before."""
        with task.progress() as update, training(task, self.recipe):
            result = load_code(trained_by)(
                self.base,
                rows,
                self.recipe,
                seed=self.seed,
                output=task.directory / "model",
                name=task.name.replace("/", "-"),
                update=update,
                **read,
            )
        record = asdict(result.record)
        too_long = f"max_length: prompt and answer have more than {self.recipe.max_length} tokens"
        without = {**left_out, **dict.fromkeys(record.pop("dropped"), too_long)}
        num_given = io.count(rows)
        table = list_left_out(task, without, num_given=num_given + len(left_out)) if without else None
        return Done(outputs=Training.Made(model=result.model, training=record, left_out=table), rows=num_given)


def list_left_out(task: Task, errors: Mapping[int, str], *, num_given: int) -> TableRef:
    """Write the rows that a training left out as a table (``schemas.LEFT_OUT``), and report the first of them."""
    ids = sorted(errors)
    named = [f"row {row_id} ({escape_text(errors[row_id][:NAMED_CHARACTERS])})" for row_id in ids[:NUM_NAMED]]
    more = ", ..." if len(ids) > len(named) else ""
    task.say(
        f"{len(ids):,} of {num_given:,} rows are left out: {', '.join(named)}{more}; "
        f"`curate inspect {task.manifest.directory} {task.name}` lists them"
    )
    rows = pa.table({"row_id": ids, "error": [errors[row_id] for row_id in ids]}, schema=schemas.LEFT_OUT)
    return io.write(rows, str(task.directory / "left_out.lance"))


class MakeBase(Stage):
    """A stage that makes a model of random weights, with a tokenizer of the domain's vocabulary."""

    class Made(NamedTuple):
        model: ModelRef

    init: InitConfig
    domain: DomainConfig
    seed: int
    num_rows: int | None = 0

    def run(self, task: Task) -> Done:
        """Make the model."""
        vocabulary = get_domain(self.domain).vocabulary()
        ref = models.create(
            task.directory,
            family=self.init.family,
            shape=self.init.shape(),
            words=vocabulary.words,
            pattern=vocabulary.pattern,
            seed=self.seed,
        )
        return Done(outputs=self.Made(model=ref), rows=0)


class Adapt(Training):
    """A stage that fine-tunes a model on all rows of a labelled split, with their gold labels."""

    examples: In[TableRef]
    domain: DomainConfig

    def run(self, task: Task) -> Done:
        """Train on the healthy rows."""
        rows, left_out = write_adaptation_rows(self.examples, self.domain, task.directory)
        return self._train(task, METHODS["sft"].trained_by, rows, {}, left_out=left_out)


def write_adaptation_rows(
    examples: TableRef, config: DomainConfig, directory: Place
) -> tuple[TableRef, dict[int, str]]:
    """Write the rows to adapt a teacher on: all healthy rows with gold labels, as a selection named ``adapt``.

    Error rows and rows that the domain cannot render are left out; their errors, ``kind: detail``, are returned by id.
    """
    domain, lineage = get_domain(config), {"arm": "adapt", "label_source": "gold", "completion_source": "answer"}
    errors = io.read(examples, columns=["row_id", "error"], filter="error IS NOT NULL")
    left_out = dict(zip(errors["row_id"].to_pylist(), errors["error"].to_pylist(), strict=True))

    def pair(example: Example) -> dict[str, str]:
        return {"prompt": domain.prompt(example), "completion": domain.answer(example["gold"], example)}

    rows = []
    for rank, example in enumerate(io.read(examples, filter="error IS NULL").to_pylist()):
        rendered, error = attempt(pair, example)
        if rendered is None:
            left_out[example["row_id"]] = str(error)
            continue
        row = {"generation": 0, "row_id": example["row_id"], "rank": rank, "label": example["gold"]}
        rows.append({**rendered, **lineage, **row})
    table = pa.Table.from_pylist(rows, schema=schemas.SELECTION)
    return io.write(table, str(directory / "adapt.lance")), left_out


class TrainStudent(Training):
    """A stage that trains a student by the configured method; again only if the texts of its rows have changed."""

    digest: In[str]
    trained_by: str
    """The method's function, as the registry names it."""
    read: Json
    rows: In[TableRef] = setting()
    """The selected rows, which the digest stands for."""
    examples: InEach[TableRef] = setting()
    """The pool as ``examples``, for a method that reads it; ``digest`` covers the ids of its rows."""

    def run(self, task: Task) -> Done:
        """Train the student."""
        return self._train(task, self.trained_by, self.rows, {**self.read, **self.examples})
