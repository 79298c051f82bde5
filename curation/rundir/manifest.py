"""The manifest: the finished stages of a run, each with the fingerprint of its inputs and its outputs.

``manifest.json`` maps a stage's name to its record, and is replaced atomically. A stage with the same fingerprint is
done. A different fingerprint under the same name means that something that the stage depends on changed
(:mod:`curation.rundir.status` says what). The event log is beside it (:mod:`curation.rundir.events`). One driver at a
time holds the directory (:mod:`curation.storage.lease`). In an object store, moreover, a driver replaces only the
manifest that it read. A recorded stage counts as done only while its files are there (:mod:`curation.rundir.sealed`).
Paths below the directory are written relative to it, so that it can be moved and copied.
"""

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from curation.cluster.versions import find_versions
from curation.config.filter import WORK
from curation.errors import CommitError, RunDirError
from curation.escaping import escape_text
from curation.json_types import Json
from curation.redaction import redact_value
from curation.refs import fingerprint, iter_table_refs
from curation.rundir.events import EventLog
from curation.rundir.graph import Position, Stage
from curation.rundir.sealed import Lost, find_lost, seal
from curation.sources.source_file import SourceFile
from curation.storage.conditional import OneObject, RegisterContent
from curation.storage.files import read_file
from curation.storage.inside import from_record, is_inside, resolve_inside, to_record
from curation.storage.json_files import parse_json
from curation.storage.lease import Guard, guard_nothing
from curation.storage.paths import Place, Remote, require_reachable, to_place, write_atomically

FORMAT = 6
_KEPT = ("identity", "files", "deals", "attempts", "made", "asked_again")
"""Fields of a manifest that its file holds as they are."""
_HEAD, _NO_DIGEST = '{\n "digest": "', "0" * 64


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """A finished stage: what it read (``inputs``), what it wrote (``outputs``), and its duration (``seconds``)."""

    name: str
    fingerprint: str
    inputs: Json
    outputs: Json
    rows: int
    seconds: float
    started: str
    sealed: Json = field(default_factory=dict)
    """The location of the list of its files (:func:`curation.rundir.sealed.seal`); empty if they were not listed."""
    kind: str = ""
    """The name of the stage's class."""
    at: Json = field(default_factory=dict)
    """The position of the stage in the run (:class:`curation.rundir.graph.Position`)."""


def record_in(folder: Place) -> Place | None:
    """Return the folder with the manifest of a run directory or a filter's output, or None for any other folder."""
    return next((found for found in (folder, folder / WORK) if (found / "manifest.json").is_file()), None)


