"""When rows that have arrived are committed."""

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from curation.stopping import Stopped
from curation.tables import commits, io, schemas
from curation.tables.stream import commit_stream

SCHEMA = pa.schema([schemas.ROW_ID])


def test_what_has_come_is_committed_while_the_next_row_is_waited_for(tmp_path):
    uri = str(tmp_path / "t.lance")
    io.create(uri, SCHEMA)
    rounds: list[dict[str, int]] = []

    def arriving() -> Iterator[pa.Table | None]:
        for ids in ([1, 2, 3], [4, 5]):
            yield commits.write_fragment(pa.table({"row_id": ids}, schema=SCHEMA), uri, SCHEMA)
            until = time.monotonic() + 60
            while io.count(io.find_latest(uri)) < ids[-1]:
                assert time.monotonic() < until, "the rows are not committed before others come"
                time.sleep(0.02)
                yield None
        for _ in range(20):
            time.sleep(0.02)
            yield None

    commit_stream(arriving(), seconds=0.05, on_commit=rounds.append)
    assert [round_[uri] for round_ in rounds] == [3, 5, 5], "one commit a fragment, and the last look at the end"


def test_a_stream_that_is_stopped_commits_what_has_not_arrived_too(tmp_path):
    uri = str(tmp_path / "t.lance")
    io.create(uri, SCHEMA)

    def fragment(*ids: int) -> pa.Table:
        return commits.write_fragment(pa.table({"row_id": ids}, schema=SCHEMA), uri, SCHEMA)

    def arriving() -> Iterator[pa.Table]:
        yield fragment(1, 2)
        raise Stopped

    with pytest.raises(Stopped):
        commit_stream(arriving(), seconds=3600, rest=lambda: [fragment(3)])
    assert sorted(io.read(io.find_latest(uri), ["row_id"])["row_id"].to_pylist()) == [1, 2, 3]
