"""The label stage around the scripted teacher: every row exactly once, whatever dies; error rows; shares."""

import asyncio
import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
import torch
from pyroaring import BitMap64

from curation.cluster import nodes
from curation.config import ActorsConfig, DecodingConfig, DomainConfig, ModelConfig, ScriptedConfig, TeacherConfig
from curation.domains import get_domain
from curation.errors import ClusterError, CommitError, RunFailedError
from curation.models import load_model, load_tokenizer
from curation.passes.actor import ModelActor
from curation.passes.calls import CALLS
from curation.passes.cutting import Cutter, OpenRows
from curation.passes.messages import Call, Pass
from curation.passes.poison import PoisonSuspects
from curation.passes.work_queue import WorkQueue
from curation.refs import ModelRef, TableRef
from curation.stages.label import RowShare, count_labels, label
from curation.stages.label_chunks import LabelJob
from curation.stages.score import ScoredOnly
from curation.tables import commits, io, schemas
from curation.telemetry.standing import Standing

NUM_ROWS = 600


@pytest.fixture(scope="module")
def examples(puzzles, tmp_path_factory):
    domain = get_domain(DomainConfig(name="chess"))
    rows = [domain.read(raw) | {"row_id": (3 << 40) | i, "error": None} for i, raw in enumerate(puzzles[:NUM_ROWS])]
    table = pa.Table.from_pylist(rows, schema=schemas.make_examples_schema(domain.columns, gold=False))
    uri = str(tmp_path_factory.mktemp("examples") / "pool.lance")
    return TableRef(uri=uri, version=lance.write_dataset(table, uri).version)


def make_job(examples, directory, *, actors=None, script=None, **settings) -> LabelJob:
    scripted = ScriptedConfig(log=str(directory / "log"), **(script or {}))
    teacher = TeacherConfig(
        backend="scripted", scripted=scripted, chunk_rows=50, actors=actors or ActorsConfig(max=2), **settings
    )
    return LabelJob(
        examples=examples,
        labels_uri=str(directory / "labels.lance"),
        domain=DomainConfig(name="chess"),
        teacher=teacher,
        model=None,
        decoding=DecodingConfig(),
        seed=0,
    )


def run(job, **settings):
    settings = {"share": RowShare(), "commit_seconds": 0.2} | settings
    return label(job, state_size=job.teacher.scripted.state_size, **settings).table


def labelled_ids(directory: Path) -> list[int]:
    log = directory / "log"
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def ids_of(ref) -> list[int]:
    return io.read(ref, columns=["row_id"])["row_id"].to_pylist()


def test_every_row_once_and_a_second_call_labels_nothing(local_ray, examples, tmp_path):
    job = make_job(examples, tmp_path)
    seen = []
    ref = run(job, progress=lambda at: seen.append((at.rows, at.total)))
    assert sorted(ids_of(ref)) == ids_of(examples)
    assert sorted(labelled_ids(tmp_path)) == ids_of(examples)
    assert seen[0] == (0, NUM_ROWS) and seen[-1] == (NUM_ROWS, NUM_ROWS)
    assert run(job) == ref
    assert len(labelled_ids(tmp_path)) == NUM_ROWS
    schema = io.open_table(ref).schema
    assert schema.field("state_output_last").type == pa.list_(pa.float16(), 8)


@pytest.mark.parametrize("stores_states", [True, False])
def test_clipped_numbers_of_states_are_counted(local_ray, examples, tiny_model, tmp_path, stores_states):
    """Before the states are reduced, and so also where none is stored."""
    model = load_model(tiny_model)
    with torch.no_grad():
        model.model.norm.weight *= 1e5
    model.save_pretrained(tmp_path / "model")
    load_tokenizer(tiny_model).save_pretrained(tmp_path / "model")
    job = make_job(examples, tmp_path)
    ref = ModelRef(base=str(tmp_path / "model"))
    teacher = TeacherConfig(model=ModelConfig(path=ref.base), chunk_rows=300, actors=ActorsConfig(max=1))
    sample = ScoredOnly(fitted=(), states=(), num_rows=NUM_ROWS, seed=0)
    reduction = None if stores_states else sample
    asked = DecodingConfig(max_tokens=1)
    job = LabelJob(**{**vars(job), "teacher": teacher, "model": ref, "decoding": asked, "reduction": reduction})
    result = label(job, state_size=model.config.hidden_size, share=RowShare(), commit_seconds=0.2)
    states = io.read(result.table, columns=["error", *(["state_output_last"] if stores_states else [])])
    assert states["error"].null_count == NUM_ROWS
    assert NUM_ROWS < result.clipped_values < NUM_ROWS * model.config.hidden_size
    if stores_states:
        value_ND = np.stack(states["state_output_last"].to_numpy())
        assert result.clipped_values == np.count_nonzero(np.abs(value_ND) == 65504)


