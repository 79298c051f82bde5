"""The record of one input file of a run, and stretches of files, the units in which tasks read a source."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import repeat
from typing import Self

from curation.json_types import Json

TEXTS = ("jsonl", "csv")
"""Text formats, whose records are read one by one."""
DIALECT = ("delimiter", "quoting")
"""Fields of a file that say how its records are written, in CSV."""
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
"""Arrow's names of compressions by file name ending; files of text formats may be compressed so."""
_OF_TEXT = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv"}
FORMATS: Mapping[str, str] = {
    **{".parquet": "parquet", ".pq": "parquet", ".lance": "lance"},
    **{end + further: name for end, name in _OF_TEXT.items() for further in ("", *COMPRESSED)},
}
"""The format of files by the ending of their names."""


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One input file as the run first saw it."""

    path: str
    """A local path or a URL."""
    format: str
    index: int
    """The file's number in the source, used as the upper bits of its rows' ids."""
    num_rows: int
    size: int
    """Size in bytes; 0 for a Lance table."""
    modified: str
    """Time of modification in nanoseconds, or an entity tag, or a Lance table's version."""
    schema: dict[str, str]
    """The type of each column: ``text`` in CSV, ``json`` in JSONL."""
    marks: tuple[int, ...] = ()
    """The byte at which each ``readers.MARK_ROWS``-th row of a JSONL or CSV file starts."""

    delimiter: str = ","
    """The character between the fields of CSV."""
    quoting: str = "auto"
    """``quotes``, ``none`` or ``auto``, as ``SourceConfig.quoting``, in CSV."""
    content: str = ""
    """The digest of the file's bytes, or "" for a Lance table or a file of an earlier version."""

    def to_json(self) -> Json:
        """Return the file as a JSON object for cache keys, without ``content`` and fields at their defaults."""
        usual = {known.name: known.default for known in fields(self) if known.name in DIALECT}
        usual |= {"content": self.content}
        items = asdict(self) | {"marks": list(self.marks)}
        return {name: value for name, value in items.items() if name not in usual or value != usual[name]}

    def recorded(self) -> Json:
        """Return the file as a JSON object for the manifest, with ``content`` if it is known."""
        return self.to_json() | ({"content": self.content} if self.content else {})

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """Return the file that :meth:`to_json` wrote; keys of an earlier version make its format one without reader."""
        further = sorted(value.keys() - {known.name for known in fields(cls)})
        known = {name: item for name, item in value.items() if name not in further}
        return cls(**known | {"marks": tuple(value["marks"]), "format": " ".join([value["format"], *further])})

    @classmethod
    def with_contents(cls, files: Iterable[Mapping[str, object]], contents: Sequence[str]) -> list[Self]:
        """Return the files of :meth:`to_json` with their digests, in the same order; ``contents`` is empty without."""
        pairs = zip(files, contents or repeat(""), strict=False)
        return [cls.from_json({**file, "content": content}) for file, content in pairs]


MOST_FILES = 64
"""Maximum number of files in a group, since a store may take long to open each."""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Rows ``start`` to ``stop`` of a file. A task receives only its own files, since a source may have very many."""

    file: SourceFile
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


def iter_stretches(files: Iterable[SourceFile], most_rows: int) -> Iterator[Stretch]:
    """Yield all rows of the files in their order, at most ``most_rows`` in a stretch."""
    for file in files:
        for start in range(0, file.num_rows, most_rows):
            yield Stretch(file=file, start=start, stop=min(start + most_rows, file.num_rows))


def group_stretches(found: Iterable[Stretch], most_rows: int) -> Iterator[tuple[Stretch, ...]]:
    """Yield groups of consecutive stretches, each of at most ``most_rows`` rows (or one stretch) in few files."""
    group: list[Stretch] = []
    num_rows = 0
    for stretch in found:
        if group and (num_rows + stretch.num_rows > most_rows or len(group) == MOST_FILES):
            yield tuple(group)
            group, num_rows = [], 0
        group.append(stretch)
        num_rows += stretch.num_rows
    if group:
        yield tuple(group)
