"""A record of what was asked of an endpoint and what came, on disk before anything relies on it.

Each process that asks has files of its own in one folder, JSON lines: a question is noted before it is sent, with the
most that it can cost, and its answer when it arrives. In an object store these notes wait for the next flush: before
answers are given out, and once a second where money is limited; a process that dies loses those that wait. But for
them, money is counted over all processes and restarts, a question that was under way when a process died counts as
paid, and an answer that arrived is never bought again: the same question finds it, whoever asks. Questions are known by
a hash of the request; a sampled one by its row and seed, too.
"""

import hashlib
import json
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from curation.config.endpoint import TokenPrice
from curation.json_types import JsonView
from curation.storage.paths import Place, Remote, place
from curation.teachers.endpoint_answers import ServedAnswer, Usage

REFRESH_SECONDS = 1.0
"""How old may be what is known of other processes."""
SUFFIX = ".jsonl"


def key_of(question: Mapping[str, object]) -> str:
    """A hash of a request."""
    text = json.dumps(question, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(kw_only=True)
class Spending:
    """Questions and tokens of some files."""

    questions: int = 0
    prompt: int = 0
    output: int = 0
    open: dict[str, Usage] = field(default_factory=dict)
    """The most that the questions without an answer can take, by file and number."""

    @property
    def tokens(self) -> Usage:
        """Tokens that are paid, or may be."""
        return Usage(
            self.prompt + sum(most.prompt for most in self.open.values()),
            self.output + sum(most.output for most in self.open.values()),
        )

    def money(self, price: TokenPrice | None) -> float | None:
        """Money that is spent, or may be; ``None`` without a price."""
        return None if price is None else price.of(*self.tokens)


class _At(NamedTuple):
    """The place of a line."""

    file: str
    start: int
    stop: int


class Paid:
    """Questions and answers of one process, and those of others in the same folder; None: nothing is kept."""

    def __init__(self, folder: str | None) -> None:
        self._folder: Place | None = None if folder is None else place(folder)
        self.spending = Spending()
        self._kept: dict[str, ServedAnswer | _At] = {}
        self._read: dict[str, int] = {}
        self._name, self._number, self._num_written, self._refreshed = uuid.uuid4().hex, 0, 0, 0.0
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()  # of what waits: threads that take answers flush
        self._descriptor: int | None = None
        if isinstance(self._folder, Path):
            self._folder.mkdir(parents=True, exist_ok=True)
        self.refresh(at_once=True)

    def find(self, key: str) -> ServedAnswer | None:
        """The answer that a question had."""
        found = self._kept.get(key)
        if isinstance(found, _At):
            assert self._folder is not None, "only files have places"
            line = _part(self._folder / found.file, found.start, found.stop)
            return ServedAnswer.from_json(json.loads(line)["answer"])
        return found

    def sent(self, most: Usage) -> int:
        """Note that a question is sent, which takes at most so many tokens; its number."""
        self._number += 1
        self._note({"sent": self._number, "tokens": most})
        return self._number

    def got(self, number: int, key: str, used: Usage, answer: ServedAnswer) -> None:
        """Note the answer."""
        self._note({"got": number, "key": key, "tokens": used, "answer": answer})

    def freed(self, number: int) -> None:
        """Note that a question was refused, and costs nothing."""
        self._note({"freed": number})

    def refresh(self, *, at_once: bool = False) -> None:
        """Read what other processes have noted since."""
        if self._folder is None or (not at_once and time.monotonic() - self._refreshed < REFRESH_SECONDS):
            return
        self.flush()
        for name, size in _files(self._folder):
            if not name.startswith(self._name) and size > (start := self._read.get(name, 0)):
                content = _part(self._folder / name, start, size)
                self._read[name] = start + self._take(name, content, start)
        self._refreshed = time.monotonic()

    def flush(self) -> None:
        """Wait until all is on the disk, or in the object store, whose objects cannot grow."""
        if isinstance(self._folder, Remote):
            with self._lock:
                if self._waiting:
                    self._num_written += 1
                    (self._folder / f"{self._name}-{self._num_written:09d}{SUFFIX}").put(b"".join(self._waiting))
                    self._waiting.clear()
        elif self._descriptor is not None:
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Write all, and close the file."""
        self.flush()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _note(self, line: Mapping[str, object]) -> None:
        content = json.dumps(line).encode() + b"\n"
        name, start = self._name + SUFFIX, self._read.get(self._name + SUFFIX, 0)
        if isinstance(self._folder, Path):
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                self._descriptor = os.open(self._folder / name, flags, 0o666)  # less the umask
            os.write(self._descriptor, content)
        elif self._folder is not None:
            with self._lock:
                self._waiting.append(content)
        self._read[name] = start + self._take(name, content, start, in_memory=not isinstance(self._folder, Path))

    def _take(self, name: str, content: bytes, start: int, *, in_memory: bool = False) -> int:
        """Count whole lines; how many bytes they have."""
        taken = 0
        for raw in content.splitlines(keepends=True):
            if not raw.endswith(b"\n"):
                break
            with suppress(ValueError, KeyError, TypeError):  # a line that a power cut left half
                self._count_line(name, json.loads(raw), _At(name, start + taken, start + taken + len(raw)), in_memory)
            taken += len(raw)
        return taken

    def _count_line(self, name: str, line: JsonView, at: _At, in_memory: bool) -> None:
        spending, of = self.spending, name.partition("-")[0].removesuffix(SUFFIX)
        if "sent" in line:
            spending.open[f"{of}-{line['sent']}"] = Usage(*line["tokens"])
            spending.questions += 1
        elif "freed" in line:
            del spending.open[f"{of}-{line['freed']}"]
            spending.questions -= 1
        else:
            used = Usage(*line["tokens"])
            spending.open.pop(f"{of}-{line['got']}", None)
            spending.prompt, spending.output = spending.prompt + used.prompt, spending.output + used.output
            self._kept[line["key"]] = ServedAnswer.from_json(line["answer"]) if in_memory else at


def spending_in(folder: str) -> Spending | None:
    """Spending of all processes that kept their records in a folder; ``None`` where there are none."""
    at = place(folder)
    return Paid(folder).spending if at.is_dir() and any(True for _ in _files(at)) else None


def _files(folder: Place) -> Iterator[tuple[str, int]]:
    """Names and sizes of the records, sorted."""
    if isinstance(folder, Remote):
        found = [(entry.path, entry.size) for entry in folder.entries()]
    else:
        found = [(item.name, item.stat().st_size) for item in os.scandir(folder)] if folder.is_dir() else []
    yield from sorted((name, size) for name, size in found if name.endswith(SUFFIX))


def _part(path: Place, start: int, stop: int) -> bytes:
    if isinstance(path, Remote):
        return path.read_range(start, stop)
    with path.open("rb") as file:
        file.seek(start)
        return file.read(stop - start)
