"""The event log of a run, one JSON object per line: ``events.jsonl`` beside the manifest.

Objects in a store cannot be appended to. There the log is split into parts, ``events/<number>.jsonl``. The last part is
written again with each line, or every ``PUT_SECONDS`` if lines come fast and can wait, until it has ``PART_BYTES``.
Each driver begins a new part.
"""

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from curation.escaping import get_logger
from curation.json_types import Json
from curation.storage.files import append_lines, open_file
from curation.storage.paths import Place, Remote
from curation.telemetry.standing import Spent, Work

logger = get_logger(__name__)

PUT_SECONDS = 5.0
PART_BYTES = 256 << 10
ENDS = ("finished", "failed", "stopped")


def parse_events(lines: Iterable[str]) -> Iterator[Json]:
    """Yield the events in log lines; damaged lines are skipped, since nothing depends on them."""
    for line in lines:
        try:
            event = json.loads(line)
            numbers, texts, lists = [event["time"]], [event["event"]], list[Any]()
            if event["event"] in ("started", "progress", *ENDS):
                texts.append(event["stage"])
            if event["event"] == "progress":
                numbers += [event["rows"], event["total"], event.get("rows_per_second") or 1]
                texts += [event.get("unit", ""), event.get("note", "")]
                if "work" in event:
                    Work.from_json(event["work"]).words()
            if event["event"] == "nodes":
                numbers.append(event["num"])
                lists += [event["came"], event["left"]]
                texts += [text for found in lists for text in found]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
        kinds = ((numbers, int | float), (texts, str), (lists, list))  # the types that readers expect
        if all(isinstance(item, kind) for items, kind in kinds for item in items):
            yield event


class EventLog:
    """The event log of a run directory: one local file, or numbered parts in an object store."""

    def __init__(self, directory: Place) -> None:
        self._at = directory / ("events" if isinstance(directory, Remote) else "events.jsonl")
        self._held = ""
        """Lines that are not written yet and, in a store, all lines of the last part."""
        self._part: Remote | None = None
        self._put_at = 0.0
        self._lock = threading.Lock()

    def add(self, line: str, *, can_wait: bool) -> None:
        """Write the line, after earlier ones that could not be written; in a store, one that can wait may be lost."""
        with self._lock:
            self._held += line + "\n"
            try:
                if not isinstance(self._at, Remote):
                    append_lines(self._at, self._held.encode())
                    self._held = ""
                elif not can_wait or time.monotonic() - self._put_at >= PUT_SECONDS:
                    self._put(self._at)
            except OSError as error:  # the lines go with the next one
                logger.warning("%s: events are not written (%s)", self._at, error)

    def last(self, num_bytes: int) -> list[str]:
        """Return the complete lines among the last ``num_bytes`` bytes; of a store's last parts, a little more."""
        if isinstance(self._at, Remote):
            lines: list[str] = []
            size = 0
            for number in reversed(_list_numbers(self._at)):
                content = (self._at / f"{number:08}.jsonl").read_text()
                lines = content.splitlines() + lines
                size += len(content)
                if size >= num_bytes:
                    break
            return lines
        try:
            with open_file(self._at, os.O_RDONLY | os.O_NOFOLLOW) as file:
                start = max(0, file.seek(0, os.SEEK_END) - num_bytes)
                file.seek(start)
                lines = file.read().decode(errors="replace").split("\n")[:-1]  # the rest is half written
        except FileNotFoundError:
            return []
        except OSError as error:  # a folder stands in its place; nothing depends on events
            logger.warning("%s: events are not read (%s)", self._at, error)
            return []
        return lines[1 if start else 0 :]

    def _put(self, folder: Remote) -> None:
        content, part, mode = self._held.encode(), self._part, "overwrite"
        if part is None:
            part, mode = folder / f"{max(_list_numbers(folder), default=0) + 1:08}.jsonl", "create"
        part.put(content, mode)
        self._part, self._put_at = part, time.monotonic()
        if len(content) >= PART_BYTES:
            self._part, self._held = None, ""


def _list_numbers(folder: Remote) -> list[int]:
    return [int(entry.path.removesuffix(".jsonl")) for entry in folder.entries()]


def compute_spent(lines: Iterable[str]) -> dict[str, Spent]:
    """Return the resources spent by each stage, from ``lines``, a run's events with the oldest first.

    All starts of an interrupted stage count. What a killed driver spent after its last event is not known.
    """
    before: dict[str, Spent] = {}
    found: dict[str, Spent] = {}
    for event in parse_events(lines):
        kind, stage = event["event"], event.get("stage")
        if stage is not None and kind == "started":
            before[stage] = found.setdefault(stage, Spent())
        elif stage in found and (kind in ENDS or kind == "progress") and "work" in event:
            now = Spent(**event["work"]["spent"])  # of this driver, from the stage's start on
            found[stage] = before[stage].plus(now)
    return found
