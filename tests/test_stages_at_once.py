"""Stages side by side: on a cluster whose nodes and whose driver are killed at random, and one that fails."""

import json
import random
import subprocess
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import lance
import pytest
import yaml
from click.testing import CliRunner, Result
from ray_nodes import Nodes, cluster_of, wait_until
from sums_run import NUM_SOURCE, SumsRun

from benchmarks.recorded import recorded
from curation.cli import main

pytestmark = pytest.mark.whole_run

ROOT = Path(__file__).parents[1]
NODE_CPUS = 2
"""Beside the head, which has no CPUs and is never killed."""
CHUNK_ROWS, SECONDS_PER_ROW = 25, 0.02
CALIBRATION, PROBE = "gen-0/label-calibration", "gen-0/label-probe-late"
LABELLING = {"gen-0/label-source", CALIBRATION, PROBE, "gen-0/label-pool"}


class ManyStages(SumsRun):
    """Four splits that one model labels, two of which a second one answers too: eight passes and what follows them."""

    def __init__(self, directory: Path, *, num_pool: int, num_other: int, seconds_per_row: float) -> None:
        self.sizes = {"source": NUM_SOURCE, "calibration": num_other, "probe-late": num_other, "pool": num_pool}
        super().__init__(
            directory,
            num_pool=num_pool,
            actors={"min": 1, "max": 2},
            seconds_per_row=seconds_per_row,
            chunk_rows=CHUNK_ROWS,
            splits={
                "calibration": {"from": "sums", "rows": num_other},
                "probes": {"late": {"from": "sums", "rows": num_other, "regime": "ID"}},
            },
            num_more=2 * num_other,
            sections={
                "signals": {"second_teacher": {"path": str(ROOT / "examples/bases/teacher")}},
                "selection": {
                    "budget": {"risk": {"alpha": 0.9}, "reference": "ensemble"},
                    "arms": ["naive", "internal_confidence", "ensemble"],
                },
            },
        )
        self.num_asked = sum(self.sizes.values()) + num_other + num_pool
        """Rows of all passes: those of calibration and pool are asked twice."""

    def lines(self) -> list[dict[str, Any]]:
        """All events."""
        path = self.directory / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def passes(self) -> Counter[int]:
        """How many passes have committed each row."""
        places = [*self.directory.glob("gen-0/label-*/*.lance"), *self.directory.glob("gen-0/signal-*/*.lance")]
        return Counter(row_id for place in places for row_id in ids_of(place))

    def table(self, name: str) -> list[int]:
        """The row ids in the table that a stage has made, of which there is one."""
        (place,) = self.directory.glob(f"{name}.lance")
        return ids_of(place)


def ids_of(place: Path) -> list[int]:
    return lance.dataset(str(place)).to_table(columns=["row_id"])["row_id"].to_pylist()


def under_way(events: list[dict[str, Any]], ends: Collection[int] = ()) -> list[set[str]]:
    """After each event the stages that were started and not ended; ``ends`` are the events at which a driver died."""
    found, working = [], set[str]()
    for place, event in enumerate(events):
        if place in ends:
            working = set()
        if event["event"] == "started":
            working = working | {event["stage"]}
        elif event["event"] in ("finished", "failed", "stopped"):
            working = working - {event["stage"]}
        found.append(working)
    return found


def workers(stages: set[str]) -> set[str]:
    """What stages work by: passes of one model share its actors, all others have tasks of their own."""
    shared = ("gen-0/label-", "gen-0/signal-")
    return {next((start for start in shared if stage.startswith(start)), stage) for stage in stages}


class Killer:
    """Kills the driver, and starts the same command again, or a node, and adds a new one."""

    def __init__(self, run: ManyStages, nodes: Nodes, chance: random.Random) -> None:
        self._run, self._nodes, self._chance = run, nodes, chance
        self.driver = self._start()
        self.done: Counter[str] = Counter()
        self.ends: list[int] = []
        """How many events there were when a driver had died."""
        self.marks: list[tuple[Counter[int], int]] = []
        """What was committed then, and how many rows had been asked."""

    def _start(self) -> subprocess.Popen[bytes]:
        return self._run.start("--address", self._nodes.address)

    def kill(self, kind: str) -> None:
        self.done[kind] += 1
        if kind == "node":
            self._nodes.kill(self._chance.randrange(self._nodes.number))
            self._nodes.add()
            return
        self.driver.kill()
        self.driver.wait()
        self.ends.append(len(self._run.lines()))
        self.marks.append((self._run.passes(), len(self._run.labelled())))
        self.driver = self._start()


