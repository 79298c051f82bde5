"""The run as a job of Ray, as KubeRay's RayJob submits it: the driver is killed, the same job goes on."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sums_run import NUM_SOURCE, SumsRun

from curation.storage import lease

NUM_POOL = 2000
RAY = str(Path(sys.executable).with_name("ray"))


@contextmanager
def head() -> Iterator[str]:
    """A head with a dashboard in a process group of its own; the dashboard's address.

    Within it ``RAY_TMPDIR`` is the head's, where ``--address auto`` looks first; else it takes any Ray of the machine.
    """
    sockets = [socket.create_server(("", 0)) for _ in range(4)]
    port, dashboard, agent, client = (taken.getsockname()[1] for taken in sockets)
    for taken in sockets:
        taken.close()
    with (
        tempfile.TemporaryDirectory(prefix="head-", ignore_cleanup_errors=True) as directory,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setenv("RAY_TMPDIR", directory)
        command = ["start", "--head", "--block", "--num-cpus=3", f"--port={port}"]
        command += ["--include-dashboard=true", f"--dashboard-port={dashboard}", "--disable-usage-stats"]
        command += [f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"]
        process = subprocess.Popen([RAY, *command], start_new_session=True, stdout=subprocess.DEVNULL)
        try:
            yield f"http://127.0.0.1:{dashboard}"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def submit(address: str, run: SumsRun, *options: str, name: str) -> subprocess.CompletedProcess[str]:
    command = [RAY, "job", "submit", "--address", address, "--submission-id", name, *options, "--", *run.command]
    return subprocess.run(command, text=True, capture_output=True, timeout=300)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_whose_driver_is_killed_goes_on_when_it_is_submitted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    run = SumsRun(tmp_path, num_pool=NUM_POOL, actors={"min": 1, "max": 2}, seconds_per_row=0.02)
    with head() as address:
        end = time.monotonic() + 120
        while (first := submit(address, run, "--no-wait", name="first")).returncode:
            assert time.monotonic() < end, first.stderr
            time.sleep(1)
        while len(run.labelled()) < NUM_SOURCE + 0.4 * NUM_POOL:
            assert time.monotonic() < end + 200
            time.sleep(0.1)
        driver = re.match(r"process (\d+) on ", str(lease.find_holder(run.directory)))
        assert driver is not None
        os.kill(int(driver[1]), signal.SIGKILL)
        committed, length = set(run.committed()), len(run.labelled())
        second = submit(address, run, name="second")
        listed = subprocess.run([RAY, "job", "list", "--address", address], text=True, capture_output=True).stdout
    assert second.returncode == 0, second.stdout[-2000:] + second.stderr[-2000:]
    assert re.search(r"'first'.*?FAILED", listed, re.DOTALL) and re.search(r"'second'.*?SUCCEEDED", listed, re.DOTALL)
    assert 0 < len(committed) < NUM_POOL and run.committed() == run.pool()
    assert not committed.intersection(run.labelled()[length:])
