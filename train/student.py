"""Trains a student on a selection through Ray Train, by any method; a teacher's format adaptation works the same way.

A killed worker is replaced and resumes from the last checkpoint beside ``output``. On several nodes ``output`` is a
directory that all of them share, or in an object store; with an object store, workers train in local directories.
"""

from collections.abc import Callable

import lance

from curation.config import LmStudentConfig
from curation.errors import SourceError
from curation.json_types import Json
from curation.refs import ModelRef, TableRef
from curation.storage.cache import scratch, staged
from curation.storage.paths import Place, Remote, to_place
from curation.telemetry.standing import Update
from train import fence
from train.callbacks import Kept
from train.launch import FINAL, Notes, launch
from train.models import TrainingRecord, TrainingResult, read_saved
from train.trainer import count_accumulation_steps

Learn = Callable[..., TrainingRecord]
"""A training method, called in each worker as ``learn(base, rows, config, seed=, output=, progress=, kept=, **read)``.

It trains ``base`` on ``rows`` and saves the result to the path ``output`` atomically. All workers call it with the same
arguments, but only the first has ``progress``, a function of rows done, rows in all and words on the loss. ``kept``
(``train.callbacks.Kept``) stores checkpoints if the workers do not share ``output``.
"""


def train_student(
    learn: Learn,
    base: ModelRef,
    rows: TableRef,
    config: LmStudentConfig,
    *,
    seed: int,
    output: Place,
    name: str,
    update: Update = lambda standing: None,
    **read: object,
) -> TrainingResult:
    """Run ``learn`` in the workers that ``config`` requests, with the arguments ``read``.

    ``update`` receives rows done and rows in all, over all epochs.

    Raises:
        SourceError: the table has no rows, or none that the method can use.
        ConfigError: the configuration does not fit the base, or the batch sizes do not divide.
        TrainingError: the training failed in a way that every further attempt would repeat.
        RunFailedError, CommitError: as :func:`train.launch.launch`.
    """
    if not lance.dataset(rows.uri, version=rows.version).count_rows():
        raise SourceError(f"student {name}: {rows.uri} (version {rows.version}) has no rows; select at least one")
    count_accumulation_steps(config, config.num_workers)
    output = output.resolve()
    arguments = (base.to_json(), rows.to_json(), config)
    task = {"learn": learn, "arguments": arguments, "read": {"seed": seed, **read}, "output": str(output), "name": name}
    launch(_train, task, config, name=name, output=output, update=update)
    return read_saved(base, config.lora, output)


def _train(task: Json, notes: Notes | None) -> None:
    """Train the student in each worker."""
    output = to_place(task["output"])
    base, rows, config = task["arguments"]
    try:
        with scratch(output) if notes is None else staged(output) as local:
            task["learn"](
                ModelRef.from_json(base),
                TableRef.from_json(rows),
                config,
                output=local,
                progress=None if notes is None else notes.note,
                kept=Kept() if isinstance(output, Remote) else None,
                **task["read"],
            )
            if notes is not None:  # before what is written here is put in the place of what another driver may have put
                fence.require()
    except FINAL as error:
        raise type(error)(f"student {task['name']}: {error}") from error
