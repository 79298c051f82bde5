"""Exactly once: the driver dies by SIGKILL while the pool is labelled, the same command goes on."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pytest
import yaml

from curation.lease import holder

NUM_SOURCE, NUM_POOL = 200, 3000
CONFIG = {
    "name": "kill",
    "splits": {
        "source": {"from": "puzzles", "rows": NUM_SOURCE},
        "pool": {"from": "puzzles", "rows": NUM_POOL},
    },
    "teacher": {
        "backend": "scripted",
        "chunk_rows": 50,
        "actors": {"min": 2, "max": 2},
        "scripted": {"seconds_per_row": 0.004},
    },
    "trust": {"width": 8, "depth": 1, "max_epochs": 1},
    "selection": {"budget": {"n": 100}, "arms": ["naive", "internal_confidence"]},
    "commit_seconds": 0.2,
}


class Killed:
    """One run directory and the command that is run in it again and again."""

    def __init__(self, directory: Path, puzzles: Path, **settings: Any) -> None:
        self.directory = directory / "run"
        self.log = directory / "labelled.log"
        self._stderr = directory / "stderr.log"
        config = CONFIG | {"run_dir": str(self.directory), "sources": {"puzzles": {"path": str(puzzles)}}, **settings}
        config["teacher"]["scripted"]["log"] = str(self.log)
        self.config = directory / "config.yaml"
        self.config.write_text(yaml.safe_dump(config))

    def start(self) -> subprocess.Popen:
        return subprocess.Popen(
            [Path(sys.executable).with_name("curate"), "run", str(self.config)],
            stdout=subprocess.DEVNULL,
            stderr=self._stderr.open("a"),
        )

    def errors(self) -> str:
        return self._stderr.read_text()[-2000:]

    def pool_table(self) -> str | None:
        found = sorted(self.directory.glob("gen-0/label-pool-*/labels.lance"))
        return str(found[0]) if found else None

    def committed(self) -> list[int]:
        uri = self.pool_table()
        return lance.dataset(uri).to_table(columns=["row_id"])["row_id"].to_pylist() if uri else []

    def labelled(self) -> list[int]:
        return [int(line) for line in self.log.read_text().split("\n") if line] if self.log.exists() else []


def kill_and_resume(directory: Path, puzzles: Path, num_kills: int) -> None:
    run, chance = Killed(directory, puzzles), random.Random(num_kills)
    marks = []
    for _ in range(num_kills):
        process = run.start()
        # The rows labelled so far are the clock: a moment after some more of the pool, however slow the machine is.
        target = max(len(run.labelled()), NUM_SOURCE) + chance.uniform(0.1, 0.8) * NUM_POOL / num_kills
        while process.poll() is None and len(run.labelled()) < target:
            time.sleep(0.02)
        assert process.poll() is None, f"the run ended before it was killed: {run.errors()}"
        process.send_signal(signal.SIGKILL)
        process.wait()
        committed = run.committed()
        assert len(committed) == len(set(committed))
        marks.append((set(committed), len(run.labelled())))
    final = run.start()
    # The scripted labels are all wrong, so the fit refuses: after the labels are whole, with the user's exit code.
    assert final.wait(timeout=400) == 2, run.errors()
    assert "both right and wrong ones are needed" in run.errors()

    pool = next(run.directory.glob("prepare-*/pool.lance"))
    expected = lance.dataset(str(pool)).to_table(columns=["row_id"])["row_id"].to_pylist()
    assert len(expected) == NUM_POOL
    assert Counter(run.committed()) == Counter(expected)
    assert len(lance.dataset(run.pool_table()).get_fragments()) == 1, "60 small fragments were not compacted"
    log = run.labelled()
    for committed, length in marks:
        again = committed.intersection(log[length:])
        assert not again, f"{len(again)} committed rows were labelled again"
    assert any(0 < len(committed) < NUM_POOL for committed, _ in marks)


def test_driver_killed_three_times(tmp_path, puzzle_file):
    kill_and_resume(tmp_path, puzzle_file, 3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_driver_killed_twenty_times(tmp_path, puzzle_file):
    kill_and_resume(tmp_path, puzzle_file, 20)


def test_sigterm_commits_what_is_done_and_gives_the_directory_back(tmp_path, puzzle_file):
    run = Killed(tmp_path, puzzle_file, commit_seconds=3600)
    process = run.start()
    while process.poll() is None and len(run.labelled()) < NUM_SOURCE + NUM_POOL / 2:
        time.sleep(0.02)
    begun = time.monotonic()
    process.terminate()
    assert process.wait(timeout=60) == 143, run.errors()
    assert time.monotonic() - begun < 25  # Kubernetes grants 30 s
    assert "stopped; the same command goes on from here" in run.errors()
    unfinished = 2 * 2 * CONFIG["teacher"]["chunk_rows"]  # two actors, two chunks each
    assert len(run.committed()) >= len(run.labelled()) - NUM_SOURCE - unfinished
    assert holder(run.directory) is None
    assert '"stopped"' in (run.directory / "events.jsonl").read_text().splitlines()[-1]
