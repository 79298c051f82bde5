"""Launches a training loop on the workers that the configuration requests, and restarts it when they die.

Several workers form a worker group of Ray Train. A single worker is a process that outlives the training
(:class:`TrainProcess`): its start, mostly imports, is a large part of a short training, so later trainings with the
same resources use it too. There the loop runs in Ray Train's local mode and so reads the same context.
"""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.fs
import ray
import ray.train
import ray.train.torch
from ray.exceptions import RayError

from curation.cluster import nodes
from curation.config import TrainSection
from curation.errors import CommitError, RunFailedError
from curation.json_types import Json
from curation.stopping import wait_for_call
from curation.storage.lease import LeaseClaim
from curation.storage.paths import Place
from curation.tasks import find_root_error

HEALTH_CHECK_SECONDS = "0.2"
"""The interval at which Ray Train checks its workers; its default of 2 s dominates short runs."""
CLAIM = "claim"
"""The task's key for the claim that a worker trains under (``train.fence``), or None."""
FOLDER = "folder"
"""The task's key for the path of the folder of checkpoints, for a loop in a :class:`TrainProcess`."""

Loop = Callable[[Json], None]


class TrainProcess:
    """A process that trains several models in turn; if it dies, a new one starts."""

    def __init__(self, config: TrainSection, *, hold_cpus: bool = True) -> None:
        """Set whether Ray reserves the process's CPUs as long as it lives (``hold_cpus``)."""
        self._make = ray.remote(_Worker).options(
            **nodes.make_ray_options(config.per_worker if hold_cpus else {**config.per_worker, "CPU": 0}),
            max_restarts=0,
        )
        self._worker: Any = None

    def run(self, loop: Loop, task: Json, config: TrainSection, *, name: str, storage: Place) -> None:
        """Run ``loop(task)`` as :func:`launch` does, with up to ``config.max_failures`` further attempts."""
        for num_failures in range(config.max_failures + 1):
            worker: Any = self._worker or self._make.remote()
            self._worker = worker
            try:
                wait_for_call(partial(ray.get, worker.run.remote(loop, task, name)))
                return
            except RayError as error:
                self.close()
                if isinstance(lost := find_root_error(error), CommitError):
                    raise lost from None
                if num_failures == config.max_failures:
                    raise _make_failure(name, storage, error) from error

    def close(self) -> None:
        """End the process."""
        worker, self._worker = self._worker, None
        if worker is not None:
            ray.kill(worker)


class _Worker:
    """The actor that does the work of a :class:`TrainProcess`."""

    def run(self, loop: Loop, task: Json, name: str) -> None:
        """Run a loop as the only worker of a training."""
        import torch

        alone = ray.train.ScalingConfig(num_workers=0, use_gpu=bool(ray.get_gpu_ids()))
        config = ray.train.RunConfig(name=name, storage_path=str(Path(task[FOLDER]).parent))
        ray.train.torch.TorchTrainer(loop, train_loop_config=task, scaling_config=alone, run_config=config).fit()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


_process: ContextVar[TrainProcess | None] = ContextVar("_process", default=None)
_claim: ContextVar[LeaseClaim | None] = ContextVar("_claim", default=None)


@contextmanager
def trained_in(process: TrainProcess | None) -> Iterator[None]:
    """Let launches of one worker within the context use this process, unless it is None."""
    token = _process.set(process)
    try:
        yield
    finally:
        _process.reset(token)


@contextmanager
def claimed(claim: LeaseClaim | None) -> Iterator[None]:
    """Let workers launched within the context train under this claim on the run directory, unless it is None."""
    token = _claim.set(claim)
    try:
        yield
    finally:
        _claim.reset(token)


def launch(loop: Loop, task: Mapping[str, object], config: TrainSection, *, name: str, storage: Place) -> None:
    """Run ``loop(task)`` in every worker; ``storage`` keeps checkpoints until the training ends.

    Raises:
        RunFailedError: it failed more than ``config.max_failures`` times; the same call resumes the same ``name``.
        CommitError: another driver has the run directory (:func:`claimed`).
    """
    process, claim = _process.get(), _claim.get()
    task = {**task, CLAIM: claim}
    if process is not None and config.num_workers == 1 and isinstance(storage, Path):
        storage.mkdir(parents=True, exist_ok=True)
        process.run(loop, {**task, FOLDER: str(storage / name)}, config, name=name, storage=storage)
    else:
        _launch_group(loop, task, config, name=name, storage=storage)
    if claim is not None:
        claim.require()
    remove(storage)


def _launch_group(loop: Loop, task: Json, config: TrainSection, *, name: str, storage: Place) -> None:
    """Run ``loop(task)`` in a worker group of Ray Train."""
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", HEALTH_CHECK_SECONDS)
    trainer = ray.train.torch.TorchTrainer(
        loop,
        train_loop_config=task,
        scaling_config=ray.train.ScalingConfig(
            num_workers=config.num_workers, use_gpu=config.gpus_per_worker > 0, resources_per_worker=config.per_worker
        ),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=str(storage),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1),
            failure_config=ray.train.FailureConfig(max_failures=config.max_failures),
        ),
    )
    try:
        wait_for_call(trainer.fit)
    except ray.train.TrainingFailedError as error:
        failures = error.worker_failures if isinstance(error, ray.train.WorkerGroupError) else {}
        for _, failure in sorted(failures.items()):  # the first worker's says to whom
            if isinstance(lost := find_root_error(failure), CommitError):
                raise lost from None
        raise _make_failure(name, storage, error) from error


def _make_failure(name: str, storage: Place, error: BaseException) -> RunFailedError:
    cause = str(error).strip().splitlines()[-1]
    return RunFailedError(f"{name}: training failed: {cause}; run the same command to resume from {storage}")


def remove(storage: Place) -> None:
    """Remove a folder that Ray wrote, with Ray's library (pyarrow), which marks folders by objects of their own."""
    filesystem, path = pyarrow.fs.FileSystem.from_uri(str(storage))
    if filesystem.get_file_info(path).type != pyarrow.fs.FileType.NotFound:
        filesystem.delete_dir(path)
