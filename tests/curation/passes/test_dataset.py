"""A model's dataset: its actors, the passes that go through it, the starts of a model, and the progress."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
import ray
from pyroaring import BitMap64

from curation.cluster import nodes
from curation.cluster.session import local_or_cluster
from curation.config import ActorsConfig, AskConfig, DecodingConfig, DomainConfig, RayConfig, ScriptedConfig
from curation.domains import get_domain
from curation.errors import ConfigError, RunFailedError
from curation.passes.cutting import OpenRows
from curation.passes.dataset import ModelDataset
from curation.passes.run import PassResult, make_dataset
from curation.refs import ModelRef, TableRef
from curation.stages.label import RowShare, label
from curation.stages.label_chunks import LabelJob
from curation.tables import io, schemas
from curation.telemetry.standing import Standing

pytestmark = pytest.mark.long

NUM_ROWS = 240


@pytest.fixture(scope="module")
def examples(puzzles, tmp_path_factory) -> TableRef:
    domain = get_domain(DomainConfig(name="chess"))
    rows = [domain.read(raw) | {"row_id": number, "error": None} for number, raw in enumerate(puzzles[:NUM_ROWS])]
    uri = str(tmp_path_factory.mktemp("examples") / "pool.lance")
    table = pa.Table.from_pylist(rows, schema=schemas.make_examples_schema(domain.columns, gold=False))
    return TableRef(uri=uri, version=lance.write_dataset(table, uri).version)


def make_job(examples: TableRef, directory: Path, *, script: dict[str, Any] | None = None, **ask: Any) -> LabelJob:
    settings: dict[str, Any] = {"backend": "scripted", "chunk_rows": 20, "actors": ActorsConfig()} | ask
    return LabelJob(
        examples=examples,
        labels_uri=str(directory / "labels.lance"),
        domain=DomainConfig(name="chess"),
        teacher=AskConfig(scripted=ScriptedConfig(log=str(directory / "log"), **(script or {})), **settings).model_copy(
            update={"chunk_seconds": math.inf}
        ),
        model=None,
        decoding=DecodingConfig(),
        seed=0,
    )


def run(job: LabelJob, pool: ModelDataset, **settings: Any) -> PassResult:
    return label(job, state_size=8, share=RowShare(), commit_seconds=0.1, dataset=pool, **settings)


def once_each(result: PassResult) -> bool:
    return Counter(io.read(result.table, ["row_id"])["row_id"].to_pylist()) == Counter(range(NUM_ROWS))


@pytest.fixture
def pool():
    pools: list[ModelDataset] = []

    def make(ask: AskConfig, **how: bool) -> ModelDataset:
        pools.append(make_dataset(ask, **how))
        return pools[-1]

    yield make
    for made in pools:
        made.close()


def test_passes_one_after_the_other_and_at_once_start_a_model_once(local_ray, examples, tmp_path, pool):
    jobs = [make_job(examples, tmp_path, script={"seconds_per_row": 0.002}) for _ in range(3)]
    jobs = [replace(job, labels_uri=str(tmp_path / f"{number}.lance")) for number, job in enumerate(jobs)]
    shared, found = pool(jobs[0].teacher), {}
    found[0] = run(jobs[0], shared)
    time.sleep(1.0)  # nobody is charged for the time in which the actor idles
    stateless = replace(jobs[1], teacher=jobs[1].teacher.model_copy(update={"states": ()}), engine=jobs[1].teacher)
    threads = [
        threading.Thread(target=lambda number, job: found.update({number: run(job, shared)}), args=args)
        for args in ((1, stateless), (2, jobs[2]))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(once_each(result) for result in found.values())
    assert [len(found[number].teachers) for number in range(3)] == [1, 0, 0]
    assert "state_output_last" in io.open_table(found[2].table).schema.names
    assert "state_output_last" not in io.open_table(found[1].table).schema.names
    assert shared.read().running == 1 and shared.read().deaths == 0
    for result in found.values():
        spent, tokens = result.spent, io.read(result.table, ["num_prompt_tokens", "num_output_tokens"])
        assert spent.prompt_tokens == sum(tokens["num_prompt_tokens"].to_pylist())
        assert spent.output_tokens == sum(tokens["num_output_tokens"].to_pylist())
        assert spent.chunks == len(result.of_chunks) == NUM_ROWS // 20 and 1 <= spent.commits <= spent.chunks
        worked = sum(chunk.seconds for chunk in result.of_chunks)
        assert NUM_ROWS * 0.002 <= worked <= spent.actor_seconds + 0.1 and spent.actor_seconds <= result.seconds
    # One actor, of which two passes at once have half each.
    assert found[1].spent.actor_seconds + found[2].spent.actor_seconds <= max(found[1].seconds, found[2].seconds) + 0.5


def test_actors_that_hold_no_cpus_are_no_more_than_fit_and_leave_ray_its_cpus(local_ray, examples, tmp_path, pool):
    many = ActorsConfig(min=1, max=8, initial=8, num_cpus=1)
    job = make_job(examples, tmp_path, script={"seconds_per_row": 0.002}, actors=many)
    shared = pool(job.teacher, hold_cpus=False)
    assert once_each(run(job, shared))
    assert shared.read().running == 2, "the two CPUs of this Ray"
    whole = local_ray.remote(num_cpus=2)(lambda: "ran")
    assert local_ray.get(whole.remote(), timeout=60) == "ran", "idle actors keep none of them"


def test_another_model_takes_the_place_of_the_first_in_the_same_process(
    local_ray, examples, tiny_model, tmp_path, pool
):
    scripted = make_job(examples, tmp_path)
    shared = pool(scripted.teacher)
    assert len(run(scripted, shared).teachers) == 1
    asked = scripted.teacher.model_copy(update={"backend": "transformers"})
    model = tiny_model if isinstance(tiny_model, ModelRef) else ModelRef(base=str(tiny_model))
    other = replace(scripted, teacher=asked, model=model, labels_uri=str(tmp_path / "other.lance"))
    from curation.models import get_state_size

    width = get_state_size(model, asked.states)
    first = label(other, state_size=width, share=RowShare(), commit_seconds=0.1, dataset=shared)
    again = replace(other, labels_uri=str(tmp_path / "again.lance"))
    second = label(again, state_size=width, share=RowShare(), commit_seconds=0.1, dataset=shared)
    assert [len(result.teachers) for result in (first, second)] == [1, 0]
    assert first.teachers[0]["start_seconds"] > 0
    assert shared.read().running == 1 and shared.read().deaths == 0
    columns = ["row_id", "completion", "mean_logprob"]
    tables_of = [io.read(result.table, columns).sort_by("row_id") for result in (first, second)]
    assert tables_of[0].equals(tables_of[1])


def grow_and_shrink(examples: TableRef, directory: Path) -> None:
    """One actor for one chunk, two for many, and one again, in a cluster that no other test's datasets share."""
    actors = ActorsConfig(min=1, max=2, initial=2, max_idle_seconds=1.0)
    job = make_job(examples, directory, actors=actors, chunk_rows=NUM_ROWS)
    wide = make_job(examples, directory, actors=actors, script={"seconds_per_row": 1.0}, chunk_rows=4)
    told: list[Standing] = []

    def end_when_two_run() -> None:
        if any(at.work.actors.running == 2 for at in told):
            raise RunFailedError("two run")

    with local_or_cluster(RayConfig(num_cpus=2)), contextlib.closing(make_dataset(job.teacher)) as shared:
        run(job, shared)
        assert shared.read().running == 1
        with pytest.raises(RunFailedError, match="two run"):
            uri = str(directory / "wide.lance")
            run(replace(wide, labels_uri=uri), shared, progress=told.append, guard=end_when_two_run)
        until = time.monotonic() + 80
        while shared.read().running > 1 and time.monotonic() < until:  # Ray Data waits a while after it has added some
            time.sleep(0.5)
        assert shared.read().running == 1 and shared.read().deaths == 0


