"""The log of verdicts: one JSON object a line, appended under a lock and synced before anybody is told that it is kept.

Nothing in it is ever rewritten. A person's last line about a row counts; ``back`` withdraws the one before. A line that
was cut off (the machine died, the disk was full) was never acknowledged: the next writer ends it, and readers skip it.
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
    """How it came: ``page``, ``csv``, ``label-studio`` or ``argilla``."""
    saw_trust: bool = False
    """Whether the person had asked for the trust score."""
    time: str = ""
    """When it was given (UTC, ISO); unset, now."""

    def __post_init__(self) -> None:
        if not self.time:
            object.__setattr__(self, "time", datetime.now(UTC).isoformat(timespec="milliseconds"))

    @classmethod
    def parsed(cls, line: bytes) -> Self | None:
        """Return the entry of a line; None for a line that was cut off."""
        try:
            return cls(**json.loads(line))
        except (ValueError, TypeError):
            return None


class VerdictLog:
    """The verdicts of a review, as every process and thread that writes them has them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._offset = 0
        self._entries: list[VerdictLine] = []
        self.num_torn = 0
        """The number of lines that were cut off."""

    def add(self, entries: Iterable[VerdictLine]) -> None:
        """Append entries; when this returns they are on the disk.

        Raises:
            ReviewError: they cannot be written, and none is.
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
        """Return all entries so far, those of other processes included, in the order of the log."""
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
"""The verdict of each person on each row, in the order of the last change."""


def find_standing(entries: Iterable[VerdictLine]) -> Standing:
    """Return the verdicts that count after these entries."""
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
