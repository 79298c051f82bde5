"""A costly program is run on the rows of the pool that trust puts first: so many as are asked for, none twice."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from test_judge_check_run import BASES, logprob

from benchmarks.recorded import recorded
from curation.arms import REFERENCE_ARM
from curation.cli import main
from curation.extras.check_best.stage import MOST_TASKS, choose_task_rows
from curation.models import load_model, load_tokenizer
from curation.refs import ModelRef, TableRef
from curation.tables import io, schemas

pytestmark = [pytest.mark.timeout(900), pytest.mark.whole_run]
LABELLED, POOL, N, CHECKED = 200, 400, 60, 100
BATCH = 10

PROGRAM = """import json, socket, sys, time
rows = [json.loads(line) for line in sys.stdin]
sums = [(int(row["row"]["a"]), int(row["row"]["b"])) for row in rows]
asked = [a for a, _ in sums if a < {pool}]
assert all((row["reference"] is None) == (a < {pool}) for row, (a, _) in zip(rows, sums)), "a reference of the pool"
if asked:
    telling = socket.socket(socket.AF_UNIX)
    telling.connect({address!r})
    telling.sendall(json.dumps(asked).encode())
    telling.close()
    time.sleep({seconds})
for row, (a, b) in zip(rows, sums):
    print(json.dumps(row["completion"] == str(a + b)))
