"""Compaction and the removal of replaced versions: fewer fragments and manifests, and the same rows for everybody."""

import time
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from curation.errors import CommitError
from curation.refs import TableRef
from curation.storage import lease
from curation.tables import commits, compaction, io, schemas, versions
from curation.tables.columns import add_columns
from curation.tables.compaction import compact
from curation.tables.stream import commit_stream

SCHEMA = pa.schema([schemas.ROW_ID, ("state", pa.list_(pa.float16(), 256))])
ADDED = pa.schema([("sum", pa.float32())])
CHUNK = 100


def queue(committer: commits.Committer, chunk: int, num_rows: int = CHUNK) -> None:
    """Write a chunk as a fragment, 52 KB, and have it committed the next time."""
    ids_N = chunk * CHUNK + np.arange(num_rows)
    states = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids_N % 50, 256).astype(np.float16)), 256)
    table = pa.table({"row_id": ids_N, "state": states}, schema=SCHEMA)
    (row,) = commits.write_fragment(table, committer.uri, SCHEMA).to_pylist()
    committer.add(row["fragments"], row["row_ids"])


def passed(directory: Path, num_chunks: int) -> TableRef:
    """The table that a pass leaves which commits every tenth chunk."""
    uri = str(directory / "labels.lance")
    io.create(uri, SCHEMA)
    committer = commits.Committer(uri)
    for chunk in range(num_chunks):
        queue(committer, chunk)
        if chunk % 10 == 9:
            committer.flush()
    committer.flush()
    return io.find_latest(uri)


def test_small_fragments_become_large_ones_with_the_rows_in_their_order(tmp_path, local_ray):
    ref = passed(tmp_path, 100)
    before, num_before = io.read(ref), len(io.open_table(ref).get_fragments())
    compacted = compact(ref, 1)
    fragments = io.open_table(compacted).get_fragments()
    assert len(fragments) == 5 and num_before == 100
    sizes = [fragment.metadata.files[0].file_size_bytes / 2**20 for fragment in fragments]
    assert min(sizes) > 0.9 and max(sizes) < 1.5
    assert io.read(compacted).equals(before)
    assert compact(compacted, 1) == compacted
    versions.remove_older(compacted, {ref.version})
    assert io.read(ref).equals(before)
    versions.remove_older(compacted, {compacted.version})
    assert [item["version"] for item in lance.dataset(ref.uri).versions()] == [compacted.version]
    assert len(list((Path(ref.uri) / "data").iterdir())) == 5  # no row is on the disk twice

    for path in (Path(ref.uri) / "data").iterdir():  # the cache of the ids is that of the new fragments
        path.rename(path.with_suffix(".away"))
    committer = commits.Committer(ref.uri)
    assert set(committer.done) == set(range(100 * CHUNK))
    for path in (Path(ref.uri) / "data").iterdir():
        path.rename(path.with_suffix(".lance"))
    queue(committer, 100)
    committer.flush()
    assert io.count(io.find_latest(ref.uri)) == 101 * CHUNK

    def total(batch: pa.RecordBatch) -> pa.RecordBatch:
        sums_N = np.stack(batch.column("state").to_numpy(zero_copy_only=False)).astype(np.float32).sum(axis=1)
        return pa.record_batch([pa.array(sums_N)], schema=ADDED)

    scored = io.read(add_columns(compacted, ["state"], ADDED, total))
    assert scored["sum"].to_numpy().tolist() == (256.0 * (np.arange(100 * CHUNK) % 50)).tolist()
    assert scored["row_id"].equals(before["row_id"])


def test_it_waits_for_no_cpu_that_the_actors_of_a_pass_keep(tmp_path, local_ray):
    class Busy:
        def ready(self):
            return True

    busy = [local_ray.remote(Busy).options(num_cpus=1).remote() for _ in range(2)]
    # One waits for ever if actors that earlier tests keep warm hold a CPU; then none is left either.
    local_ray.wait([actor.ready.remote() for actor in busy], num_returns=2, timeout=10)
    ref = passed(tmp_path, 100)
    assert local_ray.available_resources().get("CPU", 0) < 1
    assert len(io.open_table(compact(ref, 1)).get_fragments()) == 5
    for actor in busy:
        local_ray.kill(actor)


