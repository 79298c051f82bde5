"""Chunks of files: every row once and in order, of bounded size, and few of them however small the files are."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from curation.sources import SourceFile, group_stretches, iter_stretches
from curation.sources.source_file import MOST_FILES


def file(index: int, num_rows: int) -> SourceFile:
    return SourceFile(
        path=f"{index}.csv", format="csv", index=index, num_rows=num_rows, size=1, modified="", schema={}, marks=()
    )


@given(st.lists(st.integers(0, 40), max_size=300), st.integers(1, 50))
@settings(max_examples=100, deadline=None)
def test_groups_hold_every_row_once_and_in_order(sizes: list[int], most_rows: int) -> None:
    files = [file(index, num_rows) for index, num_rows in enumerate(sizes)]
    groups = list(group_stretches(iter_stretches(files, most_rows), most_rows))
    rows = [(part.file.index, row) for parts in groups for part in parts for row in range(part.start, part.stop)]
    assert rows == [(index, row) for index, num_rows in enumerate(sizes) for row in range(num_rows)]
    numbers = [sum(part.num_rows for part in parts) for parts in groups]
    assert all(0 < number <= most_rows for number in numbers)
    for (number, parts), (_, after) in pairwise(zip(numbers, groups, strict=True)):
        assert number + after[0].num_rows > most_rows or len(parts) == MOST_FILES


def test_a_large_file_is_divided_as_if_it_were_alone() -> None:
    files = [file(0, 25), file(1, 1), file(2, 1), file(3, 20)]
    found = [
        [(part.file.index, part.start, part.stop) for part in parts]
        for parts in group_stretches(iter_stretches(files, 10), 10)
    ]
    assert found == [
        [(0, 0, 10)],
        [(0, 10, 20)],
        [(0, 20, 25), (1, 0, 1), (2, 0, 1)],
        [(3, 0, 10)],
        [(3, 10, 20)],
    ]
