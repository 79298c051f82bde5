"""Engines that share a GPU start one after the other; a process that dies holds none up."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from curation.teachers.vllm_engine import list_shared_gpus, start_turn

HOLD = """
import sys, time
from pathlib import Path
from curation.teachers.vllm_engine import start_turn
with start_turn(sys.argv[2].split(","), Path(sys.argv[1])):
    Path(sys.argv[1], "held").touch()
    time.sleep(60)
"""


@pytest.mark.long
def test_a_start_waits_for_the_gpus_it_shares_and_not_for_a_dead_one(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path), "1,0"])
    try:
        while not (tmp_path / "held").exists():
            time.sleep(0.05)
        with start_turn(["2"], tmp_path), start_turn([], tmp_path):
            pass  # another GPU, and a whole one
        waiting = subprocess.Popen([sys.executable, "-c", HOLD.replace("60", "0"), str(tmp_path), "0"])
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1.5)
        os.kill(process.pid, signal.SIGKILL)
        assert waiting.wait(10) == 0
    finally:
        process.kill()
        process.wait()


def test_only_parts_of_gpus_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert [list_shared_gpus(num) for num in (0, 0.5, 1, 2)] == [[], ["3"], [], []]
