"""The log of verdicts: several writers, lines that were cut off, a full disk."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from curation.errors import ReviewError
from curation.extras.review.folder import BACK, VerdictLine, VerdictLog, find_standing

APPEND = """
import sys
from pathlib import Path
from curation.extras.review.folder import VerdictLine, VerdictLog
log = VerdictLog(Path(sys.argv[1]))
for row_id in range(40):
    log.add([VerdictLine(row_id=row_id, person=sys.argv[2], verdict="right", via="page")])
"""


def test_a_log_is_appended_by_processes_and_threads_at_once_and_nothing_is_lost(tmp_path: Path):
    path = tmp_path / "verdicts.jsonl"
    path.write_bytes(b'{"row_id": 1, "person": "cut o')
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", APPEND, str(path), str(who)], env=environment) for who in range(3)
    ]
    threads = [threading.Thread(target=_append, args=(path, who)) for who in (3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    log = VerdictLog(path)
    entries = log.entries()
    assert len(entries) == 5 * 40 and log.num_torn == 1
    for who in range(5):
        assert [entry.row_id for entry in entries if entry.person == str(who)] == list(range(40))
    assert log.entries() == entries and sum(map(len, log.standing().values())) == 200
    with path.open("ab") as file:
        file.write(b'{"row_id": 9, "per')  # being written, or cut off
    assert len(log.entries()) == 200
    log.add([VerdictLine(row_id=9, person="x", verdict="right", via="csv")])
    assert [entry.person for entry in log.entries()[200:]] == ["x"] and log.num_torn == 2
    assert path.read_bytes().startswith(b'{"row_id": 1, "person": "cut o\n')  # nothing is rewritten


def _append(path: Path, who: int) -> None:
    log = VerdictLog(path)
    for row_id in range(40):
        log.add([VerdictLine(row_id=row_id, person=str(who), verdict="right", via="page")])


def test_the_last_verdict_of_a_person_counts_and_back_withdraws_it():
    def entry(person: str, verdict: str) -> VerdictLine:
        return VerdictLine(row_id=1, person=person, verdict=verdict, via="page")

    a, b, changed = entry("a", "right"), entry("b", "wrong"), entry("a", "wrong")
    assert find_standing([a, b, changed]) == {1: {"b": b, "a": changed}}
    assert find_standing([a, b, changed, entry("a", BACK)]) == {1: {"b": b}}
    assert find_standing([a, entry("a", BACK)]) == {}


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/dev/full").exists(), reason="no full device")
def test_a_full_disk_is_told_and_keeps_what_is_there():
    with pytest.raises(ReviewError, match="is not kept"):
        VerdictLog(Path("/dev/full")).add([VerdictLine(row_id=1, person="a", verdict="right", via="page")])
