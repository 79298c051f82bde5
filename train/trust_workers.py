"""Fits a network by workers of Ray Train, each of which runs ``train.trust_loop`` on its shard.

A killed worker is replaced and resumes from the last checkpoint beside ``output``.
"""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from torch import Tensor, nn

from curation.config import TrustConfig
from curation.escaping import get_logger
from curation.json_types import Json
from curation.refs import TrustRef, fingerprint
from curation.storage.paths import Place, to_place
from curation.trust import saved
from curation.trust.states import StateTrust
from train import course, fence
from train.course import FitCourse
from train.launch import CLAIM, FOLDER, launch
from train.trust_loop import CHECKPOINT, FitRecord, LabelledRows, Shard

CHECKPOINT_SECONDS = 60.0
"""Minimum time between checkpoints, which are written after the next evaluation."""

log = get_logger(__name__)


def fit_net(
    fit: Callable[..., StateTrust],
    rows: "ray.ObjectRef[Any]",
    config: TrustConfig,
    origin: Mapping[str, object],
    *,
    seed: int,
    output: Place,
    **options: object,
) -> TrustRef:
    """Fit a network and save it to ``output``; the workers of a node share one copy of the rows.

    Each worker calls ``fit(rows, config, seed=, origin=, shard=, **options)``, and all get the same trust function.
    """
    task = {"fit": fit, "options": options, "rows": [rows], "origin": {**origin, "seed": seed}, "output": str(output)}
    name = f"trust-{fingerprint([origin, seed, options])}"  # a checkpoint of other rows or settings is not resumed
    storage = output.with_name(f"{output.name}.ray")
    launch(_train, {**task, "course": course.get_course()}, config, name=name, storage=storage)
    return saved.pin(output)


class _RayShard(Shard):
    """The share of one worker of Ray Train."""

    def __init__(self, folder: Path | None, course: FitCourse | None) -> None:
        """Keep checkpoints in ``folder`` if Ray Train does not keep them: in a process that trains alone."""
        context, self._folder, self._course = ray.train.get_context(), folder, course
        self.rank, self.size = context.get_world_rank(), context.get_world_size()
        self._last = time.monotonic()

    def prepare(self, net: nn.Module) -> nn.Module:
        prepared: nn.Module = ray.train.torch.prepare_model(net)
        return prepared

    def total(self, values: Tensor) -> Tensor:
        if self.size > 1:
            torch.distributed.all_reduce(values)
        return values

    def keep(self, write: Callable[[Path], None]) -> None:
        # A report waits for Ray's next poll of the worker, and for the other workers: do it rarely, by rank 0's clock.
        due = float(self.rank == 0 and time.monotonic() - self._last > CHECKPOINT_SECONDS)
        if not self.total(torch.tensor(due, device=ray.train.torch.get_device())):
            return
        with TemporaryDirectory(dir=None if self._folder is None else self._folder.parent) as directory:
            checkpoint = None
            if self.rank == 0:
                fence.require()
                write(Path(directory))
                checkpoint = ray.train.Checkpoint.from_directory(directory)
            if self._folder is not None:
                self._folder.mkdir(exist_ok=True)
                (Path(directory) / CHECKPOINT).replace(self._folder / CHECKPOINT)
            else:
                ray.train.report({}, checkpoint=checkpoint)
        self._last = time.monotonic()

    def evaluated(self, record: FitRecord, config: TrustConfig) -> None:
        if self._course is not None and self.rank == 0:
            self._course.note(record.num_steps, config.max_steps, record.validation_aucs[-1])

    def restore(self, read: Callable[[Path], None]) -> None:
        if self._folder is not None:
            if (self._folder / CHECKPOINT).is_file():
                read(self._folder)
        elif (checkpoint := ray.train.get_checkpoint()) is not None:
            with checkpoint.as_directory() as directory:
                read(Path(directory))


def _train(task: Json) -> None:
    """Fit the trust function in each worker."""
    origin = task["origin"]
    config = TrustConfig.model_validate(origin["config"])
    torch.set_num_threads(config.cpus_per_worker)
    logging.getLogger("train").setLevel(logging.INFO)
    rows = LabelledRows(*ray.get(task["rows"][0]))
    shard = _RayShard(Path(task[FOLDER]) if FOLDER in task else None, task["course"])
    with fence.around(task[CLAIM] if shard.rank == 0 else None):
        trust = task["fit"](rows, config, seed=origin["seed"], origin=origin, shard=shard, **task["options"])
        if shard.rank:
            return
        fence.require()
        trust.save(to_place(task["output"]))
        record = trust.fit
        log.info(
            "trust: fitted on %d rows, %d steps in %.0f s, AUC %.3f on %d validation rows after step %d",
            record["num_fit"],
            record["steps"][-1],
            record["seconds"],
            record["validation_aucs"][record["best"]],
            record["num_validation"],
            record["steps"][record["best"]],
        )
