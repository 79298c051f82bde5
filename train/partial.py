"""The folder of an unfinished training, ``<output>.partial``: its checkpoints, and the result until it is complete."""

import shutil
from collections.abc import Callable
from pathlib import Path


class Partial:
    """What is kept of an unfinished training beside its output.

    Args:
        output: where the result is to stand.
        stamp: a digest of what is trained on what; checkpoints with another stamp are not used.
    """

    def __init__(self, output: Path, stamp: str) -> None:
        self._output, self._stamp = output, stamp
        self.folder = output.with_name(f"{output.name}.partial")
        self.checkpoints = self.folder / "checkpoints"

    def prepare(self) -> None:
        """Keep the folder's checkpoints if they belong to this training, else empty it."""
        stamp_file = self.folder / "stamp"
        if not stamp_file.is_file() or stamp_file.read_text() != self._stamp:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            stamp_file.write_text(self._stamp)

    @property
    def last_checkpoint(self) -> str | None:
        """The newest complete checkpoint of ``transformers.Trainer``; ``None`` where there is none."""
        from transformers.trainer_utils import get_last_checkpoint

        if not self.checkpoints.is_dir():
            return None
        found: str | None = get_last_checkpoint(str(self.checkpoints))  # type: ignore[no-untyped-call]
        return found

    def finish(self, save: Callable[[Path], None]) -> None:
        """Write the result with ``save``, put it in its place at once, and remove the folder."""
        save(self.folder / "result")
        shutil.rmtree(self._output, ignore_errors=True)
        (self.folder / "result").rename(self._output)
        shutil.rmtree(self.folder)
