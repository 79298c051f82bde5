"""The record of questions to an endpoint and their answers, written before anything relies on it.

Each process has its own JSON Lines files in one folder: it records a question before sending it, with the most that it
can cost, and the answer when it arrives. In an object store records wait in memory for the next flush, which comes
before answers are yielded, and once a second where money is limited; a process that dies loses the waiting ones. Apart
from these, money is counted over all processes and restarts, a question that was open when its process died counts as
paid, and an answer that arrived is never bought again: whoever asks the same question finds it. In local files this
holds even while actors of a killed driver outlive it, since the next driver's actors wait for answers to questions
asked by others. A question's key is a hash of the request, and of row and seed if the answer is sampled.
"""

import json
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from curation.config.external import TokenPrice
from curation.json_types import Json
from curation.storage.files import append_lines, sync_file
from curation.storage.paths import Place, Remote, read_range, to_place
from curation.teachers.completions import AnsweredRow
from curation.teachers.endpoint_answers import Odd, Usage, restore_row

ODD = {
    "no_answer": "were no answers, counted as paid, and were asked again",
    "estimated": "did not say what they cost, or said what cannot be, so that tokens are estimated",
    "dear": "took more tokens than they can have, as the server says; a limit may be passed by these",
    "other_model": "came from another model than was asked for",
    "other_tokens": "came with log-probabilities of other tokens than their text's",
}
"""Oddities of answers, each with the words that follow the number of such answers."""
REFRESH_SECONDS = 1.0  # the maximum age of the knowledge of other processes' records
ALIVE_SECONDS = 3.0
"""Seconds without growth of its record after which a process counts as dead; actors outlive a driver by some 1 s."""
SUFFIX = ".jsonl"
FORMAT = 2  # format of answers, in each line with one: answers of another format are counted as paid, and not read


@dataclass(kw_only=True)
class Spending:
    """Questions and tokens recorded in some files."""

    questions: int = 0
    prompt: int = 0
    output: int = 0
    open: dict[str, Usage] = field(default_factory=dict)
    """Maximum number of tokens of each question without an answer, by file and number."""
    odd: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)  # first example of each oddity

    @property
    def tokens(self) -> Usage:
        """Tokens that are paid, and the most that open questions may add."""
        return Usage(
            self.prompt + sum(most.prompt for most in self.open.values()),
            self.output + sum(most.output for most in self.open.values()),
        )

    @property
    def findings(self) -> list[Json]:
        """Oddities, most frequent first: ``kind``, number of ``answers``, describing ``words``, ``example``."""
        return [
            {"kind": kind, "answers": number, "words": ODD.get(kind, kind), "example": self.examples[kind]}
            for kind, number in self.odd.most_common()
        ]

    def money(self, price: TokenPrice | None) -> float | None:
        """Return the money that is spent or may be spent on open questions; ``None`` without a price."""
        return None if price is None else price.of(*self.tokens)


class _LineRange(NamedTuple):
    """Byte range of a line in a file."""

    file: str
    start: int
    stop: int


