from pathlib import Path

import pytest

from curation.commands import doctor as storage

READ_ONLY = Path("/sys/kernel")
"""No folder can be made there, not even by root."""


def test_a_directory_that_can_be_used_is_left_as_it_was(tmp_path: Path):
    directory = tmp_path / "runs" / "x"
    assert storage.check_writing(directory).state == "ok"
    assert list(tmp_path.iterdir()) == []
    directory.mkdir(parents=True)
    assert storage.check_writing(directory).state == "ok"
    assert list(directory.iterdir()) == []


@pytest.mark.skipif(not READ_ONLY.is_dir(), reason="no /sys here")
def test_a_directory_that_cannot_be_written_fails():
    verdict = storage.check_writing(READ_ONLY / "run")
    assert verdict.state == "fail" and str(READ_ONLY / "run") in verdict.finding and "run_dir" in verdict.fix


def test_a_lease_keeps_a_second_driver_off(tmp_path: Path):
    assert storage._is_lease_exclusive(tmp_path / "lease")
