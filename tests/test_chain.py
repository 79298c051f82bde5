"""Whole runs on small models: two generations, the same command again, a changed setting, wrong input."""

import copy
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from benchmarks.recorded import planned, recorded
from curation import run
from curation.commands.status import describe_status, look
from curation.config.load import load_config
from curation.domains.grading import read_grades
from curation.errors import BudgetError, DegenerateSourceError, RunDirError, SourceError
from curation.extras.plan.planning import make_plan
from curation.hashing import derive
from curation.pipeline.running import run_part
from curation.refs import TableRef
from curation.stages.label import RowShare
from curation.tables import io
from tests import golden

pytestmark = pytest.mark.whole_run

ROOT = Path(__file__).parents[1]
SMALL = {"preset": "scratch", "epochs": 1, "learning_rate": 1e-4, "lora": {"rank": 4, "alpha": 8}}
CONFIG = {
    "name": "chain",
    "splits": {
        "adapt": {"from": "puzzles", "rows": 128},
        "source": {"from": "puzzles", "rows": 500},
        "test": {"from": "puzzles", "rows": 150},
        "pool": {"from": "puzzles", "rows": 600},
        "audit": True,
    },
    "teacher": {
        "model": {"path": str(ROOT / "examples/bases/teacher")},
        "adapt": SMALL,
        "states": ["prompt_last", "output_last", "layer1_output_last"],
        "chunk_rows": 200,
        "actors": {"min": 1, "max": 1},  # a second one costs more than it does: some twenty pools are started
        "decoding": {"max_tokens": 4},
    },
    "trust": {"states": ["prompt_last", "layer1_output_last"]},
    "selection": {"budget": {"n": 40}, "arms": ["trust"]},  # all arms: tests/test_examples.py
    "student": SMALL | {"max_length": 33},  # four in ten puzzles have more tokens
    "generations": [{"student": {"path": str(ROOT / "examples/bases/teacher")}}] * 2,
    "chain": {"shares": 2, "stop": None},  # hardly trained models would stop it
    "evaluation": {"decoding": {"max_tokens": 4}},
}


def load(directory: Path, puzzle_file: Path, changes: dict | None = None, overrides: tuple[str, ...] = ()):
    config = copy.deepcopy(CONFIG) | {
        "run_dir": str(directory / "run"),
        "sources": {"puzzles": {"path": str(puzzle_file)}},
        **(changes or {}),
    }
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return load_config(path, overrides)


def stages(directory: Path) -> dict:
    return planned(directory / "run")


def events(directory: Path, kind: str) -> list[str]:
    """The stages, again without those of the numbers, that events of a kind name."""
    found = map(json.loads, (directory / "run" / "events.jsonl").read_text().splitlines())
    named = [event["stage"] for event in found if event["event"] == kind]
    return [name for name in named if not name.endswith("/numbers")]