class Paid:
    """The record of this process's questions and answers, and of others' in the folder; None keeps nothing on disk."""

    def __init__(self, folder: str | None) -> None:
        self._folder: Place | None = None if folder is None else to_place(folder)
        self.spending = Spending()
        self._kept: dict[str, AnsweredRow | _LineRange] = {}
        self._elsewhere: dict[str, tuple[str, str]] = {}  # file and key in ``Spending.open``, for others' questions
        self._read: dict[str, int] = {}
        self._name, self._number, self._num_written, self._refreshed = uuid.uuid4().hex, 0, 0, 0.0
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()  # of what waits: threads that take answers flush
        if isinstance(self._folder, Path):
            self._folder.mkdir(parents=True, exist_ok=True)
        self.refresh(at_once=True)

    def find(self, key: str) -> AnsweredRow | None:
        """Return the recorded answer to a question, or None."""
        found = self._kept.get(key)
        if isinstance(found, _LineRange):
            assert self._folder is not None, "only files have places"
            line = read_range(self._folder / found.file, found.start, found.stop)
            return restore_row(json.loads(line)["answer"])
        return found

    def is_asked_elsewhere(self, key: str) -> bool:
        """Return whether another live process awaits the answer to this question; always False in object stores."""
        if not isinstance(self._folder, Path):
            return False
        self._read_others()
        name, number = self._elsewhere.get(key, ("", ""))
        if number not in self.spending.open:
            return False
        return abs(time.time() - (self._folder / name).stat().st_mtime) < ALIVE_SECONDS  # clocks may differ

    def sent(self, most: Usage, key: str) -> int:
        """Record that a question of at most ``most`` tokens is being sent, and return its number."""
        self._number += 1
        self._note({"sent": self._number, "tokens": most, "key": key})
        return self._number

    def got(self, number: int, key: str, used: Usage, answer: AnsweredRow, odd: Odd) -> None:
        """Record an answer and its cost."""
        line: Json = {"got": number, "key": key, "tokens": used, "format": FORMAT, "answer": answer}
        line |= {"odd": odd} if odd else {}
        try:
            self._note(line)
        except OSError:  # it is paid: it is kept in memory until the next flush, which says whether it is written
            self._hold(json.dumps(line).encode() + b"\n")

    def lost(self, number: int, used: Usage, odd: Odd) -> None:
        """Record the cost of a response that was no answer."""
        self._note({"got": number, "tokens": used, "odd": odd})

    def freed(self, number: int) -> None:
        """Record that a question was refused, and costs nothing."""
        self._note({"freed": number})

    def refresh(self, *, at_once: bool = False) -> None:
        """Read what other processes have recorded since the last refresh."""
        if self._folder is None or (not at_once and time.monotonic() - self._refreshed < REFRESH_SECONDS):
            return
        self.flush()
        self._read_others()
        self._refreshed = time.monotonic()

    def _read_others(self) -> None:
        assert self._folder is not None, "something is kept"
        for name, size in _list_records(self._folder):
            if not name.startswith(self._name) and size > (start := self._read.get(name, 0)):
                content = read_range(self._folder / name, start, size)
                self._read[name] = start + self._take(name, content, start)

    def flush(self) -> None:
        """Write all records durably; to an object store as a new object, since objects cannot grow."""
        if isinstance(self._folder, Remote):
            with self._lock:
                if self._waiting:
                    self._num_written += 1
                    (self._folder / f"{self._name}-{self._num_written:09d}{SUFFIX}").put(b"".join(self._waiting))
                    self._waiting.clear()
        elif self._folder is not None and (path := self._folder / f"{self._name}{SUFFIX}").exists():
            with self._lock:
                if self._waiting:
                    append_lines(path, b"".join(self._waiting))
                    self._waiting.clear()
            sync_file(path)

    def _note(self, line: Mapping[str, object]) -> None:
        content = json.dumps(line).encode() + b"\n"
        if isinstance(self._folder, Path):
            name = self._name + SUFFIX
            self._take(name, content, append_lines(self._folder / name, content))
        else:
            self._hold(content)

    def _hold(self, content: bytes) -> None:
        """Keep a line in memory until the next flush."""
        if self._folder is not None:
            with self._lock:
                self._waiting.append(content)
        self._take(self._name + SUFFIX, content, 0, in_memory=True)

    def _take(self, name: str, content: bytes, start: int, *, in_memory: bool = False) -> int:
        """Count complete lines, and return their number of bytes."""
        spending, of, taken = self.spending, name.partition("-")[0].removesuffix(SUFFIX), 0
        for raw in content.splitlines(keepends=True):
            if not raw.endswith(b"\n"):
                break
            at = _LineRange(name, start + taken, start + taken + len(raw))
            taken += len(raw)
            with suppress(ValueError, KeyError, TypeError):  # a line that a power cut has damaged
                line = json.loads(raw)
                if "sent" in line:
                    spending.open[f"{of}-{line['sent']}"] = Usage(*line["tokens"])
                    spending.questions += 1
                    if of != self._name:
                        self._elsewhere[line["key"]] = name, f"{of}-{line['sent']}"
                elif "freed" in line:
                    del spending.open[f"{of}-{line['freed']}"]
                    spending.questions -= 1
                else:
                    used = Usage(*line["tokens"])
                    spending.open.pop(f"{of}-{line['got']}", None)
                    spending.prompt, spending.output = spending.prompt + used.prompt, spending.output + used.output
                    for kind, example in line.get("odd", {}).items():
                        spending.odd[kind] += 1
                        spending.examples.setdefault(kind, example)
                    if "key" in line and line.get("format") == FORMAT:
                        self._elsewhere.pop(line["key"], None)
                        self._kept[line["key"]] = restore_row(line["answer"]) if in_memory else at
        return taken


def read_spending(folder: str) -> Spending | None:
    """Return the total spending recorded in a folder by all processes, or ``None`` if the folder has no records."""
    at = to_place(folder)
    return Paid(folder).spending if at.is_dir() and _list_records(at) else None


def _list_records(folder: Place) -> list[tuple[str, int]]:
    """Return names and sizes of the record files, sorted by name."""
    if isinstance(folder, Remote):
        found = [(entry.path, entry.size) for entry in folder.entries()]
    else:
        found = [(item.name, item.stat().st_size) for item in os.scandir(folder)] if folder.is_dir() else []
    return sorted((name, size) for name, size in found if name.endswith(SUFFIX))
