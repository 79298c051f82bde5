"""The record of one input file of a run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import NamedTuple, Self

from curation.json_types import Json


class Dialect(NamedTuple):
    """How the records of a CSV file are written."""

    delimiter: str = ","
    """The character between the fields."""
    quoting: str = "auto"
    """``quotes``, ``none`` or ``auto``, as ``SourceConfig.quoting``."""
    is_spaced: bool = False
    """Whether a space follows each delimiter and belongs to no field, as in ``text, "label"``."""


PLAIN = Dialect()


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
    """Bytes; 0 for a Lance table."""
    modified: str
    """Time of modification in nanoseconds, or an entity tag, or a Lance table's version."""
    schema: dict[str, str]
    """The type of each column, by name: ``text`` in CSV, ``json`` in JSONL (whose first records name the columns)."""
    marks: tuple[int, ...] = ()
    """The byte at which each ``readers.MARK_ROWS``-th record of a JSONL or CSV file starts."""

    delimiter: str = ","
    """This and the next two: the :class:`Dialect` of a CSV file."""
    quoting: str = "auto"
    is_spaced: bool = False
    content: str = ""
    """The digest of its bytes (``curation.sources.paths.content_digest``); "" of a Lance table, a reader of one's own,
    and where an earlier version found the file."""

    @property
    def dialect(self) -> Dialect:
        """How the records of a CSV file are written."""
        return Dialect(self.delimiter, self.quoting, self.is_spaced)

    def to_json(self) -> Json:
        """Return the file as a JSON object: a part of cache keys, without ``content`` and the defaults of a dialect."""
        usual = PLAIN._asdict()
        left_out = {"content", *(name for name, value in usual.items() if getattr(self, name) == value)}
        return {name: value for name, value in asdict(self).items() if name not in left_out} | {
            "marks": list(self.marks)
        }

    def recorded(self) -> Json:
        """The file as the manifest has it: with ``content`` where it is known."""
        return self.to_json() | ({"content": self.content} if self.content else {})

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """The inverse of :meth:`to_json`."""
        return cls(**{**value, "marks": tuple(value["marks"])})

    @classmethod
    def with_contents(cls, files: Iterable[Mapping[str, object]], contents: Sequence[str]) -> list[Self]:
        """The files of :meth:`to_json` with their digests, in the same order; without any, ``contents`` is empty."""
        return [
            cls.from_json({**file, "content": content})
            for file, content in zip(files, contents or repeat(""), strict=False)
        ]