def kill_at_random(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *, num_nodes: int, num_kills: int, num_pool: int
) -> None:
    run = ManyStages(directory, num_pool=num_pool, num_other=num_pool // 4, seconds_per_row=SECONDS_PER_ROW)
    chance = random.Random(num_kills)
    with cluster_of(num_nodes, monkeypatch, num_cpus=NODE_CPUS) as nodes:
        killer = Killer(run, nodes, chance)
        kinds = ["driver", "node"] * (num_kills // 2)
        chance.shuffle(kinds)
        try:
            for kind in kinds:
                # The rows are the clock, however slow the machine is; those asked again can only put off the end.
                share = chance.uniform(0.2, 1) * 0.85 / num_kills
                target = len(run.labelled()) + share * run.num_asked
                wait_until(lambda target=target: len(run.labelled()) >= target, killer.driver, run)
                killer.kill(kind)
            assert killer.driver.wait(400) == 0, run.errors()
        finally:
            killer.driver.kill()
            killer.driver.wait()
    print(f"killed: {dict(killer.done)}, {len(run.labelled()) - run.num_asked} of {run.num_asked} rows asked again")

    check_rows(run)
    check_stages(run, killer.ends)
    log, twice = run.labelled(), ids_in(run, "calibration") | ids_in(run, "pool")
    num_over = 0
    for committed, length in killer.marks:
        over = {row_id for row_id, num in committed.items() if num == (2 if row_id in twice else 1)}
        num_over += len(over)
        again = over.intersection(log[length:])
        assert not again, f"{len(again)} rows that all their passes had committed were asked again"
    assert num_over > 0


def ids_in(run: ManyStages, split: str) -> set[int]:
    return set(run.table(f"prepare-*/{split}"))


def check_rows(run: ManyStages) -> None:
    """Every row of every table exactly once."""
    for place in (found for found in run.directory.rglob("*.lance") if found.is_dir()):  # data files end so, too
        ids = ids_of(place)
        assert len(ids) == len(set(ids)), place
    for split, size in run.sizes.items():
        ids = ids_in(run, split)
        assert len(ids) == size
        assert set(run.table(f"gen-0/label-{split}-*/labels")) == ids
        if split != "pool":
            assert set(run.table(f"gen-0/grade-{split}-*/grades")) == ids
        if split in ("calibration", "pool"):
            assert set(run.table(f"gen-0/signal-ensemble_agreement-{split}-*/*")) == ids


def check_stages(run: ManyStages, ends: Collection[int]) -> None:
    """No stage twice, and three of them under way at once."""
    stages = recorded(run.directory)
    events = run.lines()
    finished: set[str] = set()
    for event in events:
        if event["event"] in ("started", "finished"):
            assert event["stage"] not in finished, event
        if event["event"] == "finished":
            finished.add(event["stage"])
    # A driver may die after it has recorded a stage and before it says so.
    assert finished <= stages.keys() and len(stages.keys() - finished) <= len(ends)
    assert {"gen-0/select", "gen-0/score-pool", *LABELLING} <= stages.keys()
    for name in stages:
        assert len(list(run.directory.glob(f"{name}-" + "?" * 8))) <= 1, name
    at_once = under_way(events, ends)
    assert any(stages >= LABELLING for stages in at_once)
    assert max(len(workers(stages)) for stages in at_once) >= 3
    assert not [event for event in events if event["event"] == "failed"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_driver_and_nodes_killed_at_random_twenty_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kill_at_random(tmp_path, monkeypatch, num_nodes=3, num_kills=20, num_pool=3000)


def test_one_that_fails_lets_the_others_end_and_is_alone_done_again(local_ray: Any, tmp_path: Path):
    run = ManyStages(tmp_path, num_pool=400, num_other=50, seconds_per_row=0.01)

    def curate(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["run", str(run.config), *arguments], catch_exceptions=False)

    assert curate("--until", "prepare").exit_code == 0
    raw = yaml.safe_load(run.config.read_text())
    failing = run.table("prepare-*/probe-late")[:10]
    raw["teacher"]["scripted"]["error_rows"] = failing
    run.config.write_text(yaml.safe_dump(raw))
    result = curate()
    assert result.exit_code == 1, result.stderr
    told = f"stage {PROBE} failed: "
    assert "Traceback" not in result.output and result.stderr.splitlines()[-1].startswith(f"curate: {told}")
    assert "10 of 50 rows failed (10 of them scripted), more than teacher.max_error_rate 0.01" in result.stderr
    assert f"{PROBE} failed; waiting for the running stages: " in result.stderr
    assert any(stages >= LABELLING for stages in under_way(run.lines()))
    assert [event["stage"] for event in run.events("failed")] == [PROBE]
    healthy = {event["stage"] for event in run.events("finished")}
    stages = recorded(run.directory)
    assert stages.keys() == healthy >= LABELLING - {PROBE} and "gen-0/select" not in healthy
    assert len(ids_in(run, "pool")) == len(run.committed())

    before, asked = len(run.lines()), len(run.labelled())
    raw["teacher"]["max_error_rate"] = 0.5
    run.config.write_text(yaml.safe_dump(raw))
    result = curate()
    assert result.exit_code == 0, result.stderr
    started = [event["stage"] for event in run.lines()[before:] if event["event"] == "started"]
    assert PROBE in started and not healthy.intersection(started) and len(started) == len(set(started))
    stages = recorded(run.directory)
    assert stages.keys() == healthy | set(started) and "gen-0/select" in stages
    assert stages[PROBE]["outputs"]["counts"]["errors"] == {"scripted": 10}
    check_rows_of_the_failed(run, asked)


def check_rows_of_the_failed(run: ManyStages, asked: int) -> None:
    """The rows of the stage that failed were committed, so that they are not asked again."""
    assert not ids_in(run, "probe-late").intersection(run.labelled()[asked:])
    assert set(run.table(f"{PROBE}-*/labels")) == ids_in(run, "probe-late")
