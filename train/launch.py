"""Launches a training loop on the workers that the configuration requests, and restarts it when they die.

Several workers form a worker group of Ray Train. A single worker is a process that later trainings with the same
resources use too (:class:`TrainProcess`), since its start, mostly imports, is a large part of a short training.

A driver that is cut off, or paused for longer than its lease lives, does not end its workers, which would go on to
write where the next driver's training writes. So the first worker reads the lease now and then (in a thread, since a
store that is down makes it wait) and again before it writes.
"""

import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.fs
import ray
import ray.train
import ray.train.torch
import torch
from ray.exceptions import RayError

from curation.cluster import nodes
from curation.config import TrainSection
from curation.errors import CommitError, ConfigError, DegenerateSourceError, RunFailedError, SourceError, TrainingError
from curation.json_types import Json
from curation.periodic import every
from curation.stopping import wait_for_call
from curation.storage.lease import LeaseClaim
from curation.storage.paths import Place, Remote, to_place, write_atomically
from curation.tasks import find_root_error
from curation.telemetry.standing import Update, follow_progress, note_progress

HEALTH_CHECK_SECONDS = "0.2"  # interval at which Ray Train checks its workers; its default of 2 s dominates short runs
FINAL = (ConfigError, DegenerateSourceError, SourceError, TrainingError)
"""Errors that all workers raise together and would raise again, so that the training is not retried."""
LOOK_SECONDS = 5.0  # time between two readings of the lease
NOTE_SECONDS, REMOTE_SECONDS = 1.0, 10.0
"""Minimum seconds between two notes of progress, in a file system and in an object store."""


def count_workers() -> int:
    """Return the number of workers of this training."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


_claim: LeaseClaim | None = None
"""The claim of the driver that started this process's training; None if no other driver can take it over."""
_loss: CommitError | None = None


def find_claim_error(*, read: bool) -> CommitError | None:
    """Return the error if another driver has the directory, by the last reading or, with ``read``, by a new one."""
    if read:
        _look()
    return _loss


def require_claim() -> None:
    """Raise ``CommitError`` if another driver than the one that started this training has the run directory."""
    if _claim is not None:
        _claim.require()


@contextmanager
def claiming(claim: LeaseClaim | None) -> Iterator[None]:
    """Let this process train under ``claim`` within the context; raise ``CommitError`` if it is lost at the start."""
    global _claim, _loss
    _claim, _loss = claim, None
    try:
        require_claim()
        with every(LOOK_SECONDS, _look):
            yield
    finally:
        _claim = _loss = None


def _look() -> None:
    global _loss
    try:
        require_claim()
    except CommitError as error:
        _loss = error


class Notes:
    """The progress of a training, which its first worker writes to a file and the waiting stage reads."""

    def __init__(self, path: Place) -> None:
        self._path, self._pause = path, REMOTE_SECONDS if isinstance(path, Remote) else NOTE_SECONDS
        self._noted = -self._pause

    def note(self, done: int, total: int, words: str = "") -> None:
        """Write the progress, with ``words`` on its quality, unless the last note is recent and more is to be done."""
        now = time.monotonic()
        if done >= total or now - self._noted >= self._pause:
            self._noted = now
            with suppress(OSError):  # a training goes on while the store is unreachable
                note_progress(self._path, done, total, words)


class TrainProcess:
    """A process that trains several models in turn; if it dies, a new one starts."""

    def __init__(self, config: TrainSection, *, hold_cpus: bool = True) -> None:
        """Start no process yet; with ``hold_cpus`` Ray reserves its CPUs as long as it lives."""
        self._make = ray.remote(_Worker).options(
            **nodes.make_ray_options(config.per_worker if hold_cpus else {**config.per_worker, "CPU": 0}),
            max_restarts=0,
        )
        self._worker: Any = None

    def run(self, task: Json, config: TrainSection, *, name: str) -> None:
        """Run a task as :func:`launch` does, with up to ``config.max_failures`` further attempts."""
        for num_failures in range(config.max_failures + 1):
            worker: Any = self._worker or self._make.remote()
            self._worker = worker
            try:
                wait_for_call(partial(ray.get, worker.run.remote(task)))
                return
            except RayError as error:
                self.close()
                if isinstance(lost := find_root_error(error), CommitError):
                    raise lost from None
                if num_failures == config.max_failures:
                    raise _make_failure(name, error) from error

    def close(self) -> None:
        """End the process."""
        worker, self._worker = self._worker, None
        if worker is not None:
            ray.kill(worker)


