"""The folder of an unfinished training, ``<output>.partial``: its checkpoints, and the result until it is complete.

A checkpoint counts only once it is sealed: a list of its files with their sizes is written last. So a
process that dies while it writes, or a full disk, never costs more than the checkpoint that was being written: the one
before is removed after the new one is sealed, and a checkpoint without a seal is never read.
"""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from curation.errors import TrainingError
from curation.storage import durable
from curation.storage.paths import write_atomically
from train import fence

if TYPE_CHECKING:
    import transformers

SEAL = "sealed.json"
"""The file in a checkpoint that lists its other files with their sizes."""


class Partial:
    """The state of an unfinished training that is kept beside its output.

    Args:
        output: the place of the result.
        stamp: a digest of the training's inputs; checkpoints with another stamp are not used.
    """

    def __init__(self, output: Path, stamp: str) -> None:
        self._output, self._stamp = output, stamp
        self.folder = output.with_name(f"{output.name}.partial")
        self.checkpoints = self.folder / "checkpoints"

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
        """The newest good checkpoint of ``transformers.Trainer``, or ``None`` if there is none."""
        return next((str(path) for path in self._list_newest_first() if _is_good(path)), None)

    def resume(self, trainer: "transformers.Trainer") -> None:
        """Resume from the newest good checkpoint; torch's files in it are read without running code (weights_only).

        Raises:
            TrainingError: a file of the checkpoint was not written by a training.
        """
        checkpoint = self.last_checkpoint
        try:
            trainer.train(resume_from_checkpoint=checkpoint)
        except pickle.UnpicklingError as error:
            raise TrainingError(
                f"{checkpoint}: holds a file that no training wrote, and nothing of it was run; remove {self.folder} "
                "and give the same command: the training begins anew"
            ) from error

    def seal(self, checkpoint: Path) -> None:
        """Declare a checkpoint complete, once its files are on the disk.

        Raises:
            CommitError: another driver has the run directory; so does :meth:`finish`.
        """
        fence.require()
        durable.sync(_list_files(checkpoint))
        sizes = {str(path.relative_to(checkpoint)): path.stat().st_size for path in sorted(_list_files(checkpoint))}
        write_atomically(checkpoint / SEAL, json.dumps(sizes))
        durable.sync_names(checkpoint)

    def keep_last(self) -> None:
        """Remove all checkpoints but the newest good one."""
        kept = self.last_checkpoint
        for path in self._list_newest_first():
            if str(path) != kept:
                shutil.rmtree(path, ignore_errors=True)

    def finish(self, save: Callable[[Path], None]) -> None:
        """Write the result with ``save``, move it into place when it is on the disk, and remove the folder."""
        fence.require()
        save(self.folder / "result")
        durable.sync_tree(self.folder / "result")
        fence.require()
        shutil.rmtree(self._output, ignore_errors=True)
        (self.folder / "result").rename(self._output)
        durable.sync_names(self._output.parent)
        shutil.rmtree(self.folder)

    def _list_newest_first(self) -> list[Path]:
        return sorted(self.checkpoints.glob("checkpoint-*"), key=lambda path: -int(path.name.partition("-")[2]))


def _list_files(checkpoint: Path) -> list[Path]:
    return [path for path in checkpoint.rglob("*") if path.is_file() and not path.name.startswith(SEAL)]


def _is_good(checkpoint: Path) -> bool:
    """Return whether a checkpoint is sealed and still has all its files."""
    try:
        sizes = json.loads((checkpoint / SEAL).read_text())
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False
