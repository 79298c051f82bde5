"""Registers: small texts with conditional writes. A write succeeds only if nobody else wrote since the last read.

Of any number of concurrent writers one succeeds, and the others learn that they failed. The lease on a run directory is
such a text; in an object store, so is the manifest.
"""

import json
import os
import re
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from curation.errors import RunDirError
from curation.storage.files import read_file, sync_folder
from curation.storage.paths import Place, Remote

KEPT = 64
"""The number of old files that :class:`NumberedFiles` keeps, so that a late writer finds its successor's file.

A writer that is paused between its link and its check while as many others write counts as late, though its text was
the newest for a moment: with 8 that happened on a busy machine.
"""
_NUMBERED = re.compile(r"[1-9][0-9]*\.json")


class RegisterContent(NamedTuple):
    """The content of a register, with a token that identifies exactly this content."""

    text: str
    token: str


class NumberedFiles:
    """A register on a local or shared file system: the file with the highest number, ``<directory>/<number>.json``.

    File systems have no conditional replacement. But link(2) never replaces a file, not even on NFS, so the first
    writer to link the next number wins. A file is complete before it is linked.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self) -> RegisterContent | None:
        """Return the newest content; None if nothing was written yet."""
        while (number := self._find_newest()) > 0:
            path = self._get_path(number)
            try:
                return RegisterContent(text=read_file(path).decode(errors="replace"), token=str(number))
            except FileNotFoundError:  # a successor has removed it
                continue
            except OSError as error:
                raise RunDirError(
                    f"{path}: cannot be read ({error.strerror}); remove it if no driver is running"
                ) from error
        return None

    def put_if_absent(self, text: str) -> str | None:
        """Write ``text`` if nothing was written yet, and return the new token; otherwise return None."""
        return None if self._find_newest() else self._put(text, 1)

    def put_if_match(self, text: str, token: str) -> str | None:
        """Write ``text`` if the content is still the token's, and return the new token; otherwise return None."""
        return self._put(text, int(token) + 1)

    def _put(self, text: str, number: int) -> str | None:
        self._directory.mkdir(parents=True, exist_ok=True)
        temporary = self._directory / f".{uuid.uuid4().hex}"
        try:
            with temporary.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(temporary, self._get_path(number))
            if temporary.stat().st_nlink < 2:  # NFS may report an error for a link(2) that succeeded
                return None
            sync_folder(self._directory)
        finally:
            temporary.unlink(missing_ok=True)
        if number <= self._find_newest() - KEPT:  # the number was free again because its successors removed it
            self._get_path(number).unlink(missing_ok=True)
            return None
        for old in self._list_numbers():
            if old <= number - KEPT:
                self._get_path(old).unlink(missing_ok=True)
        return str(number)

    def _get_path(self, number: int) -> Path:
        return self._directory / f"{number}.json"

    def _list_numbers(self) -> list[int]:
        try:
            return [int(path.stem) for path in self._directory.iterdir() if _NUMBERED.fullmatch(path.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _find_newest(self) -> int:
        return max(self._list_numbers(), default=0)


class OneObject:
    """A register in an object store, which has conditional writes: If-None-Match and If-Match.

    If the answer to a write is lost, the writer recognises its own write by the text. So different writers must write
    different texts.
    """

    def __init__(self, at: Remote) -> None:
        self._at = at

    def read(self) -> RegisterContent | None:
        """Return the content of the object; None if there is no object."""
        try:
            content, tag = self._at.read_tagged()
        except FileNotFoundError:
            return None
        return RegisterContent(text=content.decode(), token=json.dumps(tag))

    def put_if_absent(self, text: str) -> str | None:
        """Write if no object exists."""
        return self._put(text, "create")

    def put_if_match(self, text: str, token: str) -> str | None:
        """Write if the object still has the token's tag."""
        return self._put(text, json.loads(token))

    def _put(self, text: str, mode: object) -> str | None:
        try:
            return json.dumps(self._at.put(text.encode(), mode))
        except FileExistsError:  # another writer's, or this same request, repeated because its answer was lost
            found = self.read()
            return found.token if found is not None and found.text == text else None


Register = NumberedFiles | OneObject


def make_register(directory: Place) -> Register:
    """Return the register at a path: a local folder of numbered files, or one object of a store."""
    return OneObject(directory) if isinstance(directory, Remote) else NumberedFiles(directory)