@pytest.mark.timeout(1200)
def test_two_generations_again_and_changed(local_ray, tmp_path, puzzle_file, capsys):
    config = load(tmp_path, puzzle_file)
    plan = make_plan(config, probe=True, num_rows=64)
    assert plan.stages[0].state == "new" and {stage.state for stage in plan.stages[1:]} == {"waits"}
    assert plan.forecast is not None and plan.forecast.total["prompt_tokens"].low > 0
    (probed,) = plan.forecast.questions
    assert probed.askings[0].note == "the probe asked the teacher's base, since gen-0/teacher is not done"
    others = {item.stage: item.why for item in plan.forecast.left_out}
    assert others["gen-1/label-pool"] == "it asks another model than the first teacher"
    report = run(config)
    golden.check("chain", tmp_path / "run", exact=False)
    told = capsys.readouterr().err
    assert re.search(
        r"no candidates for any arm: \d+, \d+, \d+, \.\.\.; `curate inspect \S+ gen-0/length-\w+` lists", told
    )

    done = stages(tmp_path)
    assert set(done) == {stage.name for stage in plan.stages}
    (arm,) = report["arms"]
    assert arm["name"] == "trust" and arm["purity"]["n"] == 40 and arm["accuracy"]["n"] == 150
    assert (tmp_path / "run" / "report.html").exists()
    assert json.loads((tmp_path / "run" / "report.json").read_text())["arms"] == report["arms"]
    verdict = report["verdict"]  # hardly trained, on hardly any parsed row
    assert verdict["level"] != "use it" and verdict["findings"], verdict
    assert f"{verdict['sign']} {verdict['sentence']}" in list(describe_status(look(config)))

    # The student of the chain's arm teaches the next generation, on rows of the pool that the first did not see.
    student = done["gen-0/student-trust"]["outputs"]["model"]
    assert student["adapter"] is not None
    assert done["gen-1/label-pool"]["inputs"]["model"] == student
    pool = TableRef.from_json(done["prepare"]["outputs"]["tables"]["pool"])
    tables = [TableRef.from_json(done[f"gen-{index}/score-pool"]["outputs"]["labels"]) for index in range(2)]
    ids = [set(io.read(table, ["row_id"])["row_id"].to_pylist()) for table in tables]
    assert not ids[0] & ids[1]
    assert ids[0] | ids[1] == set(io.read(pool, ["row_id"])["row_id"].to_pylist())
    share = RowShare(index=1, of=2, seed=derive(config.seed, "share"))
    assert len(ids[1]) == int(share.takes(io.read(pool, ["row_id"])["row_id"].to_numpy()).sum())

    # Purity in the report is the share of right labels among the selected, counted here by hand.
    graded = read_grades(TableRef.from_json(done["gen-1/grade-pool"]["outputs"]["grades"]))
    right = dict(zip(graded.row_ids_N.tolist(), graded.correct_N.tolist(), strict=True))
    table = TableRef.from_json(done["gen-1/select"]["outputs"]["arms"]["trust"]["table"])
    selected = io.read(table, ["row_id"])["row_id"].to_pylist()
    assert arm["purity"]["value"] == pytest.approx(sum(right[row_id] for row_id in selected) / 40)

    # Rows that are too long for the student are out before the cut: training gets 40 rows and drops none.
    for index in range(2):
        counts = done[f"gen-{index}/length-pool"]["outputs"]["counts"]
        assert 0 < counts["num_weak"] == counts["num_too_long"] < counts["num_rows"] and not counts["num_gold"]
        out = set(io.read(TableRef.from_json(counts["table"]), ["row_id"])["row_id"].to_pylist())
        chosen = TableRef.from_json(done[f"gen-{index}/select"]["outputs"]["arms"]["trust"]["table"])
        assert out < ids[index] and not out & set(io.read(chosen, ["row_id"])["row_id"].to_pylist())
    assert (arm["rows_trained"], arm["rows_dropped"], arm["epochs"]) == (40, 0, 1)

    # A copy elsewhere does nothing again, and its second generation is taught by its own student.
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    copied = load_config(shutil.copytree(tmp_path / "run", tmp_path / "copy") / "config.yaml")
    assert copied.directory == tmp_path / "copy" and run(copied)["arms"] == report["arms"]
    assert (tmp_path / "copy" / "manifest.json").read_bytes() == before[tmp_path / "run" / "manifest.json"]
    assert recorded(copied.directory)["gen-1/label-pool"]["inputs"]["model"]["adapter"].startswith(f"{tmp_path}/copy/")
    run_part(load_config(tmp_path / "copy" / "config.yaml", ["selection.budget.n=30"]), "gen-0/select")
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}

    # The same command again does nothing; another budget redoes the selections and what hangs on them, no labels.
    assert run(config)["arms"] == report["arms"]
    assert len(events(tmp_path, "finished")) == len(done)
    assert all(stage.state == "done" for stage in make_plan(config, probe=False).stages)
    curate_only = load(tmp_path, puzzle_file, {"generations": [], "chain": {}}, ("selection.budget.n=30",))
    pending = make_plan(curate_only, probe=False)
    assert next(stage.name for stage in pending.stages if stage.state != "done") == "gen-0/label-pool"

    lines = "\n".join(describe_status(look(config)))
    assert "not running" in lines and "gen-1/test-trust" in lines

    with pytest.raises(RunDirError, match=r"another configuration \(seed was 0, is 1\)"):
        run(load(tmp_path, puzzle_file, overrides=("seed=1",)))