def side_by_side(examples, directory, *, seconds: float, slots: int, **script) -> LabelJob:
    """A job whose teacher answers ``slots`` rows at a time, each in ``seconds``, ten times what a chunk is to take."""
    script |= {"seconds_per_answer": seconds, "slots": slots}
    job = make_job(examples, directory, actors=ActorsConfig(max=1), script=script)
    ask = job.teacher.model_copy(update={"chunk_rows": 4096, "chunk_seconds": seconds / 10})
    return LabelJob(**{**vars(job), "teacher": ask})


def test_long_answers_fill_the_teacher_and_are_committed_as_they_end(local_ray, examples, tmp_path):
    job = side_by_side(examples, tmp_path, seconds=0.6, slots=60)
    seen = []
    ref = run(job, progress=lambda at: seen.append((time.monotonic(), at.rows)))
    assert sorted(ids_of(ref)) == ids_of(examples) == sorted(labelled_ids(tmp_path))
    first, last = (next(at for at, rows in seen if rows > least) for least in (0, NUM_ROWS - 1))
    waves = NUM_ROWS / 60 - 1  # beside the one that ended before the first commit
    assert last - first < waves * 0.6 / 0.9 + 1.0  # a look each second
    assert len({rows for _, rows in seen}) >= 4  # one call of ten waves, committed while it went on


def test_a_process_that_dies_in_a_long_call_repeats_only_what_was_not_written(local_ray, examples, tmp_path):
    ids = ids_of(examples)
    job = side_by_side(examples, tmp_path, seconds=0.3, slots=60, crash_rows=(ids[450],))
    result = label(job, state_size=8, share=RowShare(), commit_seconds=0.2)
    assert sorted(ids_of(result.table)) == ids and result.deaths == 1
    labelled = labelled_ids(tmp_path)
    assert len(set(labelled)) == NUM_ROWS and len(labelled) - NUM_ROWS <= 60  # what ran, and ended since a write


def test_of_two_calls_on_one_chunk_the_first_to_write_goes_on(examples, tmp_path):
    asyncio.run(two_calls(make_job(examples, tmp_path)))


async def two_calls(job: LabelJob) -> None:
    queue = WorkQueue(wanted=1, calls=1)
    this = Pass(id="pass", versions={}, actors=job.teacher.actors)
    await queue.open(this, [], OpenRows(job.examples, every, BitMap64()), Cutter(job.teacher), ())
    first = await queue.next(0)
    chunk = (await queue.begin(first, "one", 4)).chunk
    assert len(chunk.offsets) == 32
    assert (await queue.begin(first, "one", 4)).chunk == chunk  # replayed
    under_way = queue._passes["pass"]
    under_way.waiting.append(under_way.calls[0].work)  # as after a silence of its actor
    second = await queue.next(1)
    assert (await queue.begin(second, "two", 4)).chunk == chunk
    assert await queue.wrote(first, "one", chunk.name, [0, 1], b"a")
    assert await queue.wrote(first, "one", chunk.name, [7], b"b")
    assert not await queue.wrote(second, "two", chunk.name, [2], b"c")  # and it is off the chunk
    other = await queue.finish(second, "two", chunk.name, b"d", 4, is_last=False)
    assert other.chunk != chunk
    assert not await queue.wrote(second, "two", chunk.name, [2], b"c")  # of a process that is late
    again = await queue.begin(first, "one again", 4)
    assert again.num_written == 3 and {0, 1, 7}.isdisjoint(place for piece in again.search.suspect for place in piece)
    taken = await queue.take("pass", 0)
    assert taken.parts == [b"a", b"b"] and taken.error is None
    assert await queue.take("pass", 0) == taken and not (await queue.take("pass", 2)).parts
    assert await queue.finish(first, "one", chunk.name, b"e", 4, is_last=True) is None
    assert await queue.finish(first, "one", chunk.name, b"e", 4, is_last=True) is None
    assert await queue.begin(first, "one", 4) is None  # its node was lost after it had returned
    assert await queue.end("pass", 2) == [b"e"]


