"""The formula of requests against what a server counts."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from curation.tables import commits, compaction, io, schemas
from curation.tables.requests import count_pass_requests
from tests.object_store import ObjectStore, object_store

SCHEMA = schemas.make_labels_schema(("output_last",), "float16", 256)
EXAMPLES = schemas.make_examples_schema(pa.schema([("problem", pa.string()), ("difficulty", pa.float64())]), gold=False)


def examples(num: int) -> pa.Table:
    rows = [{"row_id": row, "problem": f"problem {row}", "difficulty": 1.0, "error": None} for row in range(num)]
    return pa.Table.from_pylist(rows, schema=EXAMPLES)


def labelled(ids_N: np.ndarray) -> pa.Table:
    rows = [
        {
            "row_id": row_id,
            "completion": f"answer {row_id}",
            "label": "1",
            "mean_logprob": -1.0,
            "num_prompt_tokens": 5,
            "num_output_tokens": 5,
            "truncated": False,
            "state_output_last": np.zeros(256, np.float16),
        }
        for row_id in ids_N.tolist()
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def a_pass(store: ObjectStore, name: str, *, chunks: int, chunk_rows: int, every: int) -> tuple[Counter[str], int]:
    """The requests of a pass as actors and driver make them, and the bytes that it stored."""
    source = io.write(examples(chunks * chunk_rows), store.url(f"{name}/examples.lance"))
    uri = store.url(f"{name}/labels.lance")
    before = store.counts()
    io.create(uri, SCHEMA)
    committer, opened = commits.Committer(uri), io.open_table(source)
    for chunk in range(chunks):
        ids_N = np.arange(chunk * chunk_rows, (chunk + 1) * chunk_rows)
        assert opened.take(ids_N).num_rows == chunk_rows
        (written,) = commits.write_fragment(labelled(ids_N), uri, SCHEMA).to_pylist()
        committer.add(written["fragments"], written["row_ids"])
        if (chunk + 1) % every == 0:
            committer.flush()
    table = io.find_latest(uri)
    num_bytes = io.get_table_size(table)
    if tasks := compaction.plan(table, 256 << 20):
        compaction.commit(table, [compaction.rewrite(table, task) for task in tasks])
    return store.counts() - before, num_bytes


@pytest.mark.slow
def test_the_formula_is_near_what_a_server_counts():
    with object_store() as store:
        for number, (chunks, every) in enumerate([(8, 1), (8, 4), (24, 4), (24, 12)]):
            counts, num_bytes = a_pass(store, f"pass-{number}", chunks=chunks, chunk_rows=50, every=every)
            found = count_pass_requests(chunks=chunks, commits=chunks / every, num_bytes=num_bytes)
            puts = counts["PUT"] + counts["POST"]
            gets = counts["GET"] + counts["HEAD"]
            assert 0.8 * puts <= found.puts <= 1.25 * puts
            assert 0.75 * gets <= found.gets <= 1.33 * gets
