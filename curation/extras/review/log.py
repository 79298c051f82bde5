"""The log of verdicts: one JSON object per line, appended under a lock and synced before it is acknowledged.

Lines are never rewritten. A person's last line about a row counts; ``back`` withdraws the verdict before it. A line
that was cut off (by a crash or a full disk) was never acknowledged: the next writer ends it, and readers skip it.
"""

import fcntl
import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

from curation.errors import ReviewError
from curation.storage.files import append_lines, open_file, sync_folder

Verdict = Literal["right", "wrong", "unsure"]
VERDICTS: tuple[Verdict, ...] = ("right", "wrong", "unsure")
BACK = "back"


@dataclass(frozen=True, kw_only=True)
class VerdictLine:
    """A line of the log."""

    row_id: int
    person: str
    verdict: str
    """One of ``VERDICTS``, or ``BACK``."""
    via: str
    """Origin of the verdict: ``page``, ``csv``, ``label-studio`` or ``argilla``."""
    saw_trust: bool = False
    """Whether the person had looked at the trust score."""
    time: str = ""
    """Time of the verdict (UTC, ISO 8601); the current time by default."""

    def __post_init__(self) -> None:
        if not self.time:
            object.__setattr__(self, "time", datetime.now(UTC).isoformat(timespec="milliseconds"))

    @classmethod
    def parsed(cls, line: bytes) -> Self | None:
        """Parse a line of the log; return None if the line was cut off."""
        try:
            return cls(**json.loads(line))
        except (ValueError, TypeError):
            return None


class VerdictLog:
    """The log of a review's verdicts, which several processes and threads may write and read at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._offset = 0
        self._entries: list[VerdictLine] = []
        self.num_torn = 0
        """Number of lines that were cut off."""

    def add(self, entries: Iterable[VerdictLine]) -> None:
        """Append entries, and return once they are on disk.

        Raises:
            ReviewError: the entries cannot be written.
        """
        lines = b"".join(json.dumps(asdict(entry)).encode() + b"\n" for entry in entries)
        try:
            with self._lock, _opened(self._path) as file:
                append_lines(self._path, lines)
                os.fsync(file)
        except OSError as error:
            raise ReviewError(
                f"{self._path}: the verdict is not kept ({error.strerror}); mend it and give it again"
            ) from error

    def entries(self) -> list[VerdictLine]:
        """Return all entries so far, including those of other processes, in the order of the log."""
        with self._lock, suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):  # being written
                    break
                self._offset += len(line)
                entry = VerdictLine.parsed(line)
                if entry is not None:
                    self._entries.append(entry)
                elif line.strip():
                    self.num_torn += 1
        return list(self._entries)

    def standing(self) -> "Standing":
        """Return the verdicts that count now, by row and person."""
        return find_standing(self.entries())


Standing = dict[int, dict[str, VerdictLine]]
"""Verdicts that count, by row id and person, each row's in the order of their last change."""


def find_standing(entries: Iterable[VerdictLine]) -> Standing:
    """Return the verdicts that count after the entries of a log."""
    found: Standing = {}
    for entry in entries:
        of_row = found.setdefault(entry.row_id, {})
        of_row.pop(entry.person, None)
        if entry.verdict != BACK:
            of_row[entry.person] = entry
        if not of_row:
            del found[entry.row_id]
    return found


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open the log for appending and lock it against other processes; yield its file descriptor."""
    is_new = not path.exists()
    with open_file(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW) as file:  # its end unlocks it
        fcntl.flock(file, fcntl.LOCK_EX)
        if is_new:
            sync_folder(path.parent)
        yield file.fileno()