def test_states_do_not_pass_through_the_object_store(local_ray, examples, tmp_path):
    """Of 600 x 8 KiB of states less than one of 512 rows is ever there, however long nobody commits."""
    before, peaks, stop = plasma_bytes(), [], threading.Event()

    def watch():
        while not stop.wait(0.1):
            peaks.append(plasma_bytes())

    job = make_job(examples, tmp_path, script={"state_size": 4096, "seconds_per_row": 0.003})
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        ref = run(job, commit_seconds=60)
    finally:
        stop.set()
        thread.join()
    stored = sum(path.stat().st_size for path in (tmp_path / "labels.lance" / "data").iterdir())
    assert stored > NUM_ROWS * 8192 and io.count(ref) == NUM_ROWS
    assert len(peaks) > 10 and max(peaks) - before < stored / 10


def plasma_bytes() -> int:
    """What Ray's object store holds on this node."""
    import ray
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    reply = get_memory_info_reply(get_state_from_address(ray.get_runtime_context().gcs_address))
    return reply.store_stats.object_store_bytes_used + reply.store_stats.spilled_bytes_total


def test_a_part_that_is_committed_is_not_labelled_again_whatever_the_chunks(local_ray, examples, tmp_path):
    job = make_job(examples, tmp_path)
    first = run(job, share=RowShare(index=0, of=3, seed=5))
    committed = set(ids_of(first))
    assert 0 < len(committed) < NUM_ROWS
    other = make_job(examples, tmp_path)
    other = LabelJob(**{**vars(other), "teacher": other.teacher.model_copy(update={"chunk_rows": 37})})
    ref = run(other)
    assert sorted(ids_of(ref)) == ids_of(examples)
    assert len(labelled_ids(tmp_path)) == NUM_ROWS


def test_shares_are_disjoint_and_complete(examples):
    ids_N = np.array(ids_of(examples))
    parts = [ids_N[RowShare(index=index, of=3, seed=1).takes(ids_N)] for index in range(3)]
    assert sorted(np.concatenate(parts).tolist()) == ids_N.tolist()
    assert min(len(part) for part in parts) > NUM_ROWS / 3 * 0.7


def test_a_crash_of_the_actor_replays_the_chunk(local_ray, examples, tmp_path):
    """Each named row kills its actor's process once; the chunk is labelled again by another actor."""
    crash_rows = tuple(ids_of(examples)[place] for place in (30, 333))
    job = make_job(
        examples,
        tmp_path,
        script={"crash_rows": crash_rows},
        actors=ActorsConfig(
            max=2,
        ),
    )
    seen = []
    ref = run(job, progress=seen.append)
    assert sorted(ids_of(ref)) == ids_of(examples)
    assert all((tmp_path / f"log.crashed-{row}").exists() for row in crash_rows)
    assert seen[-1].work.actors.deaths == 2


def test_actors_killed_at_random_lose_and_double_nothing(local_ray, examples, tmp_path):
    """SIGKILL to labelling processes while they work."""
    actors = ActorsConfig(min=2, max=2)
    job = make_job(examples, tmp_path, script={"seconds_per_row": 0.01}, actors=actors)
    killed, stop = [], threading.Event()

    def killer():
        generator = np.random.default_rng(0)
        while not stop.wait(float(generator.uniform(0.5, 1.2))) and len(killed) < 4:
            pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and _is_model_actor(pid)]
            if pids:
                killed.append(pid := int(generator.choice(pids)))
                os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        ref = run(job)
    finally:
        stop.set()
        thread.join()
    assert killed
    assert sorted(ids_of(ref)) == ids_of(examples)


