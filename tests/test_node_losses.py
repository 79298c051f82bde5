"""What a spot cluster does to a run: nodes die and come while rows are labelled, and the driver is replaced."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from ray_nodes import Nodes, cluster_of, wait_until
from sums_run import NUM_SOURCE, SumsRun

NUM_POOL, CHUNK_ROWS = 2000, 25


def labelled_of_the_pool(run: SumsRun, share: float) -> Callable[[], bool]:
    """So many labelled, however often; the rows are the clock, however slow the machine is."""
    return lambda: len(run.labelled()) >= NUM_SOURCE + share * NUM_POOL


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nodes_that_die_and_come_at_random_lose_and_double_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = SumsRun(tmp_path, num_pool=NUM_POOL, actors={"min": 1, "max": 3}, seconds_per_row=0.03, chunk_rows=CHUNK_ROWS)
    chance, shares = random.Random(5), (0.1, 0.25, 0.4, 0.55)
    with cluster_of(2, monkeypatch) as nodes:
        driver = run.start("--address", nodes.address)
        try:
            for share in shares:
                wait_until(labelled_of_the_pool(run, share), driver, run)
                nodes.add()
                nodes.kill(chance.randrange(nodes.number - 1))
            assert driver.wait(300) == 0, run.errors()
        finally:
            driver.kill()
    assert run.committed() == run.pool() and run.counts()["errors"] == {}
    said = run.stdout.read_text()
    assert "raylet" not in said.lower() and "\033" not in said and "Do not use" in said
    assert any("Last 20 lines" in event["text"] for event in run.events("ray"))
    # Of each node lost the chunk that was under way; one that had ended is not labelled again where Ray replays it.
    again = len(run.labelled()) - NUM_SOURCE - NUM_POOL
    print(f"{len(shares)} nodes lost, {again} rows labelled again")
    assert again <= CHUNK_ROWS * len(shares)
    events = run.events("nodes")
    assert sum(len(event["left"]) for event in events) == len(shares)
    assert sum(len(event["came"]) for event in events) == 3 + len(shares)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_node_that_comes_while_rows_are_labelled_takes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = SumsRun(tmp_path, num_pool=NUM_POOL, actors={"min": 1, "max": 2}, seconds_per_row=0.02)
    with cluster_of(1, monkeypatch) as nodes:
        driver = run.start("--address", nodes.address)
        try:
            wait_until(labelled_of_the_pool(run, 0.2), driver, run)
            nodes.add()
            wait_until(lambda: len(run.events("nodes")) > 1, driver, run)
            nodes.kill(0)  # the only one until then
            assert driver.wait(300) == 0, run.errors()
        finally:
            driver.kill()
    assert run.committed() == run.pool() and run.counts()["errors"] == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_driver_that_is_replaced_goes_on_on_its_cluster_and_on_a_fresh_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As KubeRay's RayJob does it: the same command again, in a job of Ray, where RAY_ADDRESS names the cluster."""
    run = SumsRun(tmp_path, num_pool=NUM_POOL, actors={"min": 1, "max": 2}, seconds_per_row=0.02)
    marks = []

    def killed(nodes: Nodes, share: float) -> None:
        driver = run.start(RAY_ADDRESS=nodes.address)
        try:
            wait_until(labelled_of_the_pool(run, share), driver, run)
        finally:
            driver.kill()
            driver.wait()
        marks.append((set(run.committed()), len(run.labelled())))

    with cluster_of(2, monkeypatch) as nodes:
        killed(nodes, 0.3)
        killed(nodes, 0.6)
    with cluster_of(1, monkeypatch) as nodes:
        driver = run.start(RAY_ADDRESS=nodes.address)
        assert driver.wait(300) == 0, run.errors()
    assert run.committed() == run.pool()
    assert 0 < len(marks[0][0]) < len(marks[1][0]) < NUM_POOL
    labelled = run.labelled()
    for committed, length in marks:
        assert not committed.intersection(labelled[length:])
