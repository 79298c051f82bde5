"""Runs that grow: what is added is dealt and answered, what was there stays, byte for byte and row for row."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.recorded import planned
from curation import run
from curation.commands.printing import render_text
from curation.config.load import load_config
from curation.errors import RunFailedError, SourceError
from curation.extras.plan.planning import make_plan
from curation.refs import TableRef
from curation.stages import prepare
from curation.tables import io

pytestmark = pytest.mark.whole_run

ROOT = Path(__file__).parents[1]
NUM_SOURCE, NUM_POOL, NUM_LEFT = 40, 60, 20
NUM_OTHERS = 25
HEAVY = "ray", "torch", "transformers"
AGAIN = """
import sys
from curation.cli import main
main(["run", sys.argv[1]], standalone_mode=False)
print(*sorted(name for name in sys.argv[2:] if name in sys.modules))
"""


class Sums:
    """A run over sums, by a teacher that logs the rows that it is asked about."""

    def __init__(self, home: Path) -> None:
        self.home, self.directory = home, home / "run"
        self.log = home / "asked.log"
        self.write("sums", range(NUM_SOURCE + NUM_POOL + NUM_LEFT))
        self.config: dict[str, Any] = {
            "name": "sums",
            "run_dir": str(self.directory),
            "domain": "math",
            "sources": {"sums": {"path": str(home / "sums.jsonl")}},
            "splits": {"source": {"from": "sums", "rows": NUM_SOURCE}, "pool": {"from": "sums", "rows": NUM_POOL}},
            "teacher": {
                "backend": "scripted",
                "scripted": {"completions": [" \\boxed{1}", " \\boxed{2}"], "log": str(self.log)},
            },
            "selection": {"budget": {"n": 10}, "arms": ["naive", "internal_confidence"]},
        }

    def write(self, name: str, numbers: range) -> Path:
        path = self.home / f"{name}.jsonl"
        rows = [{"problem": f"What is {n + 1} - {n}?", "answer": "1"} for n in numbers]
        path.write_text("\n".join(map(json.dumps, rows)))
        return path

    def grow(self, numbers: range) -> None:
        """Add a source of its own, and a probe of each source."""
        others = str(self.write("others", numbers))
        self.config["sources"]["others"] = {"path": others}
        self.config["splits"]["probes"] = {
            "left": {"from": "sums", "rows": NUM_LEFT, "regime": "ID"},
            "others": {"from": "others", "regime": "OOD-dist"},
        }

    @property
    def path(self) -> Path:
        path = self.home / "sums.yaml"
        path.write_text(yaml.safe_dump(self.config))
        return path

    def run(self) -> dict[str, Any]:
        return run(load_config(self.path))

    def asked(self) -> int:
        """How many rows the teacher was asked about since this was called last."""
        number = len(self.log.read_text().splitlines()) if self.log.exists() else 0
        self.log.unlink(missing_ok=True)
        return number

    def stages(self) -> dict[str, dict[str, Any]]:
        return planned(self.directory)

    def ids(self, split: str) -> list[int]:
        for stage in self.stages().values():
            if stage["name"].startswith("prepare") and split in stage["outputs"]["tables"]:
                return (
                    io.open_table(TableRef.from_json(stage["outputs"]["tables"][split]))
                    .to_table()["row_id"]
                    .to_pylist()
                )
        raise KeyError(split)


@pytest.fixture
def sums(tmp_path: Path, local_ray: Any) -> Sums:
    """A finished run over sums."""
    found = Sums(tmp_path)
    found.run()
    assert found.asked() == NUM_SOURCE + NUM_POOL
    return found


def test_a_probe_and_a_source_are_added_and_only_their_rows_are_asked(sums: Sums):
    before = sums.stages()
    sums.grow(range(1000, 1000 + NUM_OTHERS))
    plan = make_plan(load_config(sums.path), probe=False)
    text = render_text("curation.extras.plan:plan.j2", plan.to_json())
    assert "added to the run: probe-left (20 rows of sums), probe-others (25 rows of others)" in text
    assert "the rows of source (40), pool (60) stay as they are" in text
    left = {stage.name for stage in plan.stages if stage.state != "done"}
    report = sums.run()
    assert sums.asked() == NUM_LEFT + NUM_OTHERS
    after = sums.stages()
    assert {name: after[name] for name in before} == before and after.keys() - before.keys() == left
    ids = sums.ids("source") + sums.ids("pool") + sums.ids("probe-left")
    assert sorted(ids) == list(range(NUM_SOURCE + NUM_POOL + NUM_LEFT))
    assert [split["split"] for split in report["funnel"]["splits"]] == ["source", "pool", "probe-left", "probe-others"]
    lines = {line["set"]: line["n"] for line in report["generations"][0]["regimes"]}
    assert lines["left"] == NUM_LEFT and lines["others"] == NUM_OTHERS
    again = subprocess.run(
        [sys.executable, "-c", AGAIN, str(sums.path), *HEAVY], capture_output=True, text=True, check=True
    )
    assert again.stdout.splitlines()[-1] == "" and "all stages are done" in again.stderr and sums.asked() == 0


def test_questions_that_a_new_split_shares_with_an_old_one_are_refused_or_left_out_of_the_new_one(sums: Sums):
    before, pool = sums.stages(), sums.ids("pool")
    sums.grow(range(NUM_SOURCE + NUM_POOL + NUM_LEFT - 10, 1000))
    del sums.config["splits"]["probes"]["left"]
    with pytest.raises(SourceError) as refused:
        sums.run()
    told = str(refused.value)
    assert "and probe-others share questions" in told and "of probe-others (" in told
    assert "rows stay in the splits that they have" in told and "leaves such rows out of the new split" in told
    assert sums.asked() == 0 and sums.stages() == before
    sums.config["splits"]["overlap"] = "drop"
    report = sums.run()
    after = sums.stages()
    assert {name: after[name] for name in before} == before and sums.ids("pool") == pool
    dropped = after["prepare-1"]["outputs"]["overlap"]["dropped"]["probe-others"]
    assert 0 < dropped <= 10 and sums.asked() == 890 - dropped == len(sums.ids("probe-others"))
    (split,) = [split for split in report["funnel"]["splits"] if split["split"] == "probe-others"]
    assert (split["rows"], split["dropped"]) == (890, dropped)


def test_a_test_split_that_is_added_tests_the_students_that_are_trained(tmp_path: Path, local_ray: Any):
    config: dict[str, Any] = {
        "name": "students",
        "run_dir": str(tmp_path / "run"),
        "sources": {"puzzles": {"path": str(ROOT / "examples/data/puzzles.parquet")}},
        "splits": {"source": {"from": "puzzles", "rows": 600}, "pool": {"from": "puzzles", "rows": 300}},
        "teacher": {
            "model": {"path": str(ROOT / "examples/bases/teacher")},
            "states": ["output_last"],
            "decoding": {"max_tokens": 4},
        },
        "selection": {"budget": {"n": 20}, "arms": ["naive"]},
        "student": {"preset": "scratch", "epochs": 1, "learning_rate": 1e-4},
        "generations": [{"student": {"path": str(ROOT / "examples/bases/student")}}],
        "evaluation": {"decoding": {"max_tokens": 4}},
    }

    def grown() -> tuple[dict[str, Any], dict[str, Any]]:
        path = tmp_path / "students.yaml"
        path.write_text(yaml.safe_dump(config))
        report = run(load_config(path))
        return report, planned(tmp_path / "run")

    report, before = grown()
    assert [arm["accuracy"] for arm in report["generations"][0]["arms"]] == [None]
    assert "No student was tested." in (tmp_path / "run" / "report.html").read_text()
    config["splits"]["test"] = {"from": "puzzles", "rows": 50}
    report, after = grown()
    assert {name: after[name] for name in before} == before
    tests = {f"gen-0/{kind}-{model}" for model in ("teacher", "base", "naive") for kind in ("test", "grade-test")}
    assert after.keys() - before.keys() == {"prepare-1", *tests}
    assert [arm["accuracy"]["n"] for arm in report["generations"][0]["arms"]] == [50]
    assert report["generations"][0]["teacher"]["test"]["n"] == 50


@pytest.mark.parametrize(
    "where", ["stages.prepare.compact", "stages.prepare.commit_stream", "pipeline.opened.write_atomically"]
)
def test_growth_that_ends_midway_goes_on(sums: Sums, monkeypatch: pytest.MonkeyPatch, where: str):
    before = sums.stages()
    sums.grow(range(1000, 1000 + NUM_OTHERS))

    def fail(*args: Any, **kwargs: Any) -> None:
        if where.endswith("commit_stream"):  # what is committed stays
            commit_stream(*args, **kwargs)
        raise OSError("the disk is full")

    commit_stream = prepare.commit_stream
    with monkeypatch.context() as patch:
        patch.setattr(f"curation.{where}", fail)
        with pytest.raises((RunFailedError, OSError), match="the disk is full"):
            sums.run()
    assert sums.stages() == before and sums.asked() == 0
    sums.run()
    after = sums.stages()
    assert {name: after[name] for name in before} == before and sums.asked() == NUM_LEFT + NUM_OTHERS
    assert len(set(sums.ids("probe-left"))) == NUM_LEFT == len(sums.ids("probe-left"))
    assert len(list(sums.directory.glob("prepare-1-*"))) == 1