def _is_model_actor(pid: str) -> bool:
    """Whether a process is a model's actor of this test's own Ray, and not that of another one on this machine."""
    try:
        return b"ModelActor" in Path(f"/proc/{pid}/cmdline").read_bytes() and str(os.getpid()) in ancestors(pid)
    except OSError:
        return False


def ancestors(pid: str) -> list[str]:
    """The processes that have started a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    parent = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid"))
    return [] if parent == "0" else [parent, *ancestors(parent)]


def test_a_node_that_joins_with_other_versions_does_not_work(local_ray, examples, tmp_path, monkeypatch):
    """To a driver that has another torch all nodes are such."""
    other = nodes.make_versions_question()() | {"torch": "0.1"}
    monkeypatch.setattr(nodes, "make_versions_question", lambda: lambda: other)
    job = make_job(examples, tmp_path)
    with pytest.raises(ClusterError, match=r"\(node \w{8}\).*torch \S+ \(here 0\.1\); install the same"):
        run(job)
    assert not labelled_ids(tmp_path)


def test_error_rows_are_kept_counted_and_bounded(local_ray, examples, tmp_path):
    failing = tuple(ids_of(examples)[:5])
    job = make_job(examples, tmp_path, script={"error_rows": failing, "completions": (" e2e4", " nonsense")})
    seen = []
    ref = run(job, progress=seen.append)
    assert seen[-1].work.errors == {"scripted": 5}
    assert seen[0].work.chunks_left >= NUM_ROWS / 50 and seen[-1].work.chunks_left == 0
    counts = count_labels(ref)
    assert counts.rows == NUM_ROWS
    assert counts.errors == {"scripted": 5}
    assert 0 < counts.unparsed < NUM_ROWS
    rows = io.read(ref, filter="error IS NOT NULL").to_pylist()
    assert {row["row_id"] for row in rows} == set(failing)
    assert all(row["label"] is None and row["state_output_last"] is None for row in rows)

    (tmp_path / "strict").mkdir()
    strict = make_job(examples, tmp_path / "strict", script={"error_rows": failing}, max_error_rate=0.001)
    with pytest.raises(RunFailedError, match=r"5 of 600 rows failed \(5 of them scripted\)"):
        run(strict)


@pytest.mark.whole_run
def test_poison_rows_are_found_named_and_passed_by(local_ray, examples, tmp_path):
    """Rows that kill their process every time, two of them neighbours, and one on which it hangs."""
    ids = ids_of(examples)
    poison, hanging = (ids[30], ids[31], ids[333]), (ids[500],)
    actors = ActorsConfig(min=2, max=2, hang_seconds=1.5)
    job = make_job(examples, tmp_path, script={"poison_rows": poison, "hang_rows": hanging}, actors=actors)
    told: list[Standing] = []
    result = label(job, state_size=8, share=RowShare(), commit_seconds=0.2, progress=told.append)
    assert sorted(ids_of(result.table)) == ids
    rows = io.read(result.table, filter="error IS NOT NULL").to_pylist()
    assert {row["row_id"]: row["error"].split(":")[0] for row in rows} == dict.fromkeys((*poison, *hanging), "poison")
    assert result.deaths == 3 * 2 + 4 * 2  # on three chunks, whole and in parts; on each row alone, once and again
    assert told[-1].work.errors == {"poison": 4} and told[-1].work.actors.deaths == result.deaths
    assert not PoisonSuspects(job.labels_uri).read()
    assert run(job) == result.table


def test_a_chunk_that_is_done_is_not_labelled_again_when_ray_replays_its_call(local_ray, examples, tmp_path):
    """As Ray does where a node is lost between a call's output and its end."""
    job = make_job(examples, tmp_path)
    io.create(job.labels_uri, job.schema(8))
    with queue_of(local_ray, job, OpenRows(examples, every, BitMap64())) as queue:
        call = local_ray.get(queue.next.remote(0))
        assert attempt(local_ray, queue, call)
        labelled = labelled_ids(tmp_path)
        assert attempt(local_ray, queue, call) and labelled_ids(tmp_path) == labelled
        parts = local_ray.get(queue.end.remote("pass", 0))
    ids = [pa.ipc.open_stream(part).read_all()["row_ids"][0].as_py() for part in parts]
    assert np.frombuffer(b"".join(ids), np.int64).tolist() == labelled == ids_of(examples)[: len(labelled)] != []


