"""Train a student on a selection through Ray Train, refs in and refs out; a teacher's format adaptation is the same.

A killed worker is replaced and goes on from the last checkpoint beside ``output``; on several nodes that is a directory
all of them share, or an object store: then workers train in directories of their own. Rows are read in the order of
their ids, so that a seed defines the run.
"""

import json
from pathlib import Path
from typing import Any

import lance
import ray.train
import torch

from curation import progress
from curation.config import SftConfig
from curation.copies import scratch, staged
from curation.errors import SourceError
from curation.places import Place, Remote, place
from curation.refs import ModelRef, TableRef
from curation.standing import Update
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

    ``update`` is told rows done and rows in all, over all epochs.

    Raises:
        SourceError: a table without rows.
        ConfigError: batch sizes that do not divide.
        RunFailedError: the training failed more than ``config.max_failures`` times; the same call goes on.
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
    """Where the first worker notes its progress."""
    return output.with_name(f"{output.name}.progress")


def read_pairs(rows: TableRef) -> list[Pair]:
    """The pairs of a table, in the order of ``row_id``."""
    columns = ["row_id", "prompt", "completion"]
    table = lance.dataset(rows.uri, version=rows.version).to_table(columns=columns).sort_by("row_id")
    return [Pair(*pair) for pair in zip(table["prompt"].to_pylist(), table["completion"].to_pylist(), strict=True)]


def _train(task: dict[str, Any]) -> None:
    """What each worker runs."""
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
    """Checkpoints in Ray Train's storage: the files of all workers in one folder, which every worker goes on from."""

    def keep(self, directory: Path) -> None:
        """Put the folder there; all workers wait for each other."""
        ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(directory))

    def restore(self, directory: Path) -> None:
        """Get the last one."""
        if (checkpoint := ray.train.get_checkpoint()) is not None:
            checkpoint.to_directory(directory)
