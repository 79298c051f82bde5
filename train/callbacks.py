"""Callbacks of a ``transformers.Trainer`` that keep checkpoints and report progress, and the checkpoints' folder.

A checkpoint is read only if it is sealed: a list of its files with their sizes is written last, and only then is the
checkpoint before removed. So a crash or a full disk costs at most the checkpoint that was being written.
"""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import ray.train
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from curation.errors import CommitError
from curation.refs import fingerprint
from curation.storage.files import sync, sync_names, sync_tree
from curation.storage.inside import run_around, to_record
from curation.storage.paths import write_atomically
from train.launch import find_claim_error, require_claim

SEAL = "sealed.json"  # file in a checkpoint that lists its other files with their sizes
CHECKPOINT_SECONDS = 600.0  # maximum time between two checkpoints, even if the share of steps requires none in between


class StoredCheckpoints:
    """A folder of checkpoints in Ray Train's storage, which outlives the machine; every worker resumes from it."""

    def keep(self, directory: Path) -> None:
        """Upload the folder in place of what was stored before; all workers wait for each other."""
        ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(directory))

    def restore(self, directory: Path) -> None:
        """Download the folder that was stored last, if any."""
        if (checkpoint := ray.train.get_checkpoint()) is not None:
            checkpoint.to_directory(directory)


class Partial:
    """The folder ``<output>.partial`` of an unfinished training: its checkpoints, and the result until it is complete.

    Checkpoints with another ``stamp``, a digest of the training's inputs, are not used.
    """

    def __init__(self, output: Path, stamp: str) -> None:
        self.output, self._stamp = output, stamp
        self.folder = output.with_name(f"{output.name}.partial")
        self.checkpoints = self.folder / "checkpoints"

    @classmethod
    def open(
        cls, output: Path, learnt: Sequence[object], kept: StoredCheckpoints | None, args: TrainingArguments
    ) -> Self:
        """Return the folder of a training that begins or resumes, with its stored checkpoints; every worker calls this.

        The first worker prepares it; if the workers do not share it (``kept``), each prepares its own. ``learnt``: the
        training's inputs as JSON, from which the stamp is computed without the location of the run directory.
        """
        partial = cls(output, fingerprint(to_record(learnt, run_around(output))))
        if kept is not None:
            kept.restore(partial.folder)
        if args.process_index == 0 or kept is not None:
            partial.prepare()
        return partial

    def prepare(self) -> None:
        """Keep the folder's last good checkpoint if it belongs to this training, else empty the folder."""
        stamp_file = self.folder / "stamp"
        if not stamp_file.is_file() or stamp_file.read_text() != self._stamp:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            stamp_file.write_text(self._stamp)
        self.keep_last()

    @property
    def last_checkpoint(self) -> str | None:
        """The newest sealed checkpoint of ``transformers.Trainer`` with all its files, or ``None`` if there is none."""
        for checkpoint in self._list_newest_first():
            with suppress(OSError, ValueError):  # unsealed, or without one of its files
                sizes = json.loads((checkpoint / SEAL).read_text())
                if all((checkpoint / name).stat().st_size == size for name, size in sizes.items()):
                    return str(checkpoint)
        return None

    def seal(self, checkpoint: Path) -> None:
        """Declare a checkpoint complete once its files are on the disk; raise if another driver has the run."""
        require_claim()
        files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and not path.name.startswith(SEAL))
        sync(files)
        sizes = {str(path.relative_to(checkpoint)): path.stat().st_size for path in files}
        write_atomically(checkpoint / SEAL, json.dumps(sizes))
        sync_names(checkpoint)

    def keep_last(self) -> None:
        """Remove all checkpoints but the newest good one."""
        kept = self.last_checkpoint
        for path in self._list_newest_first():
            if str(path) != kept:
                shutil.rmtree(path, ignore_errors=True)

    def finish(self, save: Callable[[Path], None]) -> None:
        """Write the result with ``save``, move it into place when it is on the disk, and remove the folder."""
        require_claim()
        save(self.folder / "result")
        sync_tree(self.folder / "result")
        require_claim()
        shutil.rmtree(self.output, ignore_errors=True)
        (self.folder / "result").rename(self.output)
        sync_names(self.output.parent)
        shutil.rmtree(self.folder)

    def _list_newest_first(self) -> list[Path]:
        return sorted(self.checkpoints.glob("checkpoint-*"), key=lambda path: -int(path.name.partition("-")[2]))


class Checkpointing(TrainerCallback):
    """A callback that adds checkpoints by time, seals each one and removes the one before.

    Leave ``save_total_limit`` of ``TrainingArguments`` unset: it would remove the last good checkpoint too early.
    """

    def __init__(self, partial: Partial, kept: StoredCheckpoints | None = None) -> None:
        """Store checkpoints in ``kept``, too, if the workers do not share the folder of ``partial``."""
        self._partial, self._kept = partial, kept
        self._saved = time.monotonic()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Request a checkpoint if one is due by the first worker's clock; ``CommitError`` if the claim is lost."""
        is_due = args.process_index == 0 and time.monotonic() - self._saved >= CHECKPOINT_SECONDS
        states: list[Any] = [(str(find_claim_error(read=control.should_save) or ""), is_due)] * args.world_size
        if args.world_size > 1:
            torch.distributed.all_gather_object(states, states[0])
        for claim_error, is_due in states:
            if claim_error:
                raise CommitError(claim_error)
            control.should_save = control.should_save or is_due

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        """Seal the checkpoint that all workers have written, and remove the one before."""
        if args.world_size > 1:
            torch.distributed.barrier()
        if args.process_index == 0 or self._kept is not None:
            self._partial.seal(self._partial.checkpoints / f"checkpoint-{state.global_step}")
            self._partial.keep_last()
        if self._kept is not None:
            self._kept.keep(self._partial.folder)
        self._saved = time.monotonic()


class Progress(TrainerCallback):
    """A callback that passes on the rows done, the loss and the reward at each logging interval."""

    def __init__(self, num_rows: int, update: Callable[[int, int, str], None] | None) -> None:
        """Report progress out of ``num_rows``, counted over all epochs."""
        self._num_rows, self._update = num_rows, update

    def on_log(self, args: object, state: TrainerState, control: object, **kwargs: Any) -> None:
        """Pass on the progress."""
        logs: Mapping[str, float] = kwargs.get("logs") or {}
        if self._update is not None and state.is_world_process_zero and "loss" in logs:
            words = ", ".join(f"{name} {logs[name]:.3f}" for name in ("loss", "reward") if name in logs)
            self._update(self._num_rows * state.global_step // state.max_steps, self._num_rows, words)