def by_itself(function: str, examples: TableRef, directory: Path) -> None:
    """Call a function of this file in a process with a cluster of its own."""
    call = f"{function}(TableRef(uri={examples.uri!r}, version={examples.version}), Path({str(directory)!r}))"
    code = f"from tests.curation.passes.test_dataset import *; {call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_there_are_no_more_actors_than_chunks_and_those_that_idle_are_given_back(examples, tmp_path):
    # Ray Data keeps the share of a dataset that did not end by itself for minutes, and then adds no actor to another.
    by_itself("grow_and_shrink", examples, tmp_path)


def look_at_the_dashboard(examples: TableRef, directory: Path) -> None:
    """The dashboard's own list of datasets, asked while rows are labelled."""
    dashboard = ray.init(num_cpus=2, include_dashboard=True, dashboard_port=0).dashboard_url
    job_id = ray.get_runtime_context().get_job_id()
    job = make_job(examples, directory, script={"seconds_per_row": 0.1})
    found: list[dict[str, Any]] = []

    def end_when_listed() -> None:
        with urllib.request.urlopen(f"http://{dashboard}/api/data/datasets/{job_id}", timeout=30) as answer:
            found[:] = json.load(answer)["datasets"]
        if any(dataset["state"] == "RUNNING" and dataset["progress"] >= 2 for dataset in found):
            raise RunFailedError("listed")

    listed = pytest.raises(RunFailedError, match="listed")
    with contextlib.closing(make_dataset(job.teacher, name="scripted")) as shared, listed:
        run(job, shared, guard=end_when_listed)
    (dataset,) = found
    assert dataset["dataset"].startswith("scripted_")
    names = [operator["name"] for operator in dataset["operators"]]
    assert names == ["Input", "ReadCalls", "MapBatches(ModelActor)"]


