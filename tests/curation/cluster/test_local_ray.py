"""A Ray that a run starts on its own machine: reached from there alone, and its workers are not put behind others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

PROGRAM = """
import json, os, stat, sys
from pathlib import Path
import psutil, ray
from curation.cluster.session import local_or_cluster
from curation.config import RayConfig

@ray.remote
def niceness():
    return os.nice(0)

with local_or_cluster(RayConfig(num_cpus=1)):
    inside = ray.get(niceness.remote())
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    heard = {c.laddr.ip for p in processes for c in p.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN}
    token = stat.S_IMODE((Path.home() / ".ray" / "auth_token").stat().st_mode)
    left = os.environ.get("RAY_worker_niceness")
print(json.dumps({"nice": inside, "heard": sorted(heard), "token": token, "left": left}))
"""


def test_a_ray_of_our_own_is_heard_on_this_machine_alone_and_runs_at_our_niceness(tmp_path: Path) -> None:
    found = told_by(tmp_path)
    assert found["heard"] and all(ip.removeprefix("::ffff:") == "127.0.0.1" for ip in found["heard"]), found
    assert found["nice"] == os.nice(0) and found["left"] is None
    assert found["token"] == 0o600


def test_the_users_own_niceness_is_kept(tmp_path: Path) -> None:
    found = told_by(tmp_path, RAY_worker_niceness="7")
    assert found["nice"] == os.nice(0) + 7 and found["left"] == "7"


def told_by(home: Path, **environment: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "HOME": str(home), **environment},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict = json.loads(done.stdout.splitlines()[-1])
    return found
