import json
import os
import platform
import re
import resource
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from built import saved_run
from click.testing import CliRunner, Result

from curation.activity import doing
from curation.cli import main
from curation.config.load import load_config
from curation.errors import ConfigError
from curation.extras.plan.planning import Plan, make_plan
from curation.rundir.manifest import Manifest
from curation.storage import lease
from curation.tables import io
from curation.telemetry.standing import Actors, ProgressJournal, Standing, Work

NUM_ROWS = 40
VERBS = ("init", "validate", "plan", "run", "tune", "status", "report", "analyze")
OTHERS = ("export", "export-student", "export-trust", "filter", "inspect", "review")
RARE = ("ablate", "explain", "verify", "clean", "doctor")
"""The others that only a few runs need, beside ``analyze``."""
REVIEW = ("draw", "export", "import", "result")
ARGUMENTS = {
    "ablate": "ABLATION",
    "export": "RUN_DIR",
    "export-student": "RUN_DIR",
    "export-trust": "RUN_DIR",
    "filter": "PACKAGE POOL",
    "explain": "RUN_DIR",
    "inspect": "TABLE",
    "verify": "RUN_DIR | OUT | PACKAGE",
    "clean": "RUN_DIR",
    "review": "COMMAND",
}
HEAVY = ("ray", "torch", "lance", "transformers", "sklearn", "scipy", "pyarrow", "numpy", "matplotlib", "pydantic")


def curate(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)


def mistake(*arguments: object) -> str:
    """The one line on the error stream of a command that the user got wrong."""
    result = curate(*arguments)
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("curate: ") and "Traceback" not in result.output
    return lines[0]


