"""Changed packages, each with the digests that belong to it: an error of ours, and nothing outside is touched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import package_fuzz
import pytest
from tiny_package import tiny_package

TESTS = Path(package_fuzz.__file__).parent


@pytest.mark.long
@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_a_changed_package_touches_nothing_outside_and_ends_in_a_message(tmp_path: Path, count: int) -> None:
    package = tiny_package(tmp_path / "tiny")
    command = [sys.executable, package_fuzz.__file__, package.uri, str(tmp_path), str(count), "0"]
    path = os.pathsep.join(str(folder) for folder in (TESTS, TESTS.parent))
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
