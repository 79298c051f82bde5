"""One launch of Ray Train: a loop on so many workers, replaced when they die, as a recipe's section says."""

import os
from collections.abc import Callable
from typing import Any

import pyarrow.fs
import ray.train
import ray.train.torch

from curation.config import TrainSection
from curation.errors import RunFailedError
from curation.places import Place
from curation.stopping import waited_for

HEALTH_CHECK_SECONDS = "0.2"
"""Ray Train looks at its workers this often; its default of 2 s dominates short runs."""


def launch(
    loop: Callable[[dict[str, Any]], None], task: dict[str, Any], config: TrainSection, *, name: str, storage: Place
) -> None:
    """Run ``loop(task)`` in every worker; ``storage`` keeps checkpoints until it is through.

    The same call goes on from the last checkpoint of the same ``name``.

    Raises:
        RunFailedError: it failed more than ``config.max_failures`` times.
    """
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", HEALTH_CHECK_SECONDS)
    trainer = ray.train.torch.TorchTrainer(
        loop,
        train_loop_config=task,
        scaling_config=ray.train.ScalingConfig(
            num_workers=config.num_workers,
            use_gpu=config.gpus_per_worker > 0,
            resources_per_worker={"CPU": config.cpus_per_worker, "GPU": config.gpus_per_worker},
        ),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=str(storage),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1),
            failure_config=ray.train.FailureConfig(max_failures=config.max_failures),
        ),
    )
    try:
        waited_for(trainer.fit)
    except ray.train.TrainingFailedError as error:
        cause = str(error).strip().splitlines()[-1]
        raise RunFailedError(f"{name}: training failed: {cause}; the same command goes on from {storage}") from error
    _remove(storage)


def _remove(storage: Place) -> None:
    """Remove what Ray put in a folder, by what it put it with: that marks folders with objects of their own."""
    filesystem, path = pyarrow.fs.FileSystem.from_uri(str(storage))
    if filesystem.get_file_info(path).type != pyarrow.fs.FileType.NotFound:
        filesystem.delete_dir(path)
