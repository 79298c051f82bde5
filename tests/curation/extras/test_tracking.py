"""Trackers of experiments: MLflow against a local store, W&B offline (``make test-tracking`` installs both)."""

import importlib.util
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.hostile_case import write_config
from curation.config import RunConfig
from curation.config.load import load_config, validate_keys
from curation.errors import ConfigError
from curation.extras.tracking import publish as tracking
from curation.extras.tracking.config import TrackingConfig
from curation.extras.tracking.publish import TrackedRun
from curation.pipeline.running import run_chain
from curation.report.charts import draw_training_figure, render_svg
from curation.report.tested import collect_trainings

ENTRY = TrackedRun(
    id="0123456789abcdef",
    name="chess",
    settings={"seed": 3, "trust": {"states": ["output_last"], "width": 512}, "judge": None, "many": "x" * 900},
    numbers={f"gen-{index}/trust/purity": index / 300 for index in range(250)},
    curves={
        "gen-0/trust/training/loss": [(step, 1 / step) for step in range(2, 2002, 2)],
        "gen-0/naive/training/loss": [(3, 0.5), (6, 0.25)],
        "gen-0/naive/training/reward": [(6, 0.75)],
    },
    tags={"run_dir": "/runs/chess", "domain": "chess", "version": "0.1.0"},
    files={"report.html": "<p>\u00e4</p>", "report.json": "{}"},
)


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not installed(name), reason=f"{name} is not installed (make test-tracking)")


@pytest.mark.parametrize("given", [{"mlflow": {}}, {"wandb": {"project": "ours", "mode": "offline"}}])
def test_a_section_of_an_earlier_version_is_refused_with_what_to_write(given: dict[str, dict[str, str]]) -> None:
    with pytest.raises(ConfigError, match=r"\w+: is the name of an experiment or project alone; "):
        validate_keys(TrackingConfig, given, "tracking")


def test_a_run_directory_with_such_a_section_can_still_be_looked_at(tmp_path: Path) -> None:
    config = write_config(tmp_path, {}, rows=tmp_path / "rows.parquet")
    kept = yaml.safe_load(config.read_text()) | {"tracking": {"mlflow": {"uri": None, "experiment": "ours"}}}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(kept | {"run_dir": "before"}))
    (tmp_path / "run" / "manifest.json").write_text("{}")
    assert load_config(tmp_path / "run" / "config.yaml").tracking == TrackingConfig()


def test_settings_are_flat_leaves():
    flat = dict(tracking.iter_leaves(ENTRY.settings))
    assert flat["trust.states"] == "['output_last']" and flat["trust.width"] == "512" and flat["judge"] == "None"


def test_curves_of_every_student_have_their_steps():
    """Of GRPO a value a block of steps, of others one a logging interval where no steps are recorded."""
    plain = {"num_rows": 9, "num_dropped": 0, "num_epochs": 1, "losses": [2.0, 1.0, 0.5], "seconds": 3.0}
    losses = [*(3.0 * part - 1 for part in range(1, 134)), 400.5]
    curves = {"step": [*map(float, range(3, 402, 3)), 401.0], "reward": [0.5] * 133 + [None]}
    grpo = {**plain, "losses": losses, "curves": curves}
    found = collect_trainings({"naive": plain, "trust": grpo})
    assert found["naive"]["curves"] == {"step": [1.0, 2.0, 3.0], "loss": [2.0, 1.0, 0.5]}
    assert found["trust"]["curves"]["loss"] == losses and "<svg" in render_svg(draw_training_figure(found), "drawn")
    report = dict.fromkeys(("name", "domain"), "x") | {"config": {}, "versions": {}, "stages": [], "chain": None}
    empty = {
        "index": 1,
        "num_pool": 5,
        "teacher": {"test": None, "pool": None},
        "base": None,
        "arms": [],
        "trust": {},
        "students": [],
    }
    entry = tracking.make_entry(report | {"generations": [empty | {"training": found}]}, "/runs/x", {})
    assert entry.curves["gen-1/naive/training/loss"] == [(1, 2.0), (2, 1.0), (3, 0.5)]
    assert entry.curves["gen-1/trust/training/loss"][-1] == (401, 400.5)
    assert entry.curves["gen-1/trust/training/reward"] == [(3 * part, 0.5) for part in range(1, 134)]
    assert len(entry.curves) == 3


def test_no_tracker_unless_named():
    tracking.require(TrackingConfig())
    assert list(tracking.publish(TrackingConfig(), ENTRY)) == []


@pytest.mark.parametrize("name", [name for name in ("mlflow", "wandb") if not installed(name)])
def test_a_missing_package_is_refused_with_its_extra_and_fails_no_run(name: str):
    config = TrackingConfig.model_validate({name: "ours"})
    with pytest.raises(ConfigError, match=rf'tracking.{name}: .* pip install "trust-curation\[{name}\]"'):
        tracking.require(config)
    (problem,) = tracking.publish(config, ENTRY)
    assert problem.startswith(f"tracking.{name} failed (ModuleNotFoundError: No module named '{name}")


@pytest.fixture
def mlflow_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrackingConfig:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    return TrackingConfig(mlflow="ours")