def test_rays_dashboard_lists_the_dataset_with_its_operators(examples, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    by_itself("look_at_the_dashboard", examples, tmp_path)


def test_a_small_pass_does_not_wait_for_all_of_a_large_one(local_ray, examples, tmp_path, pool):
    large = make_job(examples, tmp_path, script={"seconds_per_row": 0.05}, chunk_rows=10)
    small = make_job(examples, tmp_path, chunk_rows=NUM_ROWS)
    shared, found = pool(large.teacher), []
    thread = threading.Thread(target=lambda: found.append(run(large, shared)))
    thread.start()
    while not Path(large.teacher.scripted.log).exists():
        time.sleep(0.05)
    result = run(replace(small, labels_uri=str(tmp_path / "small.lance")), shared)
    assert thread.is_alive(), "of 24 chunks of half a second"
    thread.join()
    assert once_each(result) and once_each(found[0])


def test_a_pass_that_fails_leaves_the_others_alone(local_ray, examples, tmp_path, pool):
    good = make_job(examples, tmp_path, script={"seconds_per_row": 0.005})
    bad = replace(good, domain=DomainConfig(name="no_such_module:Domain"), labels_uri=str(tmp_path / "bad.lance"))
    shared, found = pool(good.teacher), []
    thread = threading.Thread(target=lambda: found.append(run(good, shared)))
    thread.start()
    time.sleep(0.3)
    with pytest.raises(ConfigError, match=r"^domain: no domain is at 'no_such_module:Domain'"):
        run(bad, shared)
    thread.join()
    assert once_each(found[0])
    assert once_each(run(replace(good, labels_uri=str(tmp_path / "next.lance")), shared))


def actors_of_this_ray() -> list[int]:
    """The processes of models' actors that this test's own Ray has started."""
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_ours(pid)]


def is_ours(pid: str) -> bool:
    try:
        return b"ModelActor" in Path(f"/proc/{pid}/cmdline").read_bytes() and os.getpid() in ancestors(pid)
    except OSError:
        return False


