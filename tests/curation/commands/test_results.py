"""Results as objects: what the tables hold in each form, what is read of them, what is not there; and the data set."""

import base64
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from object_store import object_store
from review_run import make_run

import curation
from benchmarks.recorded import recorded
from curation.cli import main
from curation.errors import ExportError, TableError, UserError
from curation.refs import TableRef
from curation.rundir.graph import Position
from curation.rundir.manifest import Manifest
from curation.storage.inside import to_record
from curation.storage.paths import Remote
from curation.tables import io, schemas

ROOT = Path(__file__).parents[3]
NUM, SELECTED = 60, 10
STATE = "state_output_last"
CONFIG = {
    "name": "small",
    "domain": "math",
    "sources": {"rows": {"path": "rows.jsonl"}},
    "splits": {"source": {"from": "rows", "rows": 5}, "pool": {"from": "rows"}, "audit": True},
    "teacher": {"backend": "scripted"},
    "selection": {"budget": {"n": SELECTED}, "arms": ["naive", "trust"]},
}
POOL = Position(generation=0, split="pool")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory whose selections the select stage made; labels have states, in a file of their own."""
    directory = tmp_path_factory.mktemp("runs") / "run"
    made = make_run(directory, num_rows=NUM, budget={"n": SELECTED})
    (directory / "config.yaml").write_text(yaml.safe_dump(CONFIG | {"run_dir": str(directory)}))
    manifest = Manifest.load(directory)
    select = manifest.stages["gen-0/select"]
    labels = lance.dataset(select.inputs["choice"]["labels"]["uri"])
    states = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4 * NUM).astype(np.float16)), 4)
    labels.merge(pa.table({"row_id": labels.to_table(columns=["row_id"])["row_id"], STATE: states}), "row_id")
    scored = TableRef(uri=labels.uri, version=lance.dataset(labels.uri).version)
    grades = pa.table(
        {"row_id": [*made.right], "correct": [*made.right.values()]}, schema=pa.schema([*schemas.GRADES][:2])
    )
    tables = {"pool": select.inputs["choice"]["pool"]}

    def record(name: str, kind: str, outputs: dict[str, Any], at: Position = POOL, **inputs: Any) -> None:
        manifest.record(name, inputs, outputs, rows=NUM, seconds=1.0, kind=kind, at=at)

    record("prepare", "Prepare", {"tables": tables}, Position())
    record("gen-0/label-pool", "Label", {"labels": select.inputs["choice"]["labels"]})
    record("gen-0/score-pool", "Score", {"labels": scored.to_json()})
    record("gen-0/grade-pool", "Grade", {"grades": io.write(grades, str(directory / "pool-grades.lance")).to_json()})
    record("gen-0/select", "Select", select.outputs, choice=select.inputs["choice"], teacher=None)
    select = manifest.stages["gen-0/select"]
    arms = []
    for arm, files in select.outputs["arms"].items():
        ids = io.read(TableRef.from_json(files["table"]), ["row_id"])["row_id"].to_pylist()
        share = sum(made.right[row_id] for row_id in ids) / len(ids)
        purity = {"value": share, "low": max(0.0, share - 0.2), "high": min(1.0, share + 0.2), "n": len(ids)}
        arms.append({"name": arm, "num_selected": len(ids), "num_unparsed": 0, "purity": purity, "accuracy": None})
    numbers = {
        "base": None, "student_base": None, "decodings": None, "budget_is_oracle": False,
        "judged": None, "arms": arms, "students": [], "guarantee": None, "num_pool": NUM, "trust": {},
        "teacher": {"test": None, "pool": {"value": 0.5, "low": 0.4, "high": 0.6, "n": NUM}},
    }  # fmt: skip
    made_by = {"command": "curate run small.yaml", "versions": {"trust-curation": "0"}}
    made_by["stages"] = {"gen-0/select": [select.started, select.seconds]}
    metrics = directory / "metrics.json"
    metrics.write_text(json.dumps(to_record({"numbers": numbers, "made_by": made_by}, directory)))
    record("gen-0/numbers", "ComputeNumbers", {"metrics": str(metrics)}, Position(generation=0))
    (directory / "report.json").write_text(json.dumps({"name": "small"}))
    return directory


def changed(run: Path, directory: Path, *gone: str) -> Path:
    """A copy of the run elsewhere, without these stages."""
    copy = directory / "elsewhere"
    shutil.copytree(run, copy)
    manifest = Manifest.load(copy)
    manifest.stages = {name: record for name, record in manifest.stages.items() if name not in gone}
    manifest.write()
    return copy


def stored(run: Path) -> pa.Table:
    """The scored labels, read in another way."""
    return io.read(TableRef.from_json(recorded(run)["gen-0/score-pool"]["outputs"]["labels"]))


def curate(*arguments: object, code: int = 0) -> str:
    found = CliRunner().invoke(main, ["export", *map(str, arguments)], catch_exceptions=False)
    assert found.exit_code == code, found.output
    return found.output if not code else found.stderr


def test_report_numbers_and_tables_are_those_of_the_run(run: Path) -> None:
    found = curation.open(run)
    assert found.report == {"name": "small"} and found.verdict is None and found.generation == 0
    assert [arm["num_selected"] for arm in found.metrics["numbers"]["arms"]] == [SELECTED, SELECTED]
    labels = stored(run)
    assert len(found.labels()) == NUM and found.labels().to_arrow().equals(labels.drop_columns([STATE]))
    assert found.labels().to_arrow(columns=["row_id", STATE]).equals(labels.select(["row_id", STATE]))
    selected = found.selected("trust").to_arrow()
    table = recorded(run)["gen-0/select"]["outputs"]["arms"]["trust"]["table"]
    assert selected.equals(lance.dataset(table["uri"], version=table["version"]).to_table())
    assert selected["rank"].to_pylist() == list(range(SELECTED))
    assert found.grades().to_arrow()["correct"].to_pylist().count(True) == found.grades().dataset.count_rows("correct")
    assert len(found.rows()) == NUM and found.rows().columns[:2] == ["row_id", "problem"]
    with pytest.raises(TableError, match=r"no column 'tust'; it has row_id, completion"):
        found.labels().to_arrow(columns=["tust"])


def test_every_form_has_the_same_values(run: Path) -> None:
    table = curation.open(str(run)).labels()
    chosen = {"columns": ["row_id", "label", "trust_trust"], "filter": "label IS NOT NULL AND trust_trust > 0.6"}
    expected = table.to_arrow(**chosen).to_pylist()
    assert 0 < len(expected) < NUM
    labels = stored(run)
    keep = pc.and_(labels["label"].is_valid(), pc.greater(labels["trust_trust"], 0.6))
    assert expected == labels.filter(keep).select(chosen["columns"]).to_pylist()
    assert table.to_arrow(**chosen).to_pandas().to_dict("records") == expected
    assert datasets.Dataset(table.to_arrow(**chosen)).to_list() == expected
    assert table.to_arrow().column_names == table.columns


def test_states_are_not_read_unless_they_are_named(run: Path, tmp_path: Path) -> None:
    copy = changed(run, tmp_path)
    found = curation.open(copy)
    before = found.labels().to_arrow()
    only_states = max((copy / "labels.lance/data").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    only_states.unlink()  # what reads it fails
    assert curation.open(copy).labels().to_arrow().equals(before)
    with pytest.raises(TableError, match=r"labels of pool: cannot be read \("):
        curation.open(copy).labels().to_arrow(columns=[STATE])


def test_duckdb_and_polars_answer_over_the_tables(run: Path) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    labels, chosen = curation.open(run).labels().to_arrow(), curation.open(run).selected("trust").to_arrow()
    query = "SELECT count(*), avg(l.trust_trust) FROM labels l JOIN chosen USING (row_id)"
    ((num, trust),) = duckdb.sql(query).fetchall()
    own = labels.filter(pc.is_in(labels["row_id"], value_set=chosen["row_id"].combine_chunks()))["trust_trust"]
    assert num == SELECTED and trust == pytest.approx(pc.mean(own).as_py())
    assert polars.from_arrow(labels).to_dicts() == labels.to_pylist()


def test_what_is_not_there_is_refused_with_what_is(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is not a run directory"):
        curation.open(tmp_path)
    with pytest.raises(UserError, match="generation 3: the run's generations are 0 to 0"):
        curation.open(run, generation=3)
    with pytest.raises(ExportError, match="arm nural: the run's arms are naive, trust"):
        curation.open(run).selected("nural")
    with pytest.raises(TableError, match=r"has no labels of 'test', but of source, pool"):
        curation.open(run).labels("test")
    with pytest.raises(TableError, match=r"stage gen-0/label-source is not done; `curate run .*run` goes on with it"):
        curation.open(run).labels("source")


def test_a_run_that_is_not_finished_gives_what_is_there(run: Path, tmp_path: Path) -> None:
    copy = changed(run, tmp_path, "gen-0/score-pool", "gen-0/select", "gen-0/numbers")
    (copy / "report.json").unlink()
    found = curation.open(copy)
    assert len(found.labels()) == NUM and STATE not in found.labels().schema.names  # labelled, and not scored yet
    for ask, missing in (
        (lambda: found.selected("trust"), "stage gen-0/select is not done"),
        (lambda: found.metrics, "stage gen-0/numbers is not done"),
        (lambda: found.verdict, "stage gen-0/numbers is not done"),
        (lambda: found.report, r"report.json: is not there yet; `curate run"),
    ):
        with pytest.raises(UserError, match=missing):
            ask()


def test_a_run_that_was_moved_is_read_where_it_is(run: Path, tmp_path: Path) -> None:
    copy = changed(run, tmp_path)
    moved = copy.rename(tmp_path / "moved")
    found = curation.open(moved)
    assert found.labels().to_arrow().equals(curation.open(run).labels().to_arrow())
    assert str(moved) in found.selected("trust").dataset.uri
    shutil.rmtree(moved / "labels.lance")
    with pytest.raises(TableError, match=r"labels.lance: cannot be read .*; `curate verify .*moved` says what is"):
        found.labels()


def test_a_run_in_a_bucket_is_read_there(run: Path, tmp_path: Path) -> None:
    with object_store() as store:
        target = Remote(store.url("runs/small"))
        for path in run.rglob("*"):
            if path.is_file():
                (target / str(path.relative_to(run))).put(path)
        found = curation.open(store.url("runs/small"))
        assert found.report == {"name": "small"} and found.labels().dataset.uri.startswith("s3://")
        assert found.labels().to_arrow().equals(curation.open(run).labels().to_arrow())
        assert found.selected("trust").to_arrow().equals(curation.open(run).selected("trust").to_arrow())
        curate(store.url("runs/small"), "-o", tmp_path / "out")
    assert pq.read_table(tmp_path / "out/data").num_rows == SELECTED


def test_the_data_set_loads_with_the_rows_and_the_numbers_of_the_run(run: Path, tmp_path: Path) -> None:
    from datasets import load_dataset
    from huggingface_hub import DatasetCard

    out = tmp_path / "out"
    assert "10 rows of the arm trust in 1 Parquet file, with README.md" in curate(run, "--format", "parquet", "-o", out)
    loaded = load_dataset(str(out), cache_dir=str(tmp_path / "cache"))
    rows = curation.open(run).selected("trust").to_arrow().to_pylist()
    assert [*loaded] == ["train"] and loaded["train"].to_list() == rows
    assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} == {
        "README.md", "rows.json", "data/train-00000-of-00001.parquet"
    }  # fmt: skip
    card, numbers = DatasetCard.load(out / "README.md"), curation.open(run).metrics["numbers"]
    assert card.data.tags == ["trust-curation", "weak-to-strong", "trust"]
    purity = next(arm["purity"] for arm in numbers["arms"] if arm["name"] == "trust")
    value, low, high = (100 * purity[name] for name in ("value", "low", "high"))
    for words in (
        f"| right labels among the rows | {value:.1f} % ({low:.1f} to {high:.1f}, n = {purity['n']}) |",
        f"| right labels in the pool | 50.0 % (40.0 to 60.0, n = {NUM}) |",
        "| weak teacher | `scripted` |",
        "10 rows\nthat a weak teacher labelled.",
        "`prompt` and `completion` are what TRL's SFTTrainer trains on.",
    ):
        assert words in card.text, words
    told = json.loads((out / "rows.json").read_text())
    assert told["numbers"]["purity"] == purity and [*told["files"]] == ["data/train-00000-of-00001.parquet"]
    assert "has an earlier export" in curate(run, "-o", out, code=2)
    curate(run, "-o", out, "--force", "--arm", "naive")
    assert json.loads((out / "rows.json").read_text())["arm"]["name"] == "naive"


@pytest.mark.parametrize("package", ["pandas", "polars", "duckdb"])
def test_the_files_of_the_data_set_are_read_by_others(run: Path, tmp_path: Path, package: str) -> None:
    module, path = pytest.importorskip(package), str(tmp_path / "out/data/train-00000-of-00001.parquet")
    curate(run, "-o", tmp_path / "out")
    read = module.sql(f"SELECT * FROM '{path}'").df() if package == "duckdb" else module.read_parquet(path)
    assert list(read["row_id"]) == curation.open(run).selected("trust").to_arrow()["row_id"].to_pylist()


def test_a_large_selection_is_several_files_in_its_order(run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from curation.extras.hub import exports as dataset

    monkeypatch.setattr(dataset, "FILE_ROWS", 4)
    monkeypatch.setattr(dataset, "PART_ROWS", 2)
    curate(run, "-o", tmp_path / "out")
    files = sorted((tmp_path / "out/data").iterdir())
    assert [path.name for path in files] == [f"train-0000{number}-of-00003.parquet" for number in range(3)]
    ranks = [pq.read_table(path)["rank"].to_pylist() for path in files]
    assert [len(part) for part in ranks] == [4, 4, 2] and [*chain(*ranks)] == list(range(SELECTED))


def test_rows_without_numbers_say_so(run: Path, tmp_path: Path) -> None:
    copy = changed(run, tmp_path, "gen-0/numbers")
    assert "has no numbers of these rows" in curate(copy, "-o", tmp_path / "out")
    text = (tmp_path / "out/README.md").read_text()
    assert "no report of the run told of them" in text
    assert "Nobody knows how many of the labels are right" in text


class Hub(BaseHTTPRequestHandler):
    """What the hub answers to a client that makes a repository and uploads small files."""

    made: dict[str, Any]
    files: dict[str, bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        home, answer = f"http://127.0.0.1:{self.server.server_port}/datasets/me/rows", {}
        if self.path == "/api/repos/create":
            type(self).made = json.loads(body)
            answer = {"url": home, "name": "me/rows", "id": "0"}
        elif self.path.endswith("/preupload/main"):
            paths = [item["path"] for item in json.loads(body)["files"]]
            answer = {"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]}
        elif self.path.endswith("/commit/main"):
            lines = [json.loads(line) for line in body.splitlines()]
            files = [line["value"] for line in lines if line["key"] == "file"]
            type(self).files = {file["path"]: base64.b64decode(file["content"]) for file in files}
            answer = {"commitUrl": f"{home}/commit/0", "commitOid": "0", "success": True}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """A server in place of the hub."""
    from huggingface_hub import constants

    class Own(Hub): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield Own
    server.shutdown()
    server.server_close()


def test_the_folder_is_pushed_as_it_is(run: Path, tmp_path: Path, hub: type[Hub]) -> None:
    out = tmp_path / "out"
    assert "/datasets/me/rows: has it too" in curate(run, "-o", out, "--push", "me/rows")
    assert hub.made["type"] == "dataset" and hub.made["visibility"] == "private"
    paths = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert hub.files == paths


def test_a_push_that_cannot_be_leaves_the_folder_and_says_what_to_do(run: Path, tmp_path: Path, monkeypatch) -> None:
    from huggingface_hub import constants

    assert "is not the name of a repository" in curate(run, "-o", tmp_path / "none", "--push", "a/b/c", code=2)
    assert not (tmp_path / "none").exists()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    told = curate(run, "-o", tmp_path / "out", "--push", "me/rows", code=2)
    assert "out is written, and " in told and "`hf upload me/rows" in told
    assert (tmp_path / "out/rows.json").is_file()


def cells() -> list[str]:
    """The code of the notebook, a text a cell."""
    found = json.loads((ROOT / "examples/results.ipynb").read_text())["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


@pytest.fixture
def beside_runs(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory has a finished run where the notebook looks for it; figures are drawn to nowhere."""
    shutil.copytree(run, tmp_path / "runs/quickstart")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")


def test_the_notebook_runs_on_a_finished_run(run: Path, beside_runs: None) -> None:
    told: dict[str, Any] = {}
    first, second, third, _ = cells()
    assert len([line for line in first.splitlines() if line]) == 3
    for cell in (first, second, third):
        exec(cell, told)
    assert len(told["run"].selected("trust")) == SELECTED and len(told["labels"]) == NUM
    assert [text.get_text() for text in told["axes"].get_yticklabels()] == ["naive", "trust"]


def test_the_query_of_the_notebook_runs_on_a_finished_run(run: Path, beside_runs: None) -> None:
    pytest.importorskip("duckdb")
    told: dict[str, Any] = {}
    for cell in (cells()[0], cells()[2], cells()[3].replace("duckdb.sql", "found = duckdb.sql")):
        exec(cell, told)
    assert told["found"]["num"].sum() == len(told["run"].grades())
