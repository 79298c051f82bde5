"""Ray's object store when neither its memory nor the disk that it spills to takes any more."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_disk import small_disk
from sums_run import SumsRun

NUM_SOURCE, STATE_SIZE = 800, 65_536
"""The states of the source rows, 105 MB, are more than the store and the disk hold."""
DRIVER = """
import json, subprocess, sys
import numpy as np
import ray
from ray.exceptions import OutOfDiskError
from curation import run
from curation.cluster.session import local_or_cluster
from curation.config import RayConfig
from curation.config.load import load_config
from curation.errors import RunFailedError
from curation.pipeline.running import run_part

path, disk = sys.argv[1:]
config = load_config(path)
said = []
with local_or_cluster(RayConfig(num_cpus=2)):
    run_part(config, "prepare")
    others = []
    for size in (4_000_000, 200_000, 10_000):
        try:
            while True:
                others.append(ray.put(np.zeros(size, np.uint8)))
        except OutOfDiskError:
            pass
    for step in ("the objects of others fill it", "the states do not fit"):
        try:
            run(config)
        except RunFailedError as error:
            said.append(str(error))
        others.clear()
    subprocess.run(["mount", "-o", "remount,size=400m", disk], check=True)
    run(config)
print(json.dumps(said))
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MB, to which Ray spills."""
    with small_disk(tmp_path / "spilled") as path:
        yield path


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_full_object_store_ends_a_pass_and_a_fit_with_what_to_do(disk: Path, tmp_path: Path) -> None:
    script = {
        "completions": [" \\boxed{1}", " \\boxed{2}"],
        "state_size": STATE_SIZE,
        "log": str(tmp_path / "labelled.log"),
    }
    run = SumsRun(
        tmp_path,
        num_pool=100,
        actors={"max": 1},
        seconds_per_row=0,
        splits={"source": {"from": "sums", "rows": NUM_SOURCE}},
        num_more=NUM_SOURCE,
        sections={
            "teacher": {"backend": "scripted", "chunk_rows": 50, "actors": {"max": 1}, "scripted": script},
            "selection": {"budget": {"n": 20}, "arms": ["naive", "neural"]},
        },
    )
    memory = {"RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "80000000", "RAY_object_spilling_directory": str(disk)}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(run.config), str(disk)],
        env=os.environ | memory,
        capture_output=True,
        text=True,
        timeout=1700,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Traceback" not in done.stderr
    of_pass, of_fit = json.loads(done.stdout.splitlines()[-1])
    assert of_pass.startswith("stage gen-0/label-") and of_fit.startswith("stage gen-0/trust-neural failed: ")
    for message in (of_pass, of_fit):
        assert "Ray's object store is full, and so is the disk that it spills to" in message
        assert str(disk) in message and "run the same command to resume" in message and "\n" not in message
    assert run.committed() == run.pool() and len(run.pool()) == 100
    labelled = run.labelled()
    assert len(labelled) == len(set(labelled)), "rows were labelled again"