@dataclass(eq=False)
class Manifest:
    """The manifest of one run directory."""

    directory: Place
    identity: Mapping[str, object] = field(default_factory=dict)
    """The definition of the run's rows: domain, sources, splits and seed."""
    files: dict[str, list[Json]] = field(default_factory=dict)
    """The input files by source, in the order in which they were numbered."""
    stages: dict[str, StageRecord] = field(default_factory=dict)
    _: KW_ONLY
    attempts: dict[str, int] = field(default_factory=dict)
    """Number of requests to do each stage again; each uses another directory."""
    asked_again: dict[str, int] = field(default_factory=dict)
    """Number of times that ``--redo`` named each stage, which asks a server its questions again, at their price."""
    deals: list[Json] = field(default_factory=list)
    """One entry for each assignment of rows to splits, with its splits (:mod:`curation.pipeline.growth`)."""
    made: list[str] = field(default_factory=list)
    """The directories of all stages begun here, also with earlier settings, relative to the run directory. `curate
    clean` removes no others."""
    format: int = FORMAT
    """The format in which the manifest was read."""
    guard: Guard = guard_nothing
    """A function that is called before each lasting change in the directory."""
    token: str | None = None
    """The object store's token of the content that was read or written last."""

    def __post_init__(self) -> None:
        self.events = EventLog(self.directory)
        self._lost: dict[str, Lost] | None = None
        self._is_saved = True

    @classmethod
    def load(cls, directory: Place, *, guard: Guard = guard_nothing) -> Self:
        """Return the manifest of a directory, or an empty one if the directory has none yet.

        Raises:
            RunDirError: the file is not a manifest, was changed, or names a path outside the directory; or the
                directory's store cannot be reached.
        """
        require_reachable(directory)
        path = directory / "manifest.json"
        try:
            written = OneObject(path).read() if isinstance(path, Remote) else _read(path)
            if written is None:
                return cls(directory, guard=guard)
            raw = parse_json(written.text)
            is_signed = written.text.startswith(_HEAD) or raw.get("format", 1) > 1
            if is_signed and written.text != sign_text(written.text):
                raise RunDirError(
                    f"{path}: is damaged, its text does not match its digest; restore it from a copy, or move it away "
                    "to start again"
                )
            known = {item.name for item in fields(StageRecord)}  # earlier formats have further fields
            stages = {
                name: StageRecord(**{key: value for key, value in item.items() if key in known})
                for name, item in from_record(raw["stages"], directory).items()
            }
            if lacks := {"identity", "files"} - raw.keys():
                raise KeyError(*lacks)
            kept = {name: raw[name] for name in _KEPT if name in raw}
            manifest = cls(directory, **kept, stages=stages, token=written.token, guard=guard)
            manifest.format = raw.get("format", 1)
            manifest._require_inside()
            return manifest
        except RunDirError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunDirError(f"{path}: is not a manifest ({error}); move it away to start again") from error

    @property
    def is_current(self) -> bool:
        """Whether this version can continue runs with the manifest's format."""
        return self.format == FORMAT

    def require_current(self) -> None:
        """Raise ``RunDirError`` if the directory has another format, since all its stages would be done again."""
        if not self.is_current:
            raise RunDirError(
                f"{self.directory}: is of format {self.format}, and this version goes on with format {FORMAT} alone; "
                "give another name or run_dir, where all stages are done anew (curate report, inspect and export-* "
                "still read this one)"
            )

    def _require_inside(self) -> None:
        """Raise ``RunDirError`` if a path lies outside the directory, since it would be read, written or removed."""
        for name in (*self.attempts, *self.made):
            resolve_inside(self.directory, name, "manifest.json")
        if not all(type(number) is int for number in self.attempts.values()):
            raise ValueError("attempts are whole numbers")
        for name, record in self.stages.items():
            said = f"the record of stage {name} in manifest.json"
            if record.name != name:
                raise ValueError(f"{said} is of {record.name!r}")
            for path in (name, self._make_folder_name(name, record.inputs), record.sealed.get("sums", name)):
                resolve_inside(self.directory, path, said)

    def require_own_tables(self) -> None:
        """Raise ``RunDirError`` if a record names a table outside the directory, which would be changed.

        No run writes such a record.
        """
        for record in self.stages.values():
            for ref in iter_table_refs([record.inputs, record.outputs]):
                if not is_inside(self.directory, to_place(ref.uri)):
                    raise RunDirError(
                        f"{self.directory}: the record of stage {record.name} in manifest.json names the table "
                        f"{ref.uri}, which lies outside and would be changed there; take the directory from a source "
                        "that you trust"
                    )

    def identify(self, identity: Json, files: dict[str, list[Json]], *, deals: Sequence[Json] = ()) -> None:
        """Set the definition of the rows; the caller has checked that splits assigned before stay unchanged."""
        now = (identity, files, list(deals))
        if (self.identity, self.files, self.deals) != now:
            self.identity, self.files, self.deals = now
            self._is_saved = False

    def save(self) -> None:
        """Write the manifest if :meth:`identify` has changed it."""
        if not self._is_saved:
            self.write()

    def find(self, at: Position, *classes: type[Stage]) -> StageRecord | None:
        """Return the record of the stage at a position, of the first class with one, or ``None``."""
        there = [record for record in self.stages.values() if record.at == asdict(at)]
        return next((record for kind in classes for record in there if record.kind == kind.__name__), None)

    @property
    def source_files(self) -> dict[str, list[SourceFile]]:
        """The input files by source, in the order in which they were numbered."""
        return {name: [SourceFile.from_json(item) for item in items] for name, items in self.files.items()}

    def digest(self, key: Mapping[str, object]) -> str:
        """Return the fingerprint of a key, which does not depend on the location of the directory."""
        return fingerprint(to_record(key, self.directory))

    @property
    def lost(self) -> Mapping[str, Lost]:
        """The stages with missing or cut off files, as found at the first access."""
        if self._lost is None:
            self._lost = find_lost(self.directory, {name: record.sealed for name, record in self.stages.items()})
        return self._lost

    def seal(self, name: str, inputs: Json, outputs: object) -> Json:
        """Seal the files that the outputs of a stage name; see :func:`curation.rundir.sealed.seal`."""
        others = [record.sealed for record in list(self.stages.values()) if record.name != name]
        return seal(self.directory, self._make_folder_name(name, inputs), outputs, others)

    def redo(self, names: Iterable[str], *, named: Iterable[str] = ()) -> None:
        """Forget stages, so that each is done in another directory; their old results stay until `curate clean`.

        ``named``: The stages that a user named, and that do not merely depend on these.
        """
        self.guard()
        for name in named:
            self.asked_again[name] = self.asked_again.get(name, 0) + 1
        for name in names:
            self.stages.pop(name, None)
            self.attempts[name] = self.attempts.get(name, 0) + 1
        self._lost = None
        self.write()

    def record(
        self,
        name: str,
        inputs: Json,
        outputs: Json,
        *,
        rows: int,
        seconds: float,
        sealed: Json | None = None,
        kind: str = "",
        at: Position | None = None,
    ) -> StageRecord:
        """Record that a stage is done, and write the manifest; ``TypeError`` if the outputs are not JSON."""
        record = StageRecord(
            name=name,
            fingerprint=self.digest(inputs),
            inputs=inputs,
            outputs=from_record(to_record(json.loads(json.dumps(outputs)), self.directory), self.directory),  # as read
            rows=rows,
            seconds=round(seconds, 3),
            started=(datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds"),
            sealed=sealed or {},
            kind=kind,
            at=asdict(at or Position()),
        )
        self.stages[name] = record
        self.made = [*dict.fromkeys([*self.made, self._make_folder_name(name, inputs)])]
        self._lost = {other: lost for other, lost in self.lost.items() if other != name}
        self.write()
        return record

    @property
    def pinned(self) -> dict[str, set[int]]:
        """The versions of tables that records name, by the resolved path of the table."""
        found: defaultdict[str, set[int]] = defaultdict(set)
        for record in self.stages.values():
            for ref in iter_table_refs([record.inputs, record.outputs]):
                found[str(to_place(ref.uri).resolve())].add(ref.version)
        return found

    def directory_of(self, stage: str, inputs: Mapping[str, object]) -> Place:
        """Return the directory in which a stage with these inputs writes.

        ``RunDirError``: the stage's name, or a link in the directory's place, leads out of the run directory.
        """
        return resolve_inside(self.directory, self._make_folder_name(stage, inputs), f"stage {stage}")

    def begin(self, stages: Mapping[str, Json]) -> None:
        """Record that the run owns the directories of these stages, given with their inputs."""
        before = len(self.made)
        for name, inputs in stages.items():
            with suppress(TypeError, ValueError):  # inputs that are no JSON: the stage fails, and says so
                self.made = [*dict.fromkeys([*self.made, self._make_folder_name(name, inputs)])]
        if len(self.made) > before:
            self.write()

    def _make_folder_name(self, stage: str, inputs: Mapping[str, object]) -> str:
        again = f".{self.attempts[stage]}" if self.attempts.get(stage) else ""
        return f"{stage}-{self.digest(inputs)[:8]}{again}"

    def event(self, kind: str, **fields: object) -> None:
        """Add a line to the event log."""
        line = json.dumps({"time": round(time.time(), 3), "event": kind, **redact_value(fields)}, default=str)
        self.events.add(escape_text(line), can_wait=kind == "progress")

    def write(self) -> None:
        """Replace the manifest's file."""
        self.guard()
        value = {
            "digest": _NO_DIGEST,
            "format": FORMAT,
            "versions": dict(find_versions()),
            **{name: getattr(self, name) for name in _KEPT},
            "stages": to_record({name: vars(record) for name, record in self.stages.items()}, self.directory),
        }
        path, text = self.directory / "manifest.json", sign_text(json.dumps(value, indent=1))
        if not isinstance(path, Remote):
            write_atomically(path, text)
            self._is_saved = True
            return
        register = OneObject(path)
        put = register.put_if_absent(text) if self.token is None else register.put_if_match(text, self.token)
        if put is None:
            raise CommitError(f"{path}: another driver has written it; this one writes nothing more")
        self.token, self._is_saved = put, True


def _read(path: Path) -> RegisterContent | None:
    try:
        return RegisterContent(text=read_file(path).decode(), token="")
    except FileNotFoundError:
        return None
    except OSError as error:  # a folder stands in its place
        raise RunDirError(f"{path}: cannot be read ({error.strerror or error}); move it away to start again") from error


def sign_text(text: str) -> str:
    """Return the text of a manifest with its digest, SHA-256 of the text with zeros in place of the digest."""
    start, stop = len(_HEAD), len(_HEAD) + len(_NO_DIGEST)
    plain = _HEAD + _NO_DIGEST + text[stop:]
    return plain[:start] + hashlib.sha256(plain.encode()).hexdigest() + plain[stop:]
