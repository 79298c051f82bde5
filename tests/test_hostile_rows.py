"""Whole runs over hostile rows and over inputs at the edge of what a run can hold, from the command line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

HOSTILE = (
    "<script>alert(1)</script>",
    "{{ 7 * 7 }}{% raw %}",
    "=HYPERLINK(1)",
    "NUL \x00 end",
    "\x1b]0;owned\x07\x9b2J\x7f",
    "\u202eturned\u2066",
    "x" * 10**6,
    '"""\r\n\t,;',
)
ACTING = "\x00\x07\x1b\x7f\x9b\u202e\u2066"
NUM_ROWS = 200
SPLITS: dict[str, Any] = {"source": {"from": "sums", "rows": 100}, "pool": {"from": "sums"}, "audit": True}
SCRIPTED = {"completions": [" <script>{{ 7 * 7 }}\x1b[31m\u202e \\boxed{1}", " \\boxed{2}"]}


def curate(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("curate")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr, done.stderr
    assert not any(sign in done.stdout + done.stderr for sign in ACTING)
    return done


def write(folder: Path, *, missing: bool = False, **sections: Any) -> Path:
    """A configuration over sums, each with a hostile text, in a folder with spaces and letters of all kinds."""
    folder = folder / "é 北京 \u200f run 'of' {{ x }}"
    folder.mkdir()
    rows = [
        {
            "id": 2**63 - 1 - n,
            "problem": f"{HOSTILE[n % 8]} What is {n} - {n} + 1?",
            "answer": None if missing and n % 9 == 0 else "1",
        }
        for n in range(NUM_ROWS)
    ]
    (folder / "sums é.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {
        "name": "hostile",
        "run_dir": str(folder / "run ü"),
        "domain": "math",
        "sources": {"sums": {"path": "sums é.jsonl", "id_column": "id"}},
        "splits": SPLITS,
        "teacher": {"backend": "scripted", "scripted": SCRIPTED},
        "trust": {"width": 8, "depth": 1, "max_steps": 10},
        "selection": {"budget": {"n": 20}, "arms": ["naive", "internal_confidence"]},
        "ray": {"num_cpus": 2},
        **sections,
    }
    path = folder / "hostile run.yaml"
    path.write_text(yaml.safe_dump(config, allow_unicode=True))
    return path


@pytest.mark.slow
def test_hostile_rows_go_through_a_whole_run(tmp_path: Path) -> None:
    config = write(tmp_path, missing=True, splits=SPLITS | {"max_error_rate": 0.5})
    assert (done := curate("run", config)).returncode == 0, done.stderr
    run = config.parent / "run ü"
    page = (run / "report.html").read_text()
    assert "<script>alert" not in page and not any(sign in page for sign in ACTING)
    report = json.loads((run / "report.json").read_text())
    assert [arm["num_selected"] for arm in report["arms"]] == [20, 20]
    (exported,) = run.glob("gen-0/select-*/naive.parquet")
    rows = pq.read_table(exported).to_pylist()
    assert rows == [json.loads(line) for line in exported.with_suffix(".jsonl").read_text().split("\n")[:-1]]
    for row in rows:
        text = HOSTILE[(2**63 - 1 - row["row_id"]) % 8]
        assert f"Problem: {text} What is" in row["prompt"] and row["completion"] in SCRIPTED["completions"]
    for arguments in (("status", config), ("status", run), ("report", config), ("plan", config), ("inspect", run)):
        assert curate(*arguments).returncode == 0
    assert curate("inspect", run, "gen-0/label-pool", "--rows", "50").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sections", "code", "told"),
    [
        (
            {
                "missing": True,
                "splits": {"source": {"from": "sums", "rows": 100}, "pool": {"from": "sums"}, "max_error_rate": 0},
            },
            2,
            "more than splits.max_error_rate 0",
        ),
        (
            {
                "splits": {"source": {"from": "sums", "rows": 100}, "pool": {"from": "sums", "rows": 1}},
                "selection": {"budget": {"n": 1}, "arms": ["naive", "neural"]},
            },
            0,
            "",
        ),
        (
            {
                "selection": {"budget": {"n": 20}, "arms": ["neural", "internal_confidence"]},
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
            None,
            "",
        ),
    ],
    ids=["max_error_rate 0", "a pool of one row", "all labels unparsed", "five calibration rows"],
)
def test_runs_at_the_edge_end_rightly_or_say_why(
    sections: dict[str, Any], code: int | None, told: str, tmp_path: Path
) -> None:
    done = curate("run", write(tmp_path, **sections))
    assert done.returncode == code if code is not None else done.returncode in (0, 1, 2), done.stderr
    if done.returncode:
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("curate: ")]
        assert told in line
    assert curate("status", tmp_path / next(tmp_path.iterdir()) / "run ü").returncode == 0