"""


class Listener:
    """Hears what the program is asked about, by a socket: rows of the pool, by their place there."""

    def __init__(self) -> None:
        self.address = f"{tempfile.mkdtemp(prefix='v')}/s"
        self.places: list[int] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.address)
        self._socket.listen(64)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            with self._socket.accept()[0] as connection:
                self.places += json.loads(b"".join(iter(lambda: connection.recv(65536), b"")))


def curate(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def written(folder: Path, *, seconds: float = 0.0, address: str = "") -> Path:
    """A configuration beside its files; a sum of 10 or 11, of which the teacher says one for each row."""
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for name, num, start in (("labelled", LABELLED, POOL), ("pool", POOL, 0)):
        sums = rng.integers(10, 12, num)
        lines = [f"{a},{total - a}" + f",{total}" * (name == "labelled") for a, total in enumerate(sums, start)]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,sum" if name == "labelled" else "a,b", *lines]) + "\n")
    (folder / "check.py").write_text(PROGRAM.format(pool=POOL, seconds=seconds, address=address))
    config: dict[str, Any] = {
        "name": "checked",
        "run_dir": str(folder / "run"),
        "domain": {
            "name": "text",
            "prompt": "{{ a }} + {{ b }} = ?",
            "reference": "sum",
            "check": {"command": ["python", "check.py"], "batch_rows": BATCH, "sandbox": "none"},
        },
        "sources": {"labelled": {"path": "labelled.csv"}, "pool": {"path": "pool.csv"}},
        "splits": {"source": {"from": "labelled"}, "pool": {"from": "pool"}},
        "teacher": {"backend": "scripted", "scripted": {"completions": ["10", "11"]}},
        "selection": {"budget": {"n": N}, "arms": ["naive", REFERENCE_ARM]},
        "check_best": {"rows": CHECKED},
        "ray": {"num_cpus": 2},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def outputs(folder: Path, stage: str) -> Any:
    return recorded(folder / "run")[f"gen-0/{stage}"]["outputs"]


def rows_of(ref: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = io.read(TableRef.from_json(ref)).to_pylist()
    return found


def sums_of(folder: Path) -> dict[int, int]:
    """The right answer by row id."""
    lines = (folder / "pool.csv").read_text().splitlines()[1:]
    ids = sorted(row["row_id"] for row in rows_of(outputs(folder, "score-pool")["labels"]))
    return {row_id: sum(map(int, line.split(","))) for row_id, line in zip(ids, lines, strict=True)}


def places_of(row_ids: Iterable[int]) -> list[int]:
    """The places of rows in their file, which the program reads as ``a``."""
    return [row_id & ((1 << 40) - 1) for row_id in row_ids]


def best_by_hand(labels: list[dict[str, Any]]) -> list[int]:
    """The rows by raw trust, best first."""
    raw_N = np.array([row[schemas.get_raw_column(REFERENCE_ARM)] for row in labels], dtype=np.float32)
    assert len(set(raw_N.tolist())) == len(raw_N), "no ties, whose order a hash decides"
    return [labels[place]["row_id"] for place in np.argsort(-raw_N)]


def test_the_best_rows_are_checked_and_those_that_fail_are_dropped(local_ray: Any, tmp_path: Path) -> None:
    listener = Listener()
    path = written(tmp_path, address=listener.address)
    curate("validate", str(path))
    assert "check-best" in curate("plan", str(path), "--no-probe")
    assert f"{CHECKED:,} rows checked" in curate("run", str(path))
    labels = rows_of(outputs(tmp_path, "score-pool")["labels"])
    verdicts, right = rows_of(outputs(tmp_path, "check-best")["verdicts"]), sums_of(tmp_path)
    best = best_by_hand(labels)
    assert [row["row_id"] for row in verdicts] == best[:CHECKED]
    says = {row["row_id"]: int(row["label"]) for row in labels}
    assert [row["correct"] for row in verdicts] == [says[row_id] == right[row_id] for row_id in best[:CHECKED]]
    assert sorted(listener.places) == sorted(places_of(best[:CHECKED])), "these rows, each once, and no other"
    passed = [row["row_id"] for row in verdicts if row["correct"]]
    counts = outputs(tmp_path, "check-best")["counts"]
    assert counts == {"arm": REFERENCE_ARM, "asked": CHECKED, "passed": len(passed), "problems": 0}
    assert 0 < len(passed) < N, "so that rows which were not checked are selected, too"

    # What passed comes first, then the next best by trust; the arm that draws has its rows as ever.
    chosen = [row["row_id"] for row in rows_of(outputs(tmp_path, "select")["arms"][REFERENCE_ARM]["table"])]
    assert chosen == [*passed, *best[CHECKED:]][:N]
    naive = {row["row_id"] for row in rows_of(outputs(tmp_path, "select")["arms"]["naive"]["table"])}
    assert naive & {row["row_id"] for row in verdicts if not row["correct"]}
    report = json.loads((tmp_path / "run" / "report.json").read_text())["generations"][0]["features"]["check_best"]
    assert (report["asked"], report["passed"], report["selected_checked"]) == (CHECKED, len(passed), len(passed))
    assert report["share"]["value"] == len(passed) / CHECKED and report["selected"] == N
    page = " ".join((tmp_path / "run" / "report.html").read_text().split())
    assert f"was run on the {CHECKED} rows" in page and f"the other {N - len(passed)} were not checked" in page

    # A row that failed says so, of the arm that it was dropped from alone.
    told = curate("explain", str(tmp_path / "run"), str(next(row_id for row_id in best if row_id not in passed)))
    said = {line.split()[0].rstrip(":"): line for line in told.splitlines() if line.strip()}
    assert "check_best leaves it out: the check calls its answer wrong" in said[REFERENCE_ARM]
    assert "check_best" not in said["naive"]

    # More checks: nothing is labelled, graded or scored again, and the selection is of checked rows alone.
    before = {stage: outputs(tmp_path, stage) for stage in ("label-pool", "grade-source", "score-pool")}
    curate("run", str(path), "--set", "check_best.rows=300")
    assert {stage: outputs(tmp_path, stage) for stage in before} == before
    chosen = [row["row_id"] for row in rows_of(outputs(tmp_path, "select")["arms"][REFERENCE_ARM]["table"])]
    assert len(chosen) == N and all(says[row_id] == right[row_id] for row_id in chosen)
    assert sorted(listener.places) == sorted(places_of(best[:300])), "of 300 rows the 200 that had no verdict"

    # Another arm scores the labels anew: no row is checked a second time.
    more = ["--set", "check_best.rows=300", "--set", f"selection.arms=[naive, {REFERENCE_ARM}, linear_probe]"]
    assert "300 rows checked (300 of them before)" in curate("run", str(path), *more)
    assert len(listener.places) == 300
    assert [row["row_id"] for row in rows_of(outputs(tmp_path, "check-best")["verdicts"])] == best[:300]
    # Too few pass for another budget: the message says why.
    told = curate("run", str(path), "--set", "check_best.rows=400", "--set", "selection.budget.n=350", code=2)
    assert "rows are left out by check_best" in told


def test_a_judge_is_asked_about_the_best_rows_and_about_no_row_twice(local_ray: Any, tmp_path: Path) -> None:
    path = written(tmp_path)
    config = yaml.safe_load(path.read_text())
    ask = "{{ prompt }}{% if reference is defined %} {{ reference }}{% endif %} {{ answer }} ="
    config["domain"]["check"] = {"judge": {"prompt": ask, "right": "1", "wrong": "2"}}
    config["judge"] = {"model": {"path": str(BASES / "sums_teacher")}}
    config["teacher"] = {"model": {"path": str(BASES / "sums_teacher")}, "decoding": {"max_tokens": 6}}
    path.write_text(yaml.safe_dump(config))
    curate("validate", str(path))
    curate("run", str(path))
    labels = rows_of(outputs(tmp_path, "score-pool")["labels"])
    best, said = best_by_hand(labels), {row["row_id"]: row["label"] for row in labels}
    made = outputs(tmp_path, "check-best")
    assert made["pass"]["rows"] == CHECKED
    verdicts = rows_of(made["verdicts"])
    assert [row["row_id"] for row in verdicts] == best[:CHECKED]
    reference = ModelRef(base=str(BASES / "sums_teacher"))
    model, tokenizer = load_model(reference), load_tokenizer(reference)
    (uri,) = tmp_path.glob("run/prepare-*/pool.lance")
    asked = {row["row_id"]: row["question"] for row in io.read(io.find_latest(str(uri))).to_pylist()}
    for row in verdicts[:20]:
        prompt = f"{asked[row['row_id']]} {said[row['row_id']]} ="
        margin = logprob(model, tokenizer, prompt, " 1") - logprob(model, tokenizer, prompt, " 2")
        assert abs(margin) < 1e-4 or row["correct"] is (margin > 0), (prompt, margin)
    failed = {row["row_id"] for row in verdicts if not row["correct"]}
    assert 0 < len(failed) < CHECKED, "the judge calls some right and some wrong"
    chosen = [row["row_id"] for row in rows_of(outputs(tmp_path, "select")["arms"][REFERENCE_ARM]["table"])]
    assert chosen == [row_id for row_id in best if row_id not in failed][:N]

    curate("run", str(path), "--set", "check_best.rows=130")
    made = outputs(tmp_path, "check-best")
    assert made["counts"]["asked"] == 130 and made["pass"]["rows"] == 30
    assert rows_of(made["verdicts"])[:CHECKED] == verdicts


def test_a_warning_says_that_fewer_rows_are_checked_than_selected(tmp_path: Path) -> None:
    path = written(tmp_path)
    words = "check_best.rows: 50 rows are checked and 60 selected (selection.budget.n), so that at least 10"
    assert words in curate("validate", str(path), "--set", "check_best.rows=50")
    assert "rows are checked and" not in curate("validate", str(path))


def test_small_batches_of_a_program_make_a_bounded_number_of_tasks() -> None:
    for num, batch_rows in ((0, 1), (1, 1), (400, 1), (10_000, 1), (10_001, 7), (10**6, 100)):
        rows = choose_task_rows(num, batch_rows)
        assert rows % batch_rows == 0 and math.ceil(num / rows) <= MOST_TASKS
    assert choose_task_rows(400, 1) == 1 and choose_task_rows(10_000, 1) == 20


def test_a_killed_run_checks_what_is_committed_no_second_time(local_ray: Any, tmp_path: Path) -> None:
    """Each start of the program takes a while, and the driver is killed as soon as some verdicts are committed."""
    listener = Listener()
    path = written(tmp_path, seconds=0.5, address=listener.address)
    log = tmp_path / "log"

    command = [sys.executable, "-m", "curation.cli", "run", str(path)]
    with log.open("ab") as file:
        driver = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    committed = list[int]()
    try:
        begun = time.monotonic()
        while not committed:
            assert driver.poll() is None and time.monotonic() - begun < 400, log.read_text()
            time.sleep(0.1)
            tables = [*tmp_path.glob("run/gen-0/label-pool-*/verdicts-*.lance")]
            if tables and io.count(table := io.find_latest(str(tables[0]))):
                committed = io.read(table)["row_id"].to_pylist()
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert BATCH <= len(committed) < CHECKED
    (uri,) = tmp_path.glob("run/gen-0/label-pool-*/verdicts-*.lance")
    version = io.find_latest(str(uri)).version
    curate("run", str(path))
    after = Counter(row["row_id"] for row in rows_of(outputs(tmp_path, "check-best")["verdicts"]))
    assert len(after) == CHECKED and set(after.values()) == {1} and set(committed) <= set(after)
    new = io.read(io.find_latest(str(uri)))["row_id"].to_pylist()
    assert len(new) == CHECKED and io.find_latest(str(uri)).version > version
    times = Counter(listener.places)
    assert len(times) == CHECKED and all(times[place] == 1 for place in places_of(committed)), times
    assert sum(times.values()) <= CHECKED + 4 * BATCH, "but for batches that were under way, or not committed"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["domain.check=normalised"], "check_best: runs a program on rows of the pool, or asks a judge about"),
        (
            [
                'domain.check={judge: {prompt: "{{ answer }} {{ reference }}"}}',
                f"judge={{model: {{path: {BASES / 'sums_teacher'}}}}}",
            ],
            "check_best: rows of the pool have no reference answer, and check.judge.prompt fails without one",
        ),
        (["splits.audit=true"], "check_best: with splits.audit the check grades the whole pool"),
        (["selection.budget={threshold: 0.5}"], "check_best: budget.threshold says how many rows are selected"),
        (["selection.arms=[naive]"], "check_best: drops rows from the arm trust (selection.budget.reference)"),
        (["check_best.rows=0"], "check_best.rows"),
        (["check_best.rows=0.5"], "check_best.rows"),
    ],
)
def test_runs_that_cannot_check_their_best_rows_are_refused(tmp_path: Path, settings: list[str], words: str) -> None:
    path, sets = written(tmp_path), [word for setting in settings for word in ("--set", setting)]
    assert words in " ".join(curate("validate", str(path), *sets, code=2).split())