def test_the_next_driver_goes_on_looking_for_the_row_that_kills(local_ray, examples, tmp_path):
    """The first one is gone when three processes have died: on the chunk, on a part, on the row alone."""
    ids = ids_of(examples)
    job = make_job(examples, tmp_path, script={"poison_rows": (ids[20],)})
    io.create(job.labels_uri, job.schema(8))
    with queue_of(local_ray, job, OpenRows(examples, every, BitMap64())) as queue:
        call = local_ray.get(queue.next.remote(0))
        assert not any(attempt(local_ray, queue, call) for _ in range(3))
        seen = local_ray.get(queue.look.remote("pass")).suspects
        PoisonSuspects(job.labels_uri).keep(seen)
    (suspect,) = PoisonSuspects(job.labels_uri).read()
    assert (suspect,) == seen and ids[20] in io.read(examples)["row_id"].take(suspect.chunk.offsets).to_pylist()
    result = label(job, state_size=8, share=RowShare(), commit_seconds=0.2)
    assert sorted(ids_of(result.table)) == ids
    (row,) = io.read(result.table, filter="error IS NOT NULL").to_pylist()
    assert row["row_id"] == ids[20] and row["error"].startswith("poison")
    # The last death may have been the first driver's: two more, alone, once and again, and none on a chunk or a part.
    assert result.deaths == 2 + 2
    assert not PoisonSuspects(job.labels_uri).read()


def every(ids_N):
    return np.ones(len(ids_N), dtype=np.bool_)


@contextmanager
def queue_of(ray, job: LabelJob, rows: OpenRows):
    """A work queue with a pass, and no dataset."""
    queue = ray.remote(WorkQueue).options(num_cpus=0).remote(wanted=1, calls=1)
    this = Pass(id="pass", versions=nodes.make_versions_question()(), actors=job.teacher.actors)
    ray.get(queue.open.remote(this, [ray.put(job)], rows, Cutter(job.teacher), ()))
    yield queue
    ray.kill(queue)


def attempt(ray, queue, call: Call) -> bool:
    """Whether an actor of its own ends a call without an error, and does not die."""
    actor = ray.remote(ModelActor).options(num_cpus=0).remote(queue)
    try:
        row = pa.Table.from_pylist([asdict(call)], schema=CALLS)
        ray.get(actor.__ray_call__.remote(lambda actor, calls: actor(calls), row))
        return ray.get(queue.take.remote("pass", 0)).error is None
    except ray.exceptions.RayActorError:
        return False
    finally:
        ray.kill(actor)


@pytest.mark.whole_run
def test_a_model_that_kills_every_process_fails_the_run_and_keeps_what_is_committed(local_ray, examples, tmp_path):
    ids = ids_of(examples)
    job = make_job(examples, tmp_path, actors=ActorsConfig(max_restarts=3), max_error_rate=1.0)
    crash = job.teacher.scripted.model_copy(update={"poison_rows": tuple(ids[200:])})
    broken = LabelJob(**{**vars(job), "teacher": job.teacher.model_copy(update={"scripted": crash})})
    start = time.monotonic()
    with pytest.raises(
        RunFailedError, match=r"labelling failed: .*an actor's process died 4 times in a row .*max_restarts: 3"
    ):
        run(broken)
    assert time.monotonic() - start < 300, "each death is repeated at once, not after a wait"
    done = ids_of(io.find_latest(job.labels_uri))
    assert len(done) >= 150 and set(done) < set(ids[:200])
    assert sorted(ids_of(run(job))) == ids


def test_the_committer_refuses_half_known_fragments_and_keeps_replays_once(examples, tmp_path):
    schema = pa.schema([schemas.ROW_ID])
    uri = str(tmp_path / "t.lance")
    io.create(uri, schema)
    write = lambda ids: commits.write_fragment(pa.table({"row_id": ids}, schema=schema), uri, schema).to_pylist()[0]  # noqa: E731
    committer = commits.Committer(uri)
    first = write([1, 2, 3])
    for row in (first, first, write([1, 2, 3])):
        committer.add(row["fragments"], row["row_ids"])
    committer.flush()
    assert ids_of(io.find_latest(uri)) == [1, 2, 3]
    again = commits.Committer(uri)
    again.add(first["fragments"], first["row_ids"])
    again.flush()
    assert ids_of(io.find_latest(uri)) == [1, 2, 3]
    half = write([3, 4])
    with pytest.raises(CommitError, match="repeats 1 ids"):
        again.add(half["fragments"], half["row_ids"])
    double = write([5, 5])
    with pytest.raises(CommitError, match="repeats 1 ids"):
        again.add(double["fragments"], double["row_ids"])


