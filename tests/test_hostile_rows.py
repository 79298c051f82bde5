"""Whole runs over hostile rows and over inputs at the edge of what a run can hold, from the command line."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hostile_rows import ACTING, COMPLETIONS, SPLITS, check_run, write_run

TEACHER = {"backend": "scripted", "scripted": {"completions": COMPLETIONS}}


def curate(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("curate")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr, done.stderr
    assert not any(sign in done.stdout + done.stderr for sign in ACTING)
    return done


@pytest.mark.slow
def test_hostile_rows_go_through_a_whole_run(tmp_path: Path) -> None:
    config = write_run(tmp_path, answers=(None,))
    assert (done := curate("run", config)).returncode == 0, done.stderr
    run = config.parent / "run ü"
    assert check_run(run) > 0
    for arguments in (("status", config), ("status", run), ("report", config), ("plan", config), ("inspect", run)):
        assert curate(*arguments).returncode == 0
    assert curate("inspect", run, "gen-0/label-pool", "--rows", "50").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sections", "code", "told"),
    [
        (
            {"answers": (None,), "splits": SPLITS | {"max_error_rate": 0}},
            2,
            "more than splits.max_error_rate 0",
        ),
        (
            {
                "splits": {"source": {"from": "sums", "rows": 100}, "pool": {"from": "sums", "rows": 1}},
                "selection": {"budget": {"n": 1}, "arms": ["naive", "trust"]},
            },
            0,
            "",
        ),
        (
            {
                "selection": {"budget": {"n": 20}, "arms": ["trust", "internal_confidence"]},
                "teacher": {"backend": "scripted", "scripted": {"completions": ["nothing at all"]}},
            },
            2,
            "wrong",
        ),
        (
            {
                "splits": {
                    "source": {"from": "sums", "rows": 100},
                    "calibration": {"from": "sums", "rows": 5},
                    "pool": {"from": "sums"},
                },
                "selection": {"budget": {"risk": {"alpha": 0.4, "delta": 0.2}}, "arms": ["naive"]},
            },
            0,
            "",
        ),
    ],
    ids=["max_error_rate 0", "a pool of one row", "all labels unparsed", "five calibration rows"],
)
def test_runs_at_the_edge_end_rightly_or_say_why(
    sections: dict[str, Any], code: int, told: str, tmp_path: Path
) -> None:
    done = curate("run", write_run(tmp_path, **sections))
    assert done.returncode == code, done.stderr
    if done.returncode:
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("curate: ")]
        assert told in line
    assert curate("status", tmp_path / next(tmp_path.iterdir()) / "run ü").returncode == 0
