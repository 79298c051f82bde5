"""Trains a student on a selection through Ray Train, by any method; a teacher's format adaptation works the same way.

A killed worker is replaced and resumes from the last checkpoint beside ``output``. On several nodes ``output`` is a
directory that all of them share, or in an object store; with an object store, workers train in local directories.
"""

import json
from collections.abc import Callable

import lance
import ray.train
import torch

from curation.config import LmStudentConfig
from curation.errors import ConfigError, SourceError, TrainingError
from curation.json_types import Json
from curation.refs import ModelRef, TableRef
from curation.storage.cache import scratch, staged
from curation.storage.paths import Place, Remote, to_place, write_atomically
from curation.telemetry.standing import Update, follow_progress, note_progress
from train import fence
from train.callbacks import Kept
from train.launch import CLAIM, launch
from train.models import TrainingRecord, TrainingResult, read_saved

FINAL = (ConfigError, SourceError, TrainingError)
"""Errors that all workers raise together and would raise again, so that the training is not retried."""
Learn = Callable[..., TrainingRecord]
"""A training method, called in each worker as ``learn(base, rows, config, seed=, output=, progress=, kept=, **read)``.

It trains ``base`` on ``rows`` and saves the result to the path ``output`` atomically. All workers call it with the same
arguments, but only the first has ``progress``, a function of rows done and rows in all. ``kept``
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
        ConfigError: the configuration does not fit the base.
        TrainingError: the training failed in a way that every further attempt would repeat.
        RunFailedError, CommitError: as :func:`train.launch.launch`.
    """
    if not lance.dataset(rows.uri, version=rows.version).count_rows():
        raise SourceError(f"student {name}: {rows.uri} (version {rows.version}) has no rows; select at least one")
    output = output.resolve()
    note, failure = (output.with_name(f"{output.name}.{kind}") for kind in ("progress", "failure"))
    task = {
        "learn": learn,
        "base": base.to_json(),
        "rows": rows.to_json(),
        "config": config,
        "seed": seed,
        "output": str(output),
        "note": str(note),
        "failure": str(failure),
        "read": read,
    }
    with follow_progress(note, update):
        launch(_train, task, config, name=name, storage=output.with_name(f"{output.name}.ray"))
    note.unlink(missing_ok=True)
    if failure.is_file():
        kind, message = json.loads(failure.read_text())
        failure.unlink()
        raise {error.__name__: error for error in FINAL}[kind](f"student {name}: {message}")
    return read_saved(base, config.lora, output)


def _train(task: Json) -> None:
    """Train the student in each worker."""
    config: LmStudentConfig = task["config"]
    torch.set_num_threads(config.cpus_per_worker)
    output, note = to_place(task["output"]), to_place(task["note"])
    is_first = ray.train.get_context().get_world_rank() == 0
    local_output = staged(output) if is_first else scratch(output)
    with fence.around(task[CLAIM] if is_first else None):
        try:
            with local_output as local:
                task["learn"](
                    ModelRef.from_json(task["base"]),
                    TableRef.from_json(task["rows"]),
                    config,
                    seed=task["seed"],
                    output=local,
                    progress=(lambda done, total: note_progress(note, done, total)) if is_first else None,
                    kept=Kept() if isinstance(output, Remote) else None,
                    **task["read"],
                )
                if is_first:  # before what is written here is put in the place of what another driver may have written
                    fence.require()
        except FINAL as error:
            if is_first:
                fence.require()
                write_atomically(to_place(task["failure"]), json.dumps([type(error).__name__, str(error)]))