def test_a_lookup_takes_what_take_takes(examples):
    rng = np.random.default_rng(0)
    ids_N = np.array(ids_of(examples))
    lookup = io.Lookup(examples)
    for wanted in (rng.permutation(ids_N), rng.choice(ids_N, 50, replace=False), ids_N[:0]):
        for columns in (None, ["rating", "row_id"]):
            assert lookup.take(wanted, columns).equals(io.take(examples, wanted, columns))
    missing = np.array([ids_N[3], -1, ids_N.max() + 1])
    for take in (lookup.take, lambda ids: io.take(examples, ids)):
        with pytest.raises(CommitError, match=r"2 of 3 ids are not in it, e\.g\. -1"):
            take(missing)


def test_a_lookup_holds_runs_and_a_finder_few_of_them(tmp_path, monkeypatch):
    ids_N = np.concatenate([np.arange(500, 900), np.arange(100), [7_000], np.arange(900, 950), np.arange(-9, -3)])
    uri = str(tmp_path / "r.lance")
    lance.write_dataset(pa.table({"row_id": ids_N}), uri, max_rows_per_file=120)
    ref = io.find_latest(uri)
    lookup = io.Lookup(ref)
    assert len(lookup) == len(ids_N) and lookup.num_runs == 5
    parts = [*lookup.ascending(64)]
    assert {len(part) for part in parts[:-1]} == {64} and np.array_equal(np.concatenate(parts), np.sort(ids_N))
    asked = np.concatenate([np.random.default_rng(2).permutation(ids_N), [-10, -3, 100, 499, 950, 6_999, 7_001]])
    place = {row_id: place for place, row_id in enumerate(ids_N.tolist())}
    for most in (io.MOST_RUNS, 4):  # by runs, and by a scan
        monkeypatch.setattr(io, "MOST_RUNS", most)
        assert io.make_offset_finder(ref)(asked).tolist() == [place.get(row_id, -1) for row_id in asked.tolist()]


def test_parts_are_written_as_one_table(tmp_path, monkeypatch):
    monkeypatch.setattr(io, "FRAGMENT_ROWS", 10)
    schema, uri = pa.schema([schemas.ROW_ID]), str(tmp_path / "p.lance")
    parts = [pa.table([pa.array(range(low, low + 4))], schema=schema) for low in range(0, 24, 4)]
    for given, sizes in ((parts, [12, 12]), (parts[:1], [4]), ([], [])):
        ref = io.write_parts(iter(given), schema, uri)
        assert [fragment.count_rows() for fragment in io.open_table(ref).get_fragments()] == sizes
        assert io.read(ref)["row_id"].to_pylist() == list(range(4 * len(given))) and io.find_latest(uri) == ref

    def broken():
        yield parts[0]
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        io.write_parts(broken(), schema, uri)


def test_a_lookup_of_shuffled_fragments_and_of_nothing(tmp_path):
    ids_N = np.random.default_rng(1).permutation(100)
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"row_id": ids_N, "square": ids_N**2}), uri, max_rows_per_file=30)
    ref = io.find_latest(uri)
    wanted = np.array([7, 99, 0])
    for table in (io.Lookup(ref).take(wanted, ["square"]), io.take(ref, wanted, ["square"])):
        assert table["square"].to_pylist() == [49, 9801, 0]
    empty = io.create(str(tmp_path / "e.lance"), pa.schema([schemas.ROW_ID]))
    assert not [*io.Lookup(empty).ascending(8)]
    assert io.Lookup(empty).take(ids_N[:0]).num_rows == 0
    with pytest.raises(CommitError, match="100 of 100 ids are not in it"):
        io.Lookup(empty).take(ids_N)
