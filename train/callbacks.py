"""What happens beside the steps of a ``transformers.Trainer``: checkpoints are stored elsewhere, progress is told."""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

log = logging.getLogger(__name__)


class Kept(Protocol):
    """Stores a folder of checkpoints so that it outlives the machine."""

    def keep(self, directory: Path) -> None:
        """Store the folder's current content, replacing what was stored before."""
        ...

    def restore(self, directory: Path) -> None:
        """Restore the last stored content, if any."""
        ...


class Keeping(TrainerCallback):
    """Stores each checkpoint elsewhere, from all workers at once."""

    def __init__(self, kept: Kept, partial: Path) -> None:
        self._kept, self._partial = kept, partial

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Store the checkpoint that was just written."""
        self._kept.keep(self._partial)


class Progress(TrainerCallback):
    """Logs the loss, rows/s and the seconds left at each logging interval, and passes the rows done to ``update``."""

    def __init__(self, name: str, num_rows: int, update: Callable[[int, int], None] | None) -> None:
        """``num_rows``: over all epochs."""
        self._name = name
        self._num_rows = num_rows
        self._update = update
        self._start = 0.0
        self._first_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the clock."""
        self._start, self._first_step = time.monotonic(), state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Log, and tell the rows done."""
        num_steps = state.global_step - self._first_step
        if not state.is_world_process_zero or not logs or "loss" not in logs or not num_steps:
            return
        seconds_a_step = (time.monotonic() - self._start) / num_steps
        reward = f", reward {logs['reward']:.3f}" if "reward" in logs else ""
        log.info(
            "%s: step %d of %d, loss %.3f%s, %.0f rows/s, %.0f s left",
            self._name,
            state.global_step,
            state.max_steps,
            logs["loss"],
            reward,
            self._num_rows / state.max_steps / seconds_a_step,
            seconds_a_step * (state.max_steps - state.global_step),
        )
        if self._update is not None:
            self._update(self._num_rows * state.global_step // state.max_steps, self._num_rows)