@pytest.mark.slow  # the test of a risk below changes the promise, which is the same
def test_a_changed_budget_redoes_the_selection_alone(local_ray, tmp_path, puzzle_file):
    changes = {"generations": [], "chain": {}, "teacher": CONFIG["teacher"] | {"adapt": None}}
    run(load(tmp_path, puzzle_file, changes))
    before = stages(tmp_path)
    report = run(load(tmp_path, puzzle_file, changes, ("selection.budget.n=30",)))
    after = stages(tmp_path)
    assert {name for name in after if after[name] != before[name]} == {"gen-0/select", "gen-0/selected-shift"}
    assert report["arms"][0]["purity"]["n"] == 30 and report["arms"][0]["accuracy"] is None
    assert events(tmp_path, "started").count("gen-0/select") == 2


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"selection": {"budget": {"n": 601}, "arms": ["naive"]}, "generations": [], "chain": {}},
            BudgetError,
            "n = 601 is more",
        ),
        ({"sources": {"puzzles": {"path": "/nowhere/x.parquet"}}}, SourceError, "/nowhere/x.parquet"),
    ],
)
def test_bad_input_is_refused_before_anything_is_labelled(local_ray, tmp_path, puzzle_file, changes, error, message):
    with pytest.raises(error, match=message):
        run(load(tmp_path, puzzle_file, changes))
    assert not list(tmp_path.glob("run/gen-*"))


def test_a_teacher_that_is_always_wrong_is_refused(local_ray, tmp_path, puzzle_file):
    teacher = {"backend": "scripted", "scripted": {"completions": [" nonsense"]}}
    with pytest.raises(DegenerateSourceError, match="both right and wrong ones are needed"):
        run(load(tmp_path, puzzle_file, {"teacher": teacher, "trust": {}, "generations": []}))


def test_an_input_that_changed_since_is_refused(local_ray, tmp_path, puzzles):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "mine.parquet"
    pq.write_table(pa.Table.from_pylist(puzzles), path)
    changes = {
        "splits": {"source": {"from": "puzzles", "rows": 100}, "pool": {"from": "puzzles"}},
        "teacher": {"backend": "scripted"},
        "trust": {},
        "generations": [],
        "selection": {"budget": {"n": 10}, "arms": ["naive"]},
    }
    with pytest.raises(DegenerateSourceError):
        run(load(tmp_path, path, changes))
    pq.write_table(pa.Table.from_pylist(puzzles[:-1]), path)
    with pytest.raises(SourceError, match="num_rows was 1000, is 999"):
        run(load(tmp_path, path, changes))


TINY = {"init": {"hidden_size": 8, "num_layers": 1, "num_heads": 1, "max_positions": 512}}
RISK = {
    "domain": "mcqa",
    "splits": {
        "source": {"from": "questions", "rows": 200},
        "calibration": {"from": "questions", "rows": 600},
        "test": {"from": "questions", "rows": 12},
        "pool": {"from": "questions", "rows": 90},
        "probes": {"problems": {"from": "problems", "rows": 30, "regime": "OOD-domain"}},
        "audit": True,
    },
    "teacher": {"backend": "scripted", "scripted": {"completions": [" \\boxed{1} TRUE", " FALSE"]}, "chunk_rows": 1000},
    "trust": {},
    "judge": {"model": TINY, "splits": ["pool"]},
    "selection": {"budget": {"risk": {"alpha": 0.05}, "reference": "linear_probe"}, "arms": ["naive", "trust"]},
    "student": SMALL,
    "generations": [{"student": TINY}],
    "chain": {},
    "evaluation": {"num_runs": 2, "decoding": {"temperature": 0.7}},
}


