"""Callbacks of a ``transformers.Trainer`` that store checkpoints and report progress."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from curation.errors import CommitError
from curation.escaping import get_logger
from curation.refs import fingerprint
from curation.storage.inside import run_around, to_record
from curation.telemetry.standing import format_speed
from train import fence, preemption
from train.agreement import combine_flags
from train.partial import Partial

log = get_logger(__name__)

CHECKPOINT_SECONDS = 600.0
"""Maximum time between two checkpoints, even if the share of steps requires none in between."""
PREEMPTION_SECONDS = 5.0
"""Time between two checks whether a node of the workers drains."""


class Kept(Protocol):
    """A store for a folder of checkpoints that outlives the machine."""

    def keep(self, directory: Path) -> None:
        """Store the folder's current content, replacing what was stored before."""
        ...

    def restore(self, directory: Path) -> None:
        """Restore the last stored content, if any."""
        ...


def open_partial(output: Path, learnt: Sequence[object], kept: Kept | None, args: TrainingArguments) -> Partial:
    """Return the folder of a training that begins or resumes, with its stored checkpoints; every worker calls this.

    The first worker prepares it; if the workers do not share it (``kept``), each prepares its own. Checkpoints of other
    inputs (``learnt``, JSON) are not used; the location of the run directory makes no difference.
    """
    partial = Partial(output, fingerprint(to_record(learnt, run_around(output))))
    if kept is not None:
        kept.restore(partial.folder)
    if args.process_index == 0 or kept is not None:
        partial.prepare()
    return partial


class TerminatedError(RuntimeError):
    """A worker received SIGTERM and saved a checkpoint, from which another process can resume."""


class Checkpointing(TrainerCallback):
    """A callback that adds checkpoints by time and before preemption, seals each one and removes the one before.

    Leave ``save_total_limit`` of ``TrainingArguments`` unset: it would remove the last good checkpoint too early.
    """

    def __init__(self, partial: Partial, kept: Kept | None = None) -> None:
        """Store checkpoints in ``kept``, too, if the workers do not share the folder of ``partial``."""
        self._partial, self._kept = partial, kept
        self._saved = self._asked = time.monotonic()
        self._is_preempted = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Request a checkpoint if one is due by the first worker's clock, or if a worker is about to be preempted.

        Raises:
            CommitError: another driver has the run directory.
        """
        now, is_first = time.monotonic(), args.process_index == 0
        loss = fence.find_claim_error(read=control.should_save)
        is_lost, is_due, is_terminated, ask = combine_flags(
            [
                loss is not None,
                is_first and now - self._saved >= CHECKPOINT_SECONDS,
                preemption.is_terminated(),
                is_first and not self._is_preempted and now - self._asked >= PREEMPTION_SECONDS,
            ],
            args.device,
        )
        if is_lost:
            raise loss or CommitError("the lease was lost, as the first worker says")
        if ask:
            self._asked = now
            self._is_preempted = preemption.is_preempted()
            if self._is_preempted:
                log.warning("a worker's node is about to go: saving a checkpoint at step %d", state.global_step)
        if is_due or is_terminated or (ask and self._is_preempted):
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        """Seal the checkpoint that all workers have written, and remove the one before.

        Raises:
            TerminatedError: this process received SIGTERM.
        """
        if args.world_size > 1:
            torch.distributed.barrier()
        if args.process_index == 0 or self._kept is not None:
            self._partial.seal(self._partial.checkpoints / f"checkpoint-{state.global_step}")
            self._partial.keep_last()
        if self._kept is not None:
            self._kept.keep(self._partial.folder)
        self._saved = time.monotonic()
        if preemption.is_terminated():
            raise TerminatedError(f"SIGTERM: a checkpoint was saved at step {state.global_step}; the process ends")


class Progress(TrainerCallback):
    """A callback that logs loss, rows/s and seconds left at each logging interval, and passes on the rows done."""

    def __init__(self, name: str, num_rows: int, update: Callable[[int, int], None] | None) -> None:
        """Report progress out of ``num_rows``, counted over all epochs."""
        self._name = name
        self._num_rows = num_rows
        self._update = update
        self._start = 0.0
        self._first_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Start the clock."""
        self._start, self._first_step = time.monotonic(), state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        """Log the progress, and pass on the rows done."""
        num_steps = state.global_step - self._first_step
        if not state.is_world_process_zero or not logs or "loss" not in logs or not num_steps:
            return
        seconds_a_step = (time.monotonic() - self._start) / num_steps
        reward = f", reward {logs['reward']:.3f}" if "reward" in logs else ""
        log.info(
            "%s: step %d of %d, loss %.3f%s, %s rows/s, %.0f s left",
            self._name,
            state.global_step,
            state.max_steps,
            logs["loss"],
            reward,
            format_speed(self._num_rows / state.max_steps / seconds_a_step),
            seconds_a_step * (state.max_steps - state.global_step),
        )
        if self._update is not None:
            self._update(self._num_rows * state.global_step // state.max_steps, self._num_rows)
