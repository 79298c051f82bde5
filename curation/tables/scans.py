"""Reading of a table's columns in one pass, in this process or, for a large table, in Ray tasks over its fragments."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from curation.refs import TableRef
from curation.stopping import iter_checked
from curation.tables.io import open_table
from curation.tasks import run_in_tasks

BATCH_ROWS = 1 << 17
READ_AHEAD_BATCHES, READ_AHEAD_BYTES = 4, 32 << 20
"""Limits on the data read ahead; Lance's own limits would hold gigabytes of a large table in memory."""
ROWS_IN_PROCESS = 1 << 24
"""Number of rows of a table above which Ray tasks read it."""
ROWS_A_TASK = 1 << 22
"""Minimum number of rows per task, except the last one; smaller fragments are read together."""

Result = TypeVar("Result")


def iter_table_batches(
    ref: TableRef,
    columns: Mapping[str, str],
    filter: str | None,
    fragments: Sequence[int] | None = None,
    *,
    num_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows, or those of ``fragments``, that match an SQL ``filter``, in the table's own order.

    ``columns`` are SQL expressions by name; ``num_rows`` is the maximum number of rows of a batch.
    """
    table, selected = open_table(ref), None
    if fragments is not None:
        selected = [item for number in fragments if (item := table.get_fragment(number)) is not None]
    scanner = table.scanner(
        columns=dict(columns),
        filter=filter,
        batch_size=num_rows,
        batch_readahead=READ_AHEAD_BATCHES,
        io_buffer_size=READ_AHEAD_BYTES,
        fragments=selected,
        scan_in_order=True,
    )
    yield from iter_checked(scanner.to_batches())


def map_fragments(ref: TableRef, function: Callable[[Sequence[int] | None], Result]) -> Iterator[Result]:
    """Yield ``function(None)`` or, for a large table, ``function(fragments)``, as :func:`stream_fragments` does."""
    yield from stream_fragments(ref, lambda fragments: [function(fragments)])


def stream_fragments(ref: TableRef, function: Callable[[Sequence[int] | None], Iterable[Result]]) -> Iterator[Result]:
    """Yield the values of ``function`` in the table's order; of a large table, from Ray tasks.

    ``UserError`` is raised as the function raised it; ``RayError`` for another error, or a process that died too often.
    """
    parts: list[list[int]] = []
    fragments = [(item.fragment_id, item.metadata.physical_rows) for item in open_table(ref).get_fragments()]
    if sum(num_rows for _, num_rows in fragments) > ROWS_IN_PROCESS:
        held = ROWS_A_TASK
        for number, num_rows in fragments:
            if held >= ROWS_A_TASK:
                parts.append([])
                held = 0
            parts[-1].append(number)
            held += num_rows
    if len(parts) < 2:
        yield from function(None)
        return
    for found in run_in_tasks(lambda numbers: list(function(numbers)), ((numbers,) for numbers in parts)):
        yield from found
