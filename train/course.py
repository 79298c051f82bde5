"""The progress of a fit: its first worker writes steps and validation AUC, and the waiting stage reads them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from curation.storage.paths import Place, Remote, to_place
from curation.telemetry.standing import Update, follow_progress, note_progress

NOTE_SECONDS, REMOTE_SECONDS = 1.0, 10.0
"""Minimum seconds between two notes, in a file system and in an object store."""


@dataclass
class FitCourse:
    """The place for the progress notes of one network; pickled to its workers."""

    path: str
    part: int = 0
    """The number of networks that were fitted before this one."""
    parts: int = 1
    """The number of networks of the fit."""
    _noted: float = field(default=-NOTE_SECONDS)

    def note(self, step: int, max_steps: int, auc: float) -> None:
        """Note an evaluation: the steps done, the maximum number of steps, and the AUC on validation rows."""
        now, path = time.monotonic(), to_place(self.path)
        pause = REMOTE_SECONDS if isinstance(path, Remote) else NOTE_SECONDS
        if step < max_steps and now - self._noted < pause:
            return
        self._noted, words = now, f"AUC {auc:.3f} on validation rows"
        with suppress(OSError):  # a fit goes on where the store is away
            note_progress(path, self.part * max_steps + step, self.parts * max_steps, words)


_course: ContextVar[FitCourse | None] = ContextVar("_course", default=None)


@contextmanager
def followed(path: Place, update: Update) -> Iterator[None]:
    """Pass the progress of fits within the context to ``update``; ``path`` is a file that their workers can write."""
    token = _course.set(FitCourse(str(path)))
    try:
        with follow_progress(path, update, "steps"):
            yield
    finally:
        _course.reset(token)
        path.unlink(missing_ok=True)


@contextmanager
def part(index: int, of: int) -> Iterator[None]:
    """Report fits within the context as those of network ``index`` of the ``of`` networks of one fit."""
    course = _course.get()
    token = _course.set(None if course is None else replace(course, part=index, parts=of))
    try:
        yield
    finally:
        _course.reset(token)


def get_course() -> FitCourse | None:
    """Return the place where fits launched now note their progress, or None if nobody follows them."""
    return _course.get()