def test_a_pass_merges_while_it_adds(tmp_path, local_ray, monkeypatch, caplog):
    monkeypatch.setattr(compaction, "FANOUT", 8)
    uri = str(tmp_path / "labels.lance")
    io.create(uri, SCHEMA)
    committer, fewest = commits.Committer(uri, fragment_mb=1), []
    for chunk in range(150):
        if chunk == 75:  # another driver goes on
            committer = commits.Committer(uri, fragment_mb=1)
            assert set(committer.done) == set(range(75 * CHUNK))
        queue(committer, chunk)
        committer.flush()
        assert committer._merger is not None
        local_ray.wait([*committer._merger._under_way], num_returns=len(committer._merger._under_way) or 1, timeout=60)
        fewest.append(len(lance.dataset(uri).get_fragments()))
    # 52 KB each: eight become one of .4 MB, three of which are larger than a fragment is to be
    assert max(fewest) < 40 and fewest[-1] < 30 and not caplog.messages
    found = io.read(io.find_latest(uri))
    assert sorted(found["row_id"].to_pylist()) == list(range(150 * CHUNK))
    state_N = np.stack(found["state"].to_numpy())[:, 0].astype(np.int64)
    assert (state_N == found["row_id"].to_numpy() % 50).all()
    assert set(commits.read_committed_ids(uri)) == set(range(150 * CHUNK))


def test_a_file_that_changed_is_not_merged(tmp_path, local_ray, monkeypatch):
    monkeypatch.setattr(compaction, "FANOUT", 4)
    ref = passed(tmp_path, 6)
    committer = commits.Committer(ref.uri, fragment_mb=1)
    for fragment in lance.dataset(ref.uri).get_fragments()[1:]:
        path = Path(ref.uri) / "data" / fragment.metadata.files[0].path
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.write_bytes(content)
    queue(committer, 6)
    committer.flush()
    assert committer._merger is not None
    local_ray.wait([*committer._merger._under_way], timeout=60)
    queue(committer, 7)
    with pytest.raises(CommitError, match=r"the content of 4 of its files changed"):
        committer.flush()


@pytest.mark.parametrize("num_chunks", [0, 1, compaction.FEWEST - 1])
def test_a_table_of_few_fragments_stays_as_it_is(tmp_path, num_chunks):
    ref = passed(tmp_path, num_chunks)
    assert compact(ref, 256) == ref == io.find_latest(ref.uri)


def test_fragments_that_are_large_already_are_not_written_again(tmp_path):
    ref = passed(tmp_path, 40)
    assert compaction.plan(ref, 40_000) == []
    assert compaction.plan(ref, 150_000) == []  # two or three each: not a quarter
    assert len(compaction.plan(ref, 1_000_000)) == 2


def test_tasks_that_cannot_write_leave_the_table(tmp_path, local_ray):
    ref = passed(tmp_path, 20)
    rows, path = io.read(ref), next((Path(ref.uri) / "data").iterdir())
    path.rename(path.with_suffix(".away"))
    assert compact(ref, 1) == ref == io.find_latest(ref.uri)
    path.with_suffix(".away").rename(path)
    assert io.read(ref).equals(rows)


def test_of_a_compaction_and_another_drivers_commit_the_later_is_refused(tmp_path, caplog):
    ref = passed(tmp_path, 20)
    rewritten = [compaction.rewrite(ref, task) for task in compaction.plan(ref, 1 << 30)]
    first = commits.Committer(ref.uri)
    queue(first, 20)
    first.flush()
    assert compaction.commit(ref, rewritten) == ref and "keeps its small fragments" in caplog.text
    ref, second = io.find_latest(ref.uri), commits.Committer(ref.uri)
    queue(second, 21)
    rewritten = [compaction.rewrite(ref, task) for task in compaction.plan(ref, 1 << 30)]
    compacted = compaction.commit(ref, rewritten)
    assert len(io.open_table(compacted).get_fragments()) == 1
    caplog.clear()
    second.flush()
    assert "preempted by concurrent transaction Rewrite" in caplog.text  # refused, looked again, committed
    assert sorted(io.read(io.find_latest(ref.uri))["row_id"].to_pylist()) == list(range(22 * CHUNK))


