"""Progress that a worker notes in a file, and the driver reads."""

import time
from pathlib import Path

from curation.telemetry.standing import Standing, follow_progress, note_progress


def test_notes_are_told_and_those_of_an_earlier_worker_are_not(tmp_path: Path) -> None:
    path, told = tmp_path / "note", list[Standing]()
    path.write_text("[1, 2]")  # as another release wrote it
    with follow_progress(path, told.append):
        assert not path.exists()
        note_progress(path, 3, 10, "AUC 0.7")
        until = time.monotonic() + 20
        while not told and time.monotonic() < until:
            time.sleep(0.05)
    assert {(item.rows, item.total, item.note) for item in told} == {(3, 10, "AUC 0.7")}
