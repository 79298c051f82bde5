"""The log of verdicts: one JSON object per line, appended under a lock and synced before it is acknowledged.

Lines are never rewritten. A person's last line about a row counts; ``back`` withdraws the verdict before it. A line
that was cut off (by a crash or a full disk) was never acknowledged: the next writer ends it, and readers skip it.
"""

import fcntl
import json
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from curation.errors import ReviewError
from curation.storage.files import append_lines, open_file, sync_folder

VERDICTS = ("right", "wrong", "unsure")
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
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    """Time of the verdict (UTC, ISO 8601)."""


Standing = dict[int, dict[str, VerdictLine]]
"""Verdicts that count, by row id and person, each row's in the order of their last change."""


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
        """Append entries, and return once they are on disk; a ``ReviewError`` if they cannot be written."""
        lines = b"".join(json.dumps(asdict(entry)).encode() + b"\n" for entry in entries)
        try:
            is_new = not self._path.exists()
            with self._lock, open_file(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW) as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # against other processes, until the file is closed
                if is_new:
                    sync_folder(self._path.parent)
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
                try:
                    self._entries.append(VerdictLine(**json.loads(line)))
                except (ValueError, TypeError):
                    self.num_torn += bool(line.strip())
        return list(self._entries)

    def standing(self) -> Standing:
        """Return the verdicts that count now, by row and person."""
        return find_standing(self.entries())


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