@pytest.fixture
def config(tmp_path: Path, puzzles: list[dict], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run over a few puzzles with the scripted teacher; the file lies beside its data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    pq.write_table(pa.Table.from_pylist(puzzles[:NUM_ROWS]), tmp_path / "data" / "puzzles.parquet")
    raw = {
        "name": "tiny",
        "sources": {"puzzles": {"path": "data/puzzles.parquet"}},
        "splits": {
            "source": {"from": "puzzles", "rows": 15},
            "test": {"from": "puzzles", "fraction": 0.1},
            "pool": {"from": "puzzles"},
        },
        "teacher": {"backend": "scripted"},
        "selection": {"budget": {"n": 5}, "arms": ["naive", "trust"]},
        "generations": [{"student": {"init": {"hidden_size": 16, "num_layers": 3}}}],
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_help_lists_the_verbs():
    result = curate("--help")
    assert result.exit_code == 0
    usual, _, rare = result.stdout.partition("Commands:")[2].partition("What only a few runs need:")
    first = [[line.split()[0] for line in part.splitlines() if line.strip()] for part in (usual, rare)]
    assert {*first[0]} == {*VERBS, *OTHERS} - {"analyze"} and {*first[1]} == {*RARE, "analyze"}
    assert first[0][:4] == ["init", "validate", "plan", "run"]  # as a user meets them
    assert curate("--version").exit_code == 0


@pytest.mark.parametrize("verb", [*VERBS, *OTHERS, *RARE])
def test_every_verb_explains_itself(verb: str):
    for option in ("-h", "--help"):
        result = curate(verb, option)
        assert result.exit_code == 0 and ARGUMENTS.get(verb, "CONFIG") in result.stdout


@pytest.mark.parametrize("verb", REVIEW)
def test_every_verb_of_a_review_explains_itself_and_has_few_options(verb: str):
    help_text = curate("review", verb, "-h").stdout
    assert "RUN_DIR" in help_text and "--name" in help_text and "--folder" in help_text
    assert help_text.count("\n  --") <= 5
    assert curate("review", "-h").stdout.count(f"\n  {verb} ") == 1


@pytest.mark.long
@pytest.mark.parametrize("named", [None, "reading 2 files"])
@pytest.mark.parametrize("verb", ["run", "validate"])
def test_a_command_that_says_nothing_for_long_is_heard(
    verb: str, named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def slow(*given: object) -> None:
        with nullcontext() if named is None else doing(named):
            time.sleep(2.5)
        raise ConfigError("read at last")

    monkeypatch.setattr("curation.telemetry.console.LINE_SECONDS", 0.5)
    monkeypatch.setattr("curation.config.load.load_config", slow)
    lines = curate(verb, tmp_path / "x.yaml").stderr.splitlines()
    others = [line for line in lines if line != "curate: read at last"]  # one may come as the command ends
    assert len(others) == len(lines) - 1 >= 1
    assert all(re.search(rf"curate {verb}: at work for \d+ s \(.+\)$", line) for line in others)
    assert any(line.endswith(f" s ({named or 'preparing'})") for line in others)


def test_help_answers_at_once():
    command = [str(Path(sys.executable).with_name("curate")), "--help"]
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.5, seconds


def test_the_command_line_imports_nothing_heavy():
    code = "import sys, curation.cli; curation.cli.main(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert not {name.partition(".")[0] for name in done.stdout.split()} & set(HEAVY)


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        ["validate", "tiny.yaml"],
        ["status", "tiny.yaml"],
        ["plan", "--no-probe", "tiny.yaml"],
        ["init", "--data", "labelled.csv", "--model", "a/model"],
    ],
)
def test_a_look_at_a_run_without_a_model_of_its_own_imports_nothing_heavy(config: Path, command: list[str]):
    config.with_name("labelled.csv").write_text("text,label\n" + "a word,good\nanother,bad\n" * 30)
    code = "import sys; from curation.cli import main; main(sys.argv[1:], standalone_mode=False)"
    code = f"{code}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code, *command], check=True, capture_output=True, text=True)
    assert not set(done.stdout.splitlines()[-1].split()) & {"ray", "torch", "transformers", "tokenizers", "sklearn"}


def test_init_writes_a_valid_configuration_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for arguments, path in (((), Path("curation.yaml")), (("my.yaml",), Path("my.yaml"))):
        result = curate("init", *arguments)
        assert result.exit_code == 0 and str(path) in result.stdout and "validate" in result.stdout
        path.write_text("mine\n")
        assert f"{path}: exists already; name another file or move it away" in mistake("init", *arguments)
        assert path.read_text() == "mine\n"
    assert "cannot be written" in mistake("init", "no/such/folder/c.yaml")


def test_validate_prints_sources_splits_and_models(config: Path, tiny_model):
    raw = yaml.safe_load(config.read_text())
    raw["teacher"] = {"model": {"path": tiny_model.base}}
    config.write_text(yaml.safe_dump(raw))
    result = curate("validate", config, "--set", "ray.num_cpus=1")
    assert result.exit_code == 0 and result.stderr == ""
    assert [line for line in result.stdout.splitlines() if not line.startswith("memory of an actor")] == [
        "source puzzles: 1 files, 40 rows",
        "split source: 15 rows",
        "split test: 4 rows",
        "split pool: 21 rows",
        f"teacher: {tiny_model.base} at {tiny_model.revision}",
        "student 0: qwen3 from scratch, 3 layers of 16",
        'teacher.decoding: temperature 0, max_tokens 8, stop ["\\n"]',
        'evaluation: 1 run, temperature 0, max_tokens 8, stop ["\\n"]',
        "trust: stacked; reads output_last",
        "chat_template: teacher off, student off, evaluation off",
        "teacher.dtype: auto is float32 (teacher, student 0) (actors.num_gpus: 0)",
        "warning: student: 5 rows, global_batch_size 128: 3 optimizer steps, which hardly move it from its base; "
        "lower global_batch_size, give it more epochs, or select more rows",
        f"{config}: is valid",
    ]
    assert not (config.parent / "runs").exists()
    as_json = json.loads(curate("validate", config, "--set", "ray.num_cpus=1", "--json").stdout)
    assert as_json["valid"] and [item["text"] for item in as_json["checked"]] == result.stdout.splitlines()[:-1]
    assert [item["kind"] for item in as_json["checked"]][:5] == ["source", "split", "split", "split", "model"]
    wrong = curate("validate", config, "--set", "seed=many", "--json")
    assert wrong.exit_code == 2 and json.loads(wrong.stdout)["error"] == wrong.stderr.strip().removeprefix("curate: ")
    overridden = curate("validate", config, "--set", "splits.source.rows=20", "--set", "teacher={backend: scripted}")
    assert "split source: 20 rows" in overridden.stdout and "\nteacher:" not in overridden.stdout
    further = [
        "ray.num_cpus=1",
        "splits.shots={from: puzzles, rows: 2}",
        "splits.probes={near: {from: puzzles, rows: 3, regime: ID}}",
        "selection.arms=[trust, ensemble, reward]",
    ]
    further.append("splits.audit=true")  # a judge grades the pool only where gold labels of it are kept
    path = f"{{path: {tiny_model.base}}}"
    further += [f"signals={{second_teacher: {path}, reward: {{model: {path}, kind: verifier}}}}", f"judge.model={path}"]
    whole = curate("validate", config, *(part for item in further for part in ("--set", item)))
    named = [name for line in whole.stdout.splitlines() if not (name := line.partition(":")[0]).startswith("memory of")]
    assert named[2:6] == ["split shots", "split test", "split pool", "split probe-near"]
    assert named[-10:-7] == ["second teacher", "reward model", "judge"]


def test_validate_refuses_states_of_layers_that_a_teacher_lacks(config: Path, tiny_model):
    """The first teacher, and a student that is to be the next one."""
    bases = "[{student: {init: {hidden_size: 16, num_layers: 3}}}, {student: {init: {hidden_size: 16, num_layers: 3}}}]"
    given = [f"teacher={{model: {{path: {tiny_model.base}}}, states: [output_last, layer2_output_last]}}"]
    line = mistake("validate", config, *(part for item in given for part in ("--set", item)))
    assert "teacher.states: 'layer2_output_last' asks for layer 2 of a model that has 2" in line
    given = ["teacher={backend: scripted, states: [output_last, layer3_output_last]}", f"generations={bases}"]
    line = mistake("validate", config, *(part for item in given for part in ("--set", item)))
    assert "teacher.states: 'layer3_output_last' asks for layer 3 of a model that has 3" in line


def write_rows(path: Path, rows: list[dict[str, Any]], columns: tuple[str, ...] = ("fen", "moves", "rating")) -> None:
    pq.write_table(pa.table({name: pa.array([row[name] for row in rows]) for name in columns}), path)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("selection.budgt=3", ("selection.budgt: unknown key", "'budget'")),
        ("selection.budget.n=-5", ("tiny.yaml: selection.budget.n: -5",)),
        ("seed=many", ("tiny.yaml: seed: 'many'",)),
        ("seed", ("--set 'seed'", "a.b=value")),
        ("domain=ches", ("'ches'", "chess")),
        ("domain={name: mcqa, option_style: words}", ("'mcqa'", "option_style: 'words'", "letters")),
        ("domain=mcqa", ("puzzles.parquet: has no column", "forms that are read")),
        ("selection.arms=[nural]", ("tiny.yaml: selection: no arm is called 'nural'", "'neural'")),
        ("selection.budget={risk: {alpha: 0.1}}", ("add splits.calibration",)),
        ("splits.probes={far: {from: puzzles, rows: 99, regime: ID}}", ("'puzzles'", "which has 40")),
        ("sources.puzzles.path=data/none.parquet", ("data/none.parquet", "no such file")),
        ("sources.puzzles.path='data/*.csv'", ("data/*.csv", "no file matches")),
        ("sources.puzzles.path=tiny.yaml", ("tiny.yaml", "unknown format")),
        ("sources.puzzles.format=csv", ("puzzles.parquet",)),
        ("splits.test.rows=99", ("splits.test", "rows or fraction")),
        ("splits.source.rows=99", ("'puzzles'", "which has 40")),
        ("splits.source.rows=36", ("splits.pool: gets none of the 40 rows",)),
        ("splits.source={from: puzzles}", ("both take the rest",)),
        ("teacher={model: {path: data}}", ("data", "no config.json")),
        (
            "teacher={model: {path: no/such/model}}",
            ("'no/such/model'", "neither a local directory nor a reachable hub"),
        ),
        ("generations.0.student={path: data}", ("data", "no config.json")),
        ("teacher.model={path: data, adapter: data}", ("data", "adapter_config.json")),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(config: Path, override: str, told: tuple[str, ...]):
    line = mistake("validate", config, "--set", override)
    assert all(part in line for part in told), line


@pytest.mark.parametrize("verb", ["validate", "plan"])
def test_a_budget_larger_than_the_pool_is_a_mistake(config: Path, verb: str):
    options = ["--no-probe"] if verb == "plan" else []
    line = mistake(verb, config, "--set", "selection.budget.n=22", *options)
    assert "selection.budget" in line and "22" in line and "21" in line


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "init"])
def test_every_verb_refuses_a_missing_file(tmp_path: Path, verb: str):
    line = mistake(verb, tmp_path / "none.yaml")
    assert "none.yaml: cannot be read" in line and "curate init" in line