class _Worker:
    """The actor that does the work of a :class:`TrainProcess`."""

    def run(self, task: Json) -> None:
        """Run a task as the only worker of a training."""
        _run_loop(task)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _run_loop(task: Json) -> None:
    """Run the loop in a worker, under the claim on the run directory; leave an error of ``FINAL`` to the driver."""
    is_first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    torch.set_num_threads(task["config"].cpus_per_worker)
    with claiming(task["claim"] if is_first else None):
        try:
            task["loop"](task, Notes(to_place(task["note"])) if is_first else None)
        except FINAL as error:
            if is_first:
                require_claim()
                write_atomically(to_place(task["failure"]), json.dumps([type(error).__name__, str(error)]))


_context: ContextVar[tuple[TrainProcess | None, LeaseClaim | None]] = ContextVar("_context", default=(None, None))


@contextmanager
def trained_in(process: TrainProcess | None, claim: LeaseClaim | None = None) -> Iterator[None]:
    """Let launches of one worker within the context use this process, and all workers train under this claim."""
    token = _context.set((process, claim))
    try:
        yield
    finally:
        _context.reset(token)


def launch(
    loop: Callable[..., None],
    task: Mapping[str, object],
    config: TrainSection,
    *,
    name: str,
    output: Place,
    update: Update = lambda standing: None,
    unit: str = "rows",
) -> None:
    """Run ``loop(task, notes)`` in every worker, with ``config`` in the task; only the first worker has ``notes``.

    ``<output>.ray`` keeps checkpoints until the training ends. ``update`` receives the notes' progress, in ``unit``.

    Raises:
        RunFailedError: it failed more than ``config.max_failures`` times; the same call resumes the same ``name``.
        CommitError: another driver has the run directory (:func:`trained_in`).
        FINAL: each worker raised this error.
    """
    process, claim = _context.get()
    storage, note, failure = (output.with_name(f"{output.name}.{kind}") for kind in ("ray", "progress", "failure"))
    task = {**task, "loop": loop, "config": config, "claim": claim, "note": str(note), "failure": str(failure)}
    with follow_progress(note, update, unit):
        if process is not None and config.num_workers == 1 and isinstance(storage, Path):
            process.run(task, config, name=name)
        else:
            _launch_group(task, config, name=name, storage=storage)
    if claim is not None:
        claim.require()
    remove(storage)
    note.unlink(missing_ok=True)
    if failure.is_file():
        kind, message = json.loads(failure.read_text())
        failure.unlink()
        raise {error.__name__: error for error in FINAL}[kind](message)


def _launch_group(task: Json, config: TrainSection, *, name: str, storage: Place) -> None:
    """Run a task in a worker group of Ray Train."""
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", HEALTH_CHECK_SECONDS)
    trainer = ray.train.torch.TorchTrainer(
        _run_loop,
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
        for _, failure in sorted(failures.items()):  # the first worker's error names the other driver
            if isinstance(lost := find_root_error(failure), CommitError):
                raise lost from None
        raise _make_failure(name, error) from error


def _make_failure(name: str, error: BaseException) -> RunFailedError:
    cause = str(error).strip().splitlines()[-1]
    return RunFailedError(f"{name}: training failed: {cause}; run the same command to resume")


def remove(storage: Place) -> None:
    """Remove a folder that Ray wrote, by pyarrow as Ray does, since it creates objects that mark folders."""
    filesystem, path = pyarrow.fs.FileSystem.from_uri(str(storage))
    if filesystem.get_file_info(path).type != pyarrow.fs.FileType.NotFound:
        filesystem.delete_dir(path)
