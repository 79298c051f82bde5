"""A row for which its node has no memory: Ray ends the process, and the row is passed by as one that kills."""

import time
from collections.abc import Sequence
from pathlib import Path

import lance
import numpy as np
import psutil
import pytest
import yaml
from sums_run import SumsRun

from curation.domains import Example
from curation.domains.math import Math

NUM_POOL = 200
HUNGRY = "What is 250 - 249?"
ROOM = 3 << 30
"""What Ray's memory monitor leaves to the run, bytes."""


class Hungry(Math):
    """A domain whose prompt for one row takes more than there is, where a model's actor asks for it."""

    def prompt(self, example: Example, *, shots: Sequence[Example] = ()) -> str:
        if example["problem"] == HUNGRY and b"ModelActor" in Path("/proc/self/cmdline").read_bytes():
            taken = [np.ones(1 << 27, dtype=np.uint8) for _ in range(2 * ROOM >> 27)]
            time.sleep(60)
            del taken
        return super().prompt(example, shots=shots)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_row_that_takes_all_memory_is_passed_by(tmp_path: Path):
    run = SumsRun(tmp_path, num_pool=NUM_POOL, actors={"min": 1, "max": 1}, seconds_per_row=0)
    run.config.write_text(yaml.safe_dump(yaml.safe_load(run.config.read_text()) | {"domain": f"{__name__}:Hungry"}))
    memory = psutil.virtual_memory()
    assert memory.available > 3 * ROOM, "this test takes 6 GiB for a moment"
    driver = run.start(
        *("--until", "label-pool"),
        PYTHONPATH=str(Path(__file__).parent),
        RAY_memory_usage_threshold=str((memory.total - memory.available + ROOM) / memory.total),
        RAY_memory_monitor_refresh_ms="50",
    )
    assert driver.wait(600) == 0, run.errors()
    assert run.committed() == run.pool()
    labels = run.labels()
    assert labels is not None
    failed = labels.to_table(columns=["row_id", "error"], filter="error IS NOT NULL").to_pylist()
    (uri,) = run.directory.glob("prepare-*/pool.lance")
    (hungry,) = lance.dataset(str(uri)).to_table(filter=f"problem = '{HUNGRY}'")["row_id"].to_pylist()
    assert [row["row_id"] for row in failed] == [hungry] and failed[0]["error"].startswith("poison:")