def ancestors(pid: str) -> Iterator[int]:
    """The processes that have started a process."""
    while pid != "0":
        status = Path(f"/proc/{pid}/status").read_text()
        pid = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid"))
        yield int(pid)


def test_the_work_of_a_frozen_actor_goes_elsewhere(local_ray, examples, tmp_path, pool):
    actors = ActorsConfig(min=2, max=2, hang_seconds=3)
    job = make_job(examples, tmp_path, actors=actors, script={"seconds_per_row": 0.1})
    shared, found, told = pool(job.teacher), [], []
    of_tests_before = actors_of_this_ray()  # they may still be ending
    thread = threading.Thread(target=lambda: found.append(run(job, shared, progress=told.append)))
    thread.start()
    until = time.monotonic() + 60
    while not told or told[-1].work.chunks_in_flight < 2:
        assert time.monotonic() < until
        time.sleep(0.1)
    frozen = next(pid for pid in actors_of_this_ray() if pid not in of_tests_before)
    os.kill(frozen, signal.SIGSTOP)
    thread.join(timeout=80)
    assert found, "the chunk of the frozen actor was never done"
    assert once_each(found[0])
    assert any(at.work.actors.running == 1 and at.work.actors.restarting == 1 for at in told)
    until = time.monotonic() + 60
    while (Path(f"/proc/{frozen}").exists() or shared.read().deaths < 1) and time.monotonic() < until:
        time.sleep(0.1)  # it is ended by a process of its node, which has to start
    assert not Path(f"/proc/{frozen}").exists() and shared.read().deaths == 1


def test_progress_moves_within_a_chunk_and_a_finished_one_does_not_wait_for_the_next(
    local_ray, examples, tmp_path, pool
):
    job = make_job(examples, tmp_path, chunk_rows=NUM_ROWS // 2, script={"seconds_per_row": 0.05})
    told: list[Standing] = []
    result = run(job, pool(job.teacher), progress=told.append)
    assert once_each(result) and result.spent.commits == 2
    within = [at.reached for at in told if 0 < at.reached < NUM_ROWS and at.reached != NUM_ROWS // 2]
    assert len(set(within)) >= 3 and within == sorted(within)
    assert any(at.rows == NUM_ROWS // 2 < at.reached for at in told), "committed while the other one was under way"


def test_a_driver_that_is_stopped_receives_what_is_done(local_ray, examples, tmp_path, pool):
    job = make_job(examples, tmp_path, script={"seconds_per_row": 0.01})
    io.create(job.labels_uri, job.schema(8))
    rows = OpenRows(examples, lambda ids_N: ids_N >= 0, BitMap64())
    with pool(job.teacher).passing(job, nodes.make_versions_question()(), rows) as running:
        until = time.monotonic() + 60
        while (done := running.look().answered) < NUM_ROWS / 2 and time.monotonic() < until:
            time.sleep(0.05)
        found = [row for table in running.rest() for row in table["row_ids"].to_pylist()]
        ids = [row_id for packed in found for row_id in np.frombuffer(packed, np.int64).tolist()]
        assert len(ids) == len(set(ids)) and done - 20 < len(ids), "all but the chunk under way"
        assert len(ids) < NUM_ROWS and not list(running.rest())


def test_chunks_grow_to_the_time_that_they_should_take(local_ray, examples, tmp_path, pool):
    job = make_job(examples, tmp_path, chunk_rows=4096, script={"seconds_per_row": 0.02})
    job = replace(job, teacher=job.teacher.model_copy(update={"chunk_seconds": 1.5}))
    sizes = [chunk.rows for chunk in run(job, pool(job.teacher)).of_chunks]
    assert sum(sizes) == NUM_ROWS and sizes[0] == 32
    assert 50 <= max(sizes) <= 100, "1.5 s at .02 s a row, and what a chunk costs beside its rows"
