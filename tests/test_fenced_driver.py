"""A driver that lost its run directory while its actors worked: it says so in one line, and is silent after that."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sums_run import SumsRun

from curation.storage import conditional

pytestmark = pytest.mark.whole_run

SHORT_LEASE = """
import sys
from curation.cli import main
from curation.storage import lease
lease.hold.__wrapped__.__kwdefaults__["seconds"] = 3.0
main(sys.argv[1:])
"""


def test_a_driver_whose_lease_was_taken_ends_with_its_line(tmp_path: Path) -> None:
    run = SumsRun(tmp_path, num_pool=4000, actors={"max": 1}, seconds_per_row=0.02)
    command = [sys.executable, "-c", SHORT_LEASE, "run", str(run.config)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 200
    while driver.poll() is None and len(run.committed()) < 100 and time.monotonic() < until:
        time.sleep(0.1)
    register, token = conditional.make_register(run.directory / "lease"), None
    while driver.poll() is None and token is None:  # the driver renews it meanwhile
        found = register.read()
        assert found is not None
        taken = json.loads(found.text) | {"owner": "another", "host": "node-7", "expires": time.time() + 600}
        token = register.put_if_match(json.dumps(taken), found.token)
    output, errors = driver.communicate(timeout=100)
    assert driver.returncode == 1 and not output, errors
    last = errors.splitlines()[-1]
    assert last.startswith("curate: stage gen-0/") and " on node-7, since " in last, errors
    assert "this driver commits nothing more" in last
    assert not [line for line in errors.splitlines() if "ignored" in line or "Traceback" in line], errors
