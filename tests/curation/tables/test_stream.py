"""When rows that have arrived are committed."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from curation.tables import commits, io, schemas
from curation.tables.stream import Round, commit_stream

SCHEMA = pa.schema([schemas.ROW_ID])


def test_what_has_come_is_committed_while_the_next_row_is_waited_for(tmp_path):
    uri = str(tmp_path / "t.lance")
    io.create(uri, SCHEMA)
    rounds: list[Round] = []

    def arriving() -> Iterator[Mapping[str, Any] | None]:
        for ids in ([1, 2, 3], [4, 5]):
            yield from commits.write_fragment(pa.table({"row_id": ids}, schema=SCHEMA), uri, SCHEMA).to_pylist()
            until = time.monotonic() + 60
            while io.count(io.latest(uri)) < ids[-1]:
                assert time.monotonic() < until, "the rows are not committed before others come"
                time.sleep(0.02)
                yield None
        for _ in range(20):
            time.sleep(0.02)
            yield None

    commit_stream(arriving(), seconds=0.05, on_commit=rounds.append)
    assert [round_.rows[uri] for round_ in rounds] == [3, 5, 5], "one commit a fragment, and the last look at the end"
