"""The file of stage times lies beside run directories, where others may write."""

import os
from pathlib import Path

import pytest

from curation.rundir import history
from curation.rundir.graph import Position, Stage


class Quick(Stage):
    pass


def note(run: Path) -> None:
    history.note(run, Quick(name="quick", at=Position()), 3, 2.0)


def test_a_time_is_read_as_it_was_noted_also_after_a_line_that_a_kill_left_half(tmp_path: Path) -> None:
    (tmp_path / history.FILE).write_bytes(b'{"host": "half')
    note(tmp_path / "run")
    note(tmp_path / "run")
    assert [(item.kind, item.amount, item.seconds) for item in history.read(tmp_path / "run")] == [("Quick", 3, 2)] * 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "device", "dangling"])
def test_what_is_no_file_is_neither_read_nor_written(tmp_path: Path, kind: str) -> None:
    path, victim = tmp_path / history.FILE, tmp_path / "victim"
    if kind != "dangling":
        note(tmp_path / "run")
        path.rename(victim)
    before = victim.read_bytes() if victim.exists() else None
    if kind in ("link", "dangling"):
        path.symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    note(tmp_path / "run")
    assert history.read(tmp_path / "run") == []
    assert (victim.read_bytes() if victim.exists() else None) == before
