"""One worker's share of a network's fit (``train.trust_loop``), with checkpoints from which another worker resumes."""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import ray.train
import ray.train.torch
import torch
from torch import Tensor, nn

from curation.config import TrustConfig
from train import fence
from train.launch import Notes
from train.trust_loop import CHECKPOINT, FitRecord, Shard

CHECKPOINT_SECONDS = 60.0
"""Minimum time between checkpoints, which are written after the next evaluation."""


class RayShard(Shard):
    """The share of one worker of Ray Train."""

    def __init__(self, folder: Path | None, notes: Notes | None) -> None:
        """Keep checkpoints in ``folder``, or if None in Ray Train's storage; the first worker has ``notes``."""
        context, self._is_alone, self._notes = ray.train.get_context(), folder is not None, notes
        self.rank, self.size = context.get_world_rank(), context.get_world_size()
        self._folder = folder or Path(mkdtemp(prefix="fit-"))
        if folder is None and (checkpoint := ray.train.get_checkpoint()) is not None:
            checkpoint.to_directory(self._folder)
        self._last = time.monotonic()

    def prepare(self, net: nn.Module) -> nn.Module:
        """Return the network on its device, with gradients averaged over the workers."""
        prepared: nn.Module = ray.train.torch.prepare_model(net)
        return prepared

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over the workers."""
        if self.size > 1:
            torch.distributed.all_reduce(values)
        return values

    def keep(self, write: Callable[[Path], None]) -> None:
        """Write a checkpoint if the last one is a minute old; all workers wait for a report to Ray Train."""
        # A report waits for Ray's next poll of the worker, and for the other workers: do it rarely, by rank 0's clock.
        due = float(self.rank == 0 and time.monotonic() - self._last > CHECKPOINT_SECONDS)
        if not self.total(torch.tensor(due, device=ray.train.torch.get_device())):
            return
        if self.rank == 0:
            fence.require()
            folder = self._folder / str(self.part)
            (folder / "new").mkdir(parents=True, exist_ok=True)
            write(folder / "new")
            (folder / "new" / CHECKPOINT).replace(folder / CHECKPOINT)
        if not self._is_alone:
            kept = ray.train.Checkpoint.from_directory(self._folder) if self.rank == 0 else None
            ray.train.report({}, checkpoint=kept)
        self._last = time.monotonic()

    def evaluated(self, record: FitRecord, config: TrustConfig) -> None:
        """Note the steps and the AUC."""
        if self._notes is not None:
            done, total = self.part * config.max_steps + record.num_steps, self.parts * config.max_steps
            self._notes.note(done, total, f"AUC {record.validation_aucs[-1]:.3f} on validation rows")

    def restore(self, read: Callable[[Path], None]) -> None:
        """Call ``read`` on the last checkpoint of this network, if there is one."""
        if (self._folder / str(self.part) / CHECKPOINT).is_file():
            read(self._folder / str(self.part))
