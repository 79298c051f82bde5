"""Stretches of files, and groups of them: the units in which tasks read a source."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from curation.sources.source_file import SourceFile

MOST_FILES = 64
"""The most files of a group: a store may take long to open each."""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Rows ``start`` to ``stop`` of a file. A task is sent its own files alone: a source may have very many."""

    file: SourceFile
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """The number of its rows."""
        return self.stop - self.start


def stretches(files: Iterable[SourceFile], most_rows: int) -> Iterator[Stretch]:
    """All rows of the files in their order, at most ``most_rows`` in a stretch."""
    for file in files:
        for start in range(0, file.num_rows, most_rows):
            yield Stretch(file=file, start=start, stop=min(start + most_rows, file.num_rows))


def grouped(found: Iterable[Stretch], most_rows: int) -> Iterator[tuple[Stretch, ...]]:
    """Consecutive stretches of at most ``most_rows`` rows together: of tiny files many, of a large one each alone."""
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
