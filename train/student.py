"""Trains a student on a selection through Ray Train; a teacher's format adaptation works the same way.

A killed worker is replaced and resumes from the last checkpoint beside ``output``. On several nodes ``output`` is a
directory that all of them share, or in an object store; with an object store, workers train in local directories. Rows
are read in the order of their ids, so that a seed defines the run.
"""

import json
from pathlib import Path
from typing import Any

import lance
import ray.train
import torch

from curation.config import SftConfig
from curation.errors import SourceError
from curation.refs import ModelRef, TableRef
from curation.storage.cache import scratch, staged
from curation.storage.paths import Place, Remote, place
from curation.telemetry import progress
from curation.telemetry.standing import Update
from train.launch import launch
from train.sft import TRAINING, SftResult, TrainingRecord, accumulation_steps, fine_tune, result_ref
from train.tokens import Pair


def train_student(
    base: ModelRef,
    rows: TableRef,
    config: SftConfig,
    *,
    seed: int,
    output: Place,
    name: str,
    update: Update = lambda standing: None,
) -> SftResult:
    """Fine-tune ``base`` on the ``prompt`` and ``completion`` columns of ``rows``, and save the student to ``output``.

    ``update`` receives rows done and rows in all, over all epochs.

    Raises:
        SourceError: the table has no rows.
        ConfigError: the batch sizes do not divide.
        RunFailedError: the training failed more than ``config.max_failures`` times; the same call resumes it.
    """
    accumulation_steps(config, config.num_workers)
    if not lance.dataset(rows.uri, version=rows.version).count_rows():
        raise SourceError(f"student {name}: {rows.uri} (version {rows.version}) has no rows; select at least one")
    output = output.resolve()
    task = {
        "base": base.to_json(),
        "rows": rows.to_json(),
        "config": config.model_dump(mode="json"),
        "seed": seed,
        "output": str(output),
    }
    with progress.follow(_note(output), update):
        launch(_train, task, config, name=name, storage=output.with_name(f"{output.name}.ray"))
    _note(output).unlink(missing_ok=True)
    record = TrainingRecord(**json.loads((output / TRAINING).read_text()))
    return SftResult(model=result_ref(base, config, output), record=record)


def _note(output: Place) -> Place:
    """The file to which the first worker writes its progress."""
    return output.with_name(f"{output.name}.progress")


def read_pairs(rows: TableRef) -> list[Pair]:
    """The pairs of a table, in the order of ``row_id``."""
    columns = ["row_id", "prompt", "completion"]
    table = lance.dataset(rows.uri, version=rows.version).to_table(columns=columns).sort_by("row_id")
    return [Pair(*pair) for pair in zip(table["prompt"].to_pylist(), table["completion"].to_pylist(), strict=True)]


def _train(task: dict[str, Any]) -> None:
    """The function that each worker runs."""
    config = SftConfig.model_validate(task["config"])
    torch.set_num_threads(config.cpus_per_worker)
    output = place(task["output"])
    is_first = ray.train.get_context().get_world_rank() == 0
    with staged(output) if is_first else scratch(output) as local:
        fine_tune(
            ModelRef.from_json(task["base"]),
            read_pairs(TableRef.from_json(task["rows"])),
            config,
            seed=task["seed"],
            output=local,
            progress=(lambda done, total: progress.note(_note(output), done, total)) if is_first else None,
            kept=_Checkpoints() if isinstance(output, Remote) else None,
        )


class _Checkpoints:
    """Checkpoints in Ray Train's storage: the files of all workers in one folder, from which every worker resumes."""

    def keep(self, directory: Path) -> None:
        """Upload the folder; all workers wait for each other."""
        ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(directory))

    def restore(self, directory: Path) -> None:
        """Download the last checkpoint."""
        if (checkpoint := ray.train.get_checkpoint()) is not None:
            checkpoint.to_directory(directory)