def risky(**changes) -> dict:
    sources = {"questions": {"path": str(ROOT / "examples/data/mcqa.jsonl")}}
    sources["problems"] = {"path": str(ROOT / "examples/data/math.jsonl"), "domain": "math"}
    return {**RISK, "sources": sources, **changes}


@pytest.mark.timeout(900)
def test_risk_without_a_certified_cut_selects_nothing_and_the_run_says_so(local_ray, tmp_path, capsys):
    """A guessing teacher; the budget's reference is no arm, a judge is made for the pool alone, tests are run twice."""
    ended = run(load(tmp_path, Path(), risky(generations=[{"student": TINY}] * 2, chain={"shares": 2, "stop": None})))
    assert "generation 0 selected nothing, so that none of its students can teach" in capsys.readouterr().err
    assert len(ended["generations"]) == 1 and not list(tmp_path.glob("run/gen-1"))
    before, started = stages(tmp_path), len(events(tmp_path, "started"))

    config = load(tmp_path, Path(), risky())
    report = run(config)
    assert "NOTHING IS SELECTED" in capsys.readouterr().err
    done = stages(tmp_path)
    assert done["gen-0/select"]["outputs"]["budget"]["n"] == 0
    pool = [
        "label-pool",
        "grade-pool",
        "judge-pool",
        "score-pool",
        "shift",
        "length-pool",
        "select",
        "selected-shift",
    ]  # now labelled as a whole
    assert sorted(events(tmp_path, "started")[started:]) == sorted(f"gen-0/{stage}" for stage in pool)
    planned = make_plan(config, probe=False).stages
    assert {stage.name for stage in planned if stage.state == "done"} == set(done) == set(before)
    undone = [stage.name for stage in planned if stage.state != "done"]
    assert {stage.state for stage in planned} == {"done", "skipped"} and len(undone) == 10
    assert {"gen-0/student-naive", "gen-0/student-trust"} < set(undone)
    assert set(events(tmp_path, "finished")[:started]) == {stage.name for stage in planned if stage.name in done}

    assert all(arm["num_selected"] == 0 and arm["accuracy"] is None for arm in report["arms"])
    assert report["headline"][0].startswith("Nothing was selected of 90 labelled pool rows")
    assert "Nothing is selected." in (tmp_path / "run" / "report.html").read_text()
    assert report["base"]["runs"]["n"] == report["teacher"]["test"]["runs"]["n"] == 2
    regimes = {item["set"]: item["regime"] for item in report["regimes"]}
    assert regimes == {"validation": "ID", "problems": "OOD-domain", "pool": "pool"}
    # Guesses are right at one in three; the judge calls half of the wrong ones right, of the pool alone.
    graded = report["funnel"]["generations"][0]["graded"]
    assert graded["pool"]["judged"] > 10 and graded["calibration"]["judged"] == graded["source"]["judged"] == 0
    assert report["teacher"]["pool"]["value"] > 0.5
    judge = report["judging"]["pool"]
    assert (
        judge["asked"] == judge["rows"] - round(judge["by_rule"]["value"] * judge["rows"])
        and len(report["judging"]) == 1
    )
    assert judge["by_judge"]["n"] == judge["asked"] and judge["judged"] == graded["pool"]["judged"]
    assert report["risk_curves"]["chosen"] is None

    # A laxer promise redoes the selection and the look at it alone.
    laxer = load(tmp_path, Path(), risky(generations=[]), ("selection.budget.risk.alpha=0.9",))
    found = run(laxer)
    assert {name for name, item in stages(tmp_path).items() if item != done.get(name)} == {
        "gen-0/select",
        "gen-0/selected-shift",
    }
    assert found["budget"]["n"] == found["arms"][0]["num_selected"] > 40 and found["guarantee"]["claimed"]
    chosen = found["risk_curves"]["chosen"]
    assert round(chosen["share"] * 90) == found["budget"]["n"] == chosen["deployment"]["n"]
    assert found["budget"]["reference"] == "linear_probe" and "at most 0.9" in found["guarantee"]["text"]