@needs("mlflow")
def test_mlflow_keeps_one_run_an_entry(mlflow_store: TrackingConfig):
    from mlflow.tracking import MlflowClient

    assert list(tracking.publish(mlflow_store, ENTRY)) == []
    assert list(tracking.publish(mlflow_store, ENTRY)) == []
    assert list(tracking.publish(mlflow_store, replace(ENTRY, id="other", numbers={}))) == []
    client = MlflowClient()
    experiment = client.get_experiment_by_name("ours")
    runs = {run.data.tags["curation.id"]: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {ENTRY.id, "other"}
    run = runs[ENTRY.id]
    assert run.info.status == "FINISHED" and run.info.run_name == "chess"
    assert run.data.metrics == ENTRY.numbers | {name: points[-1][1] for name, points in ENTRY.curves.items()}
    for name, points in ENTRY.curves.items():
        history = client.get_metric_history(run.info.run_id, name)
        assert [(point.step, point.value) for point in history] == points  # each once, though published twice
    assert run.data.params["trust.width"] == "512" and run.data.params["many"] == "x" * 500
    assert run.data.tags["curation.run_dir"] == "/runs/chess"
    report = client.download_artifacts(run.info.run_id, "report.html")
    assert Path(report).read_text() == ENTRY.files["report.html"]


@needs("mlflow")
def test_a_server_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    began = time.monotonic()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    (problem,) = tracking.publish(TrackingConfig(mlflow="ours"), ENTRY)
    assert problem.startswith("tracking.mlflow failed (") and "Connection refused" in problem and "\n" not in problem
    assert time.monotonic() - began < 60


@needs("mlflow")
def test_a_tracker_that_takes_too_long_is_left(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tracking, "SECONDS", 1.0)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "7")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    (problem,) = tracking.publish(TrackingConfig(mlflow="ours"), ENTRY)
    assert "no end after 1 s" in problem


@needs("wandb")
def test_wandb_offline_keeps_the_run_for_a_later_sync(tmp_path: Path):
    script = (
        "import json; from curation.extras.tracking import publish as tracking;"
        "from curation.extras.tracking.config import TrackingConfig; from test_tracking import ENTRY;"
        "config = TrackingConfig(wandb='ours');"
        "print(json.dumps(list(tracking.publish(config, ENTRY))))"
    )
    paths = [Path(__file__).parents[4], Path(__file__).parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "WANDB_DIR": str(tmp_path),
            "WANDB_MODE": "offline",
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0 and json.loads(ran.stdout.splitlines()[-1]) == [], ran.stderr
    (kept,) = (tmp_path / "wandb").glob(f"offline-run-*-{ENTRY.id}")
    written = (kept / f"run-{ENTRY.id}.wandb").read_bytes()
    for told in (b"ours", b"gen-7/trust/purity", b"output_last", b"report.html", b"/runs/chess"):
        assert told in written
    assert history_of(kept / f"run-{ENTRY.id}.wandb") == history(ENTRY)


def history(entry: TrackedRun) -> dict[int, dict[str, float]]:
    """The rows that W&B is to keep: all values of a step together."""
    rows: dict[int, dict[str, float]] = {}
    for name, points in entry.curves.items():
        for step, value in points:
            rows.setdefault(step, {})[name] = value
    return rows


def history_of(path: Path) -> dict[int, dict[str, float]]:
    """The rows of history in W&B's own file, by step."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows = {}
    for data in records_of(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            rows[items["_step"]] = {name: value for name, value in items.items() if not name.startswith("_")}
    return rows


def records_of(content: bytes, block: int = 1 << 15, header: int = 7) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, after as many bytes of W&B's own as a record's header has."""
    at, record = header, b""
    while at + header <= len(content):
        if block - at % block < header:
            at += block - at % block
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        record += content[at + header : at + header + length]
        at += header + length
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


@needs("mlflow")
def test_a_whole_run_is_tracked_and_a_dead_server_does_not_fail_it(
    mlflow_store: TrackingConfig, local_ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from mlflow.tracking import MlflowClient

    rows = [{"problem": f"What is {i} - {i - 1 - i % 2}?", "answer": str(1 + i % 2)} for i in range(160)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    raw = {
        "name": "tracked",
        "run_dir": str(tmp_path / "run"),
        "domain": "math",
        "sources": {"sums": {"path": str(tmp_path / "sums.jsonl")}},
        "splits": {"source": {"from": "sums", "rows": 60}, "pool": {"from": "sums"}, "audit": True},
        "teacher": {"backend": "scripted", "scripted": {"completions": [" \\boxed{1}", " \\boxed{2}"]}},
        "selection": {"budget": {"n": 20}, "arms": ["naive", "internal_confidence"]},
        "tracking": {"mlflow": "ours"},
    }
    config = RunConfig.model_validate(raw)
    content = run_chain(config)
    client = MlflowClient()
    (kept,) = client.search_runs([client.get_experiment_by_name("ours").experiment_id])
    for arm in content["arms"]:
        assert kept.data.metrics[f"gen-0/{arm['name']}/purity"] == arm["purity"]["value"]
        assert kept.data.metrics[f"gen-0/{arm['name']}/purity_n"] == 20
    assert kept.data.params["selection.budget.n"] == "20"
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert run_chain(config)["arms"] == content["arms"]
    last = json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "unpublished" and "tracking.mlflow failed" in last["error"]