def test_rows_that_come_in_beside_a_compaction_are_told(tmp_path):
    """Of a table whose first fragment is large, so that the compaction leaves it and both commits can land."""
    uri = passed(tmp_path, 0).uri
    committer = commits.Committer(uri)
    queue(committer, 100, num_rows=10_000)
    for chunk in range(20):
        queue(committer, chunk)
    committer.flush()
    ref = io.find_latest(uri)
    rewritten = [compaction.rewrite(ref, task) for task in compaction.plan(ref, 4 << 20)]
    queue(committer, 20)
    committer.flush()
    with pytest.raises(CommitError, match="came in between version"):
        compaction.commit(ref, rewritten)
    assert io.count(io.find_latest(uri)) == 10_000 + 21 * CHUNK


def test_without_the_lease_nothing_is_compacted(tmp_path):
    ref = passed(tmp_path, 20)
    rewritten = [compaction.rewrite(ref, task) for task in compaction.plan(ref, 1 << 30)]
    with lease.hold(tmp_path, seconds=0.0) as held, pytest.raises(CommitError, match="lease"):
        compaction.commit(ref, rewritten, guard=held.still_held)
    assert io.find_latest(ref.uri) == ref


def test_a_pass_leaves_few_versions_and_those_of_others(tmp_path, monkeypatch):
    ref = passed(tmp_path, 3)
    monkeypatch.setattr(versions, "EVERY", 10)
    committer = commits.Committer(ref.uri)

    def commit(first: int, last: int) -> list[int]:
        for chunk in range(first, last):
            queue(committer, chunk)
            committer.flush()
        return [item["version"] for item in lance.dataset(ref.uri).versions()]

    kept = commit(3, 23)
    assert len(kept) == ref.version + 20  # all are young
    reader, late = lance.dataset(ref.uri), commits.Committer(ref.uri)
    queue(late, 5)
    operation = lance.LanceOperation.Update(
        removed_fragment_ids=[], updated_fragments=[late._first], new_fragments=[], fields_modified=[]
    )
    monkeypatch.setattr(versions, "KEPT_SECONDS", 0.0)
    kept = commit(23, 33)
    newest = io.find_latest(ref.uri).version
    assert kept == [*range(1, ref.version + 1), newest]
    assert io.count(ref) == 3 * CHUNK and len(reader.to_table()) == 23 * CHUNK
    with pytest.raises(OSError, match="not found"):  # of a version that is gone
        lance.LanceDataset.commit(ref.uri, operation, read_version=reader.version)
    assert len(commits.read_committed_ids(ref.uri)) == 33 * CHUNK


def test_commits_that_take_long_are_made_less_often(tmp_path, monkeypatch):
    """Commits of 0.05 s with ``commit_seconds: 0``: not one a chunk, but a tenth of the time."""
    uri = str(tmp_path / "t.lance")
    io.create(uri, SCHEMA)
    commit, taken = lance.LanceDataset.commit, []

    def slow(*arguments, **named):
        begun = time.monotonic()
        time.sleep(0.05)
        made = commit(*arguments, **named)
        taken.append(time.monotonic() - begun)
        return made

    def written():
        for chunk in range(100):
            ids_N = np.arange(chunk, chunk + 1)
            table = pa.table({"row_id": ids_N, "state": [[0.0] * 256]}, schema=SCHEMA)
            yield commits.write_fragment(table, uri, SCHEMA)
            time.sleep(0.01)

    monkeypatch.setattr(lance.LanceDataset, "commit", staticmethod(slow))
    begun = time.monotonic()
    commit_stream(written(), seconds=0.0)
    assert len(taken) >= 2 and sum(taken[:-1]) < 0.15 * (time.monotonic() - begun)
    assert len(commits.read_committed_ids(uri)) == 100