def test_input_files_that_cannot_be_used(config: Path, puzzles: list[dict]):
    path = config.parent / "data" / "puzzles.parquet"
    write_rows(path, puzzles[:5], ("fen", "rating"))
    line = mistake("validate", config)
    assert "has no column 'moves' (it has: fen, rating;" in line and "rename or add it" in line
    write_rows(path, [])
    assert "holds no rows" in mistake("validate", config)
    path.write_bytes(b"no parquet at all")
    assert str(path) in mistake("validate", config)
    path.unlink()
    assert "no such file" in mistake("validate", config)


@pytest.mark.parametrize("verb", [("validate",), ("plan", "--no-probe")])
def test_a_gpu_that_is_not_there_is_refused_before_anything_runs(config: Path, verb: tuple[str, ...], monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    line = mistake(verb[0], config, *verb[1:], "--set", "teacher.actors.num_gpus=64")
    assert "this machine is too small: teacher.actors asks for a worker of" in line and "64 GPU" in line, line


def test_plan_names_the_stages_and_their_rows(local_ray, config: Path):
    result = curate("plan", config, "--no-probe")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()[1:]
    stages = {line.split()[0]: line.split()[1:] for line in lines}
    assert stages["prepare"][0] == "40" and stages["gen-0/label-pool"][0] == "21"
    assert stages["gen-0/student-trust"][0] == "5" and stages["gen-0/test-naive"][0] == "4"
    assert stages["prepare"] == ["40", "not", "done", "yet"]
    first = {name for name, words in stages.items() if words[-3:] == ["not", "done", "yet"]}
    assert first == {"prepare", *(name for name in stages if name.endswith("-base") and "test" not in name)}
    assert all(words[-3:-1] == ["waits", "for"] for name, words in stages.items() if name not in first)
    bare = ("--set", "generations=[]", "--set", "prices={currency: EUR, cpu_hour: 1}")
    probed = curate("plan", config, *bare)
    said = "probe of gen-0/label-source, gen-0/label-pool: labelling 36 rows drawn at random"
    assert said in probed.stderr
    assert "probe: 36 rows drawn at random: " in probed.stdout and " rows/s of one actor" in probed.stdout
    assert re.search(r"EUR together +[\d.]+  rough", probed.stdout)
    assert re.search(r"prompt tokens +[\d,]+  [\d,]+ to [\d,]+", probed.stdout)
    assert "student" not in probed.stdout and not (config.parent / "runs").exists()
    assert "--probe: 37 rows are asked for, and" in mistake("plan", config, *bare, "--probe", "37")
    assert "--no-probe: makes no forecast" in mistake("plan", config, "--no-probe", "--probe", "9")
    assert "prices.cpu_hour" in mistake("plan", config, "--set", "prices.cpu_hour=-1")


def test_plan_gives_the_graph_as_json(config: Path):
    planned = json.loads(curate("plan", config, "--json", "--no-probe").stdout)
    stages = {stage["name"]: stage for stage in planned["stages"]}
    assert planned["forecast"] is None and stages["prepare"] == {
        "name": "prepare", "step": 0, "after": [], "state": "new", "words": "not done yet", "rows": 40,
        "seconds": None,
    }  # fmt: skip
    for stage in stages.values():
        assert stage["seconds"] is None
        assert stage["step"] == 1 + max((stages[name]["step"] for name in stage["after"]), default=-1)


def test_what_ray_prints_does_not_break_the_json_of_a_plan(config: Path, monkeypatch: pytest.MonkeyPatch):
    def warned(*given: Any, **options: Any) -> Plan:
        print("(raylet) WARNING: 8 PYTHON worker processes have been started")
        return make_plan(*given, **options)

    monkeypatch.setattr("curation.extras.plan.planning.make_plan", warned)
    result = curate("plan", config, "--json", "--no-probe")
    assert json.loads(result.stdout)["stages"] and "(raylet) WARNING" in result.stderr


def test_status_as_json(config: Path):
    found = json.loads(curate("status", config, "--json").stdout)
    assert (found["driver"], found["stages"], found["last_event"]) == (None, [], None)
    manifest = saved_run(load_config(config)).manifest
    manifest.event("progress", stage="prepare", rows=5, total=40)
    found = json.loads(curate("status", config, "--json").stdout)
    assert found["stages"][0] == {
        "name": "prepare", "state": "new", "words": "not done yet", "rows": None, "seconds": None,
    }  # fmt: skip
    assert found["under_way"][0]["rows"] == 5 and found["last_event"]["event"] == "progress"
    with lease.hold(manifest.directory):
        found = json.loads(curate("status", config, "--json").stdout)
    assert (found["driver"]["pid"], found["driver"]["host"]) == (os.getpid(), platform.node())


def test_a_part_of_a_run_is_named_as_the_plan_names_it(config: Path):
    line = mistake("run", config, "--until", "selekt")
    assert "selekt: no stage has this name; did you mean" in line and "gen-0/select" in line
    assert not (config.parent / "runs").exists()


def test_status_and_report_without_a_run(config: Path):
    result = curate("status", config)
    assert result.exit_code == 0 and "no run here yet" in result.stdout
    assert str(config.parent / "runs" / "tiny") in result.stdout
    result = curate("report", config)
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
    assert "no report yet, stage prepare is missing" in result.stderr
    assert not (config.parent / "runs").exists()


def test_status_tells_what_is_done_and_what_went_wrong(config: Path):
    directory = config.parent / "runs" / "tiny"
    with lease.hold(directory):
        manifest = Manifest.load(directory)
        manifest.identify({"seed": 0}, {})
        manifest.save()
        manifest.record("prepare", {}, {}, rows=40, seconds=2.0)
        manifest.event("failed", stage="gen-0/label-pool", error="out of memory")
        lines = curate("status", config).stdout.splitlines()
    assert f"runs/tiny: running (process {os.getpid()} on {platform.node()}, since " in lines[0]
    assert lines[1].split() == ["prepare", "40", "rows", "2.0", "s", "20", "rows/s"]
    assert "failed" in lines[2] and json.dumps("out of memory") in lines[2]
    assert curate("status", config).stdout.splitlines()[0].endswith("runs/tiny: not running")


def test_status_tells_speed_time_left_and_what_the_actors_are_at_from_the_newest_event(config: Path):
    manifest = Manifest.load(config.parent / "runs" / "tiny")
    manifest.identify({"seed": 0}, {})
    manifest.save()
    with (manifest.directory / "events.jsonl").open("w") as file:

        def event(second: float, kind: str, **fields: object) -> None:
            file.write(json.dumps({"time": second, "event": kind, **fields}) + "\n")

        for second in range(2000):  # more than is read of a file
            event(second, "progress", stage="prepare", rows=second, total=2000)
        event(2001, "finished", stage="prepare", rows=2000, seconds=2000)
        journal = ProgressJournal()
        for second, rows in ((5000, 100), (5006, 190), (5011, 265), (5020, 400)):
            actors = Actors(running=2, pending=1, restarting=0, deaths=3)
            work = Work(
                actors=actors,
                chunks_left=24,
                chunks_in_flight=4,
                errors={"too_long": 2, "scripted": 50},
                lag_seconds=7.2,
                commit_age_seconds=3.4,
            )
            if (fields := journal.fields(Standing(rows=rows, total=1000, work=work), second)) is not None:
                event(second, "progress", stage="gen-0/label-pool", **fields)
        file.write('{"time": 5021, "event": "prog')  # under way
    dead = curate("status", config).stdout.splitlines()
    assert " ".join(dead[1].split()) == (
        "gen-0/label-pool 400 of 1,000 rows (40 %); its driver ended, and `curate run` continues"
    )
    assert len(dead) == 3 and dead[2].endswith("s ago: progress")
    shown = json.loads(curate("status", config, "--json").stdout)["under_way"]
    assert shown == [{"time": 5020, "event": "progress", "stage": "gen-0/label-pool", "rows": 400, "total": 1000}]
    with lease.hold(manifest.directory):
        lines = curate("status", config).stdout.splitlines()
        assert json.loads(curate("status", config, "--json").stdout)["under_way"][0]["seconds_left"] == 40.0
    told = "gen-0/label-pool 400 of 1,000 rows (40 %), 15 rows/s, about 40 s left"
    assert " ".join(lines[1].split()) == told
    assert lines[2].strip() == (
        "actors: 2 running, 1 pending, 3 died; 24 chunks left (4 in flight); error rows: scripted 50, too_long 2; "
        "last commit 3 s ago, oldest row waits 7 s"
    )
    assert lines[3].startswith("last event, ") and lines[3].endswith(" s ago: progress") and len(lines) == 4


def test_status_tells_how_many_nodes_a_running_run_has(config: Path):
    directory = config.parent / "runs" / "tiny"
    with lease.hold(directory):
        manifest = Manifest.load(directory)
        manifest.identify({"seed": 0}, {})
        manifest.save()
        manifest.event("started", stage="prepare", why="not done yet")
        manifest.event("progress", stage="prepare", rows=5, total=10)
        manifest.event("nodes", num=1, came=["10.0.0.1 (node a)"], left=[])
        manifest.event("nodes", num=2, came=["10.0.0.2 (node b)", "10.0.0.3 (node c)"], left=["10.0.0.1 (node a)"])
        lines = curate("status", config).stdout.splitlines()
        told = r"nodes +2, \d+ s ago: came 10.0.0.2 \(node b\), 10.0.0.3 \(node c\); left 10.0.0.1 \(node a\)"
        assert re.fullmatch(told, lines[1]) and lines[2].startswith("prepare") and "progress" in lines[3]
        manifest.event("nodes", num=2, came=[], left=[])
        assert re.fullmatch("nodes +2", curate("status", config).stdout.splitlines()[1])
    assert "nodes" not in curate("status", config).stdout


def test_status_of_a_run_directory_needs_no_other_file(config: Path):
    settings = load_config(config)
    manifest = saved_run(settings).manifest
    manifest.record("prepare", {}, {}, rows=40, seconds=2.0)
    elsewhere = settings.directory.rename(config.parent / "mounted: elsewhere")
    config.unlink()
    lines = curate("status", elsewhere).stdout.splitlines()
    assert lines[0] == f"{elsewhere}: not running" and lines[1].startswith("prepare")
    assert "config.yaml: cannot be read" in mistake("status", config.parent / "data")


def test_a_run_directory_of_another_configuration_or_in_use_is_a_mistake(config: Path):
    directory = config.parent / "runs" / "tiny"
    manifest = Manifest.load(directory)
    manifest.identify({"seed": 7}, {})
    manifest.save()
    line = mistake("plan", config, "--no-probe")
    assert "belongs to another configuration" in line and "seed was 7, is 0" in line
    with lease.hold(directory):
        line = mistake("run", config)
    assert "another run is using it" in line and str(os.getpid()) in line
    (directory / "manifest.json").write_text("{")
    for verb in ("plan", "status", "report", "run"):
        assert "is not a manifest" in mistake(verb, config)


def test_a_run_whose_record_names_a_table_elsewhere_is_refused_before_it_writes(config: Path, tmp_path: Path):
    settings = load_config(config)
    table = io.write(pa.table({"row_id": [0]}), str(tmp_path / "original" / "labels.lance"))
    saved_run(settings).manifest.record("gen-0/label", {}, {"labels": table.to_json()}, rows=1, seconds=0.0)
    assert f"names the table {table.uri}, which lies outside" in mistake("run", config)
    assert io.find_latest(table.uri) == table
