import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from curation.cli import main
from curation.commands.inspect import examine, find, format_facts, list_tables
from curation.errors import TableError
from curation.refs import TableRef
from curation.rundir.manifest import Manifest
from curation.tables import io

STATE_SIZE = 64
SCHEMA = pa.schema(
    [
        pa.field("row_id", pa.int64(), nullable=False),
        pa.field("label", pa.string()),
        pa.field("state", pa.list_(pa.float16(), STATE_SIZE)),
        pa.field("error", pa.string()),
    ]
)
ERRORS = {3: "bad_fen: '8/8'", 7: "bad_fen: ''", 8: "prompt_length: 900 tokens: too long"}


def rows(start: int, stop: int) -> pa.Table:
    ids = np.arange(start, stop)
    states = np.random.default_rng(start).normal(size=(len(ids), STATE_SIZE)).astype(np.float16)
    columns = {
        "row_id": ids,
        "label": [None if row in ERRORS or row % 5 == 0 else f"label {row}" for row in ids.tolist()],
        "state": pa.FixedSizeListArray.from_arrays(pa.array(states.ravel()), STATE_SIZE),
        "error": [ERRORS.get(row) for row in ids.tolist()],
    }
    return pa.table(columns, schema=SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Version 1 is empty, 2 and 3 append, 4 adds a column, 5 deletes two rows, 6 changes a value."""
    uri = tmp_path / "labels.lance"
    io.create(str(uri), SCHEMA)
    for start, stop in ((0, 10), (10, 40)):
        lance.write_dataset(rows(start, stop), str(uri), mode="append")
    lance.dataset(str(uri)).add_columns({"double": "row_id * 2"})
    lance.dataset(str(uri)).delete("row_id IN (20, 21)")
    lance.dataset(str(uri)).update({"label": "'mended'"}, where="row_id = 39")
    return uri


def curate(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)], catch_exceptions=False)


def mistake(*arguments: object) -> str:
    result = curate(*arguments)
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1, result.output
    return result.stderr


def test_rows_columns_and_versions_are_those_of_the_table(table: Path):
    facts = examine(str(table))
    assert (facts["version"], facts["rows"], facts["matching"], facts["num_versions"]) == (6, 38, 38, 6)
    assert [(column["name"], column["type"], column["nullable"]) for column in facts["columns"]] == [
        ("row_id", "int64", False),
        ("label", "string", True),
        ("state", f"float16[{STATE_SIZE}]", True),
        ("error", "string", True),
        ("double", "int64", False),
    ]
    assert [(item["version"], item["rows"]) for item in facts["versions"]] == [
        (6, 38), (5, 38), (4, 40), (3, 40), (2, 10), (1, 0)
    ]  # fmt: skip
    times = [datetime.fromisoformat(item["time"]) for item in facts["versions"]]
    assert times == sorted(times, reverse=True) and abs(datetime.now(UTC) - times[0]) < timedelta(minutes=5)


def test_fragments_and_their_bytes_are_those_on_disk(table: Path):
    lance.dataset(str(table)).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    facts = examine(str(table))
    on_disk = sum(path.stat().st_size for path in (table / "data").iterdir())
    assert facts["fragments"]["bytes"] == on_disk > 0
    counts = [fragment.count_rows() for fragment in lance.dataset(str(table)).get_fragments()]
    assert facts["fragments"]["count"] == len(counts) and facts["fragments"]["rows"] == [min(counts), max(counts)]
    assert sum(counts) == 38 and facts["fragments"]["deleted_rows"] == 3
    assert [item["version"] for item in facts["versions"]] == [6]


def test_only_the_newest_versions_are_told(tmp_path: Path):
    uri = str(tmp_path / "many.lance")
    for start in range(25):
        lance.write_dataset(rows(start, start + 1), uri, mode="append" if start else "create")
    facts = examine(uri)
    assert facts["num_versions"] == 25 and [item["version"] for item in facts["versions"]] == list(range(25, 5, -1))
    assert "versions   25, the last 20:" in format_facts(facts)
    assert [item["version"] for item in examine(uri, version=20)["versions"]] == list(range(20, 0, -1))


def test_an_older_version_is_told_as_it_was(table: Path):
    facts = examine(str(table), version=2)
    assert (facts["version"], facts["rows"], facts["num_versions"], facts["fragments"]["count"]) == (2, 10, 2, 1)
    assert "double" not in [column["name"] for column in facts["columns"]]
    assert sum(kind["rows"] for kind in facts["errors"] or []) == 3


def test_error_rows_are_counted_by_kind_among_those_that_pass(table: Path):
    kinds = examine(str(table))["errors"]
    assert [(kind["kind"], kind["rows"], kind["example"]) for kind in kinds or []] == [
        ("bad_fen", 2, ERRORS[3]),
        ("prompt_length", 1, ERRORS[8]),
    ]
    kinds = examine(str(table), where="row_id < 5 OR row_id = 8")["errors"]
    assert {kind["kind"]: kind["rows"] for kind in kinds or []} == {"bad_fen": 1, "prompt_length": 1}
    assert examine(str(table), where="row_id > 10")["errors"] == []


def test_a_table_without_error_column_has_no_errors(tmp_path: Path):
    uri = str(tmp_path / "plain.lance")
    lance.write_dataset(pa.table({"a": [1]}), uri)
    facts = examine(uri)
    assert facts["errors"] is None and "error rows" not in format_facts(facts)


def test_the_sample_is_the_rows_that_pass_with_long_lists_shortened(table: Path):
    facts = examine(str(table), where="label IS NULL AND error IS NULL", rows=3)
    truth = [*rows(0, 10).to_pylist(), *rows(10, 40).to_pylist()]
    passing = [row for row in truth if row["label"] is None and row["error"] is None and row["row_id"] not in (20, 21)]
    assert facts["matching"] == len(passing)
    assert [row["row_id"] for row in facts["sample"]] == [row["row_id"] for row in passing[:3]]
    for row, expected in zip(facts["sample"], passing, strict=False):
        assert row["state"]["size"] == STATE_SIZE
        assert row["state"]["norm"] == pytest.approx(np.linalg.norm(np.array(expected["state"], np.float64)))
    named = examine(str(table), columns=("double", "row_id"), rows=2)["sample"]
    assert named == [{"double": 0, "row_id": 0}, {"double": 2, "row_id": 1}]
    assert examine(str(table), rows=0)["sample"] == []


def test_values_of_every_kind_become_json(tmp_path: Path):
    uri, moment = str(tmp_path / "kinds.lance"), datetime(2026, 1, 2, tzinfo=UTC)
    values = {
        "nan": math.nan,
        "bytes": b"abc",
        "time": moment,
        "short": [0.5, None],
        "words": ["a"] * 20,
        "broken": [math.inf] * 20,
        "nested": {"x": [1.0] * 16, "y": None},
        "text": "two\nlines " + "x" * 500,
    }
    lance.write_dataset(pa.Table.from_pylist([values]), uri)
    facts = examine(uri)
    assert facts["sample"] == [
        {
            "nan": "nan",
            "bytes": {"size": 3},
            "time": str(moment),
            "short": [0.5, None],
            "words": {"size": 20},
            "broken": {"size": 20, "norm": "inf"},
            "nested": {"x": {"size": 16, "norm": 4.0}, "y": None},
            "text": values["text"],
        }
    ]
    json.dumps(facts["sample"], allow_nan=False)
    shown = format_facts(facts)
    assert "20 numbers, norm inf" in shown and "two\\nlines" in shown
    assert max(map(len, shown.splitlines())) < 200


def test_the_command_prints_the_facts_as_text_and_as_json(table: Path):
    shown = curate(table, "--where", "error IS NOT NULL", "--columns", "row_id, state", "--rows", 2).stdout.splitlines()
    assert shown[0] == f"{table}, version 6"
    assert shown[1] == "rows       38, 3 where error IS NOT NULL"
    assert "error rows 3" in shown and "sample     2 of 3 rows" in shown
    assert [line.split() for line in shown if "bad_fen" in line] == [["bad_fen", "2", "e.g.", *ERRORS[3].split()]]
    assert sum(f"{STATE_SIZE} numbers, norm" in line for line in shown) == 2
    told = json.loads(curate(table, "--json", "--version", 3).stdout)
    assert told["version"] == 3 and told["rows"] == 40 and len(told["sample"]) == 5
    assert told["fragments"]["rows"] == [10, 30]
    assert {kind["kind"]: kind["rows"] for kind in told["errors"]} == {"bad_fen": 2, "prompt_length": 1}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--where", "labl IS NULL"], ("--where 'labl IS NULL'", "No field named labl", "row_id, label, state")),
        (["--where", "label =="], ("Expected: an expression", "columns of")),
        (["--where", "row_id"], ("does not return a boolean",)),
        (["--where", "label = 'a"], ("Unterminated string literal",)),
        (["--columns", "row_id,lable"], ("no column 'lable'", "did you mean label?")),
        (["--columns", "zzzzz"], ("no column 'zzzzz'", "there are: row_id, label")),
        (["--version", "99"], ("has no version 99", "there are 6, 1 to 6")),
        (["gen-0/label-pool"], ("is not a run directory", "'gen-0/label-pool'")),
    ],
)
def test_what_a_table_does_not_have_is_named(table: Path, arguments: list[str], told: tuple[str, ...]):
    line = mistake(table, *arguments)
    assert all(part in line for part in told), line
    assert ".rs:" not in line


def test_paths_that_are_no_table(table: Path, tmp_path: Path):
    line = mistake(tmp_path / "label.lance")
    assert "no such table" in line and f"tables under {tmp_path}: labels.lance" in line
    assert "is not a Lance table" in (line := mistake(tmp_path)) and "labels.lance" in line
    file = tmp_path / "file.txt"
    file.write_text("x")
    assert "is not a Lance table" in mistake(file)
    assert "nor is there a folder" in mistake("/no/such/folder/x.lance")
    newest = sorted((table / "_versions").glob("*.manifest"))[0]
    newest.write_bytes(b"x" * 100)
    assert str(table) in mistake(table)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with one stage of one table, one of two, one whose table is gone, and a table that no stage recorded."""
    manifest = Manifest.load(tmp_path / "run")
    manifest.identify({"seed": 0}, {})
    manifest.save()
    folder = manifest.directory
    refs = {}
    for path in ("prepare-1/pool", "prepare-1/source", "gen-0/label-pool-2/labels", "gen-0/signal-3/signal"):
        uri = str(folder / f"{path}.lance")
        io.write(rows(0, 10), uri)
        refs[path.split("/")[-1]] = TableRef(uri=uri, version=1).to_json()
    lance.write_dataset(rows(10, 20), refs["labels"]["uri"], mode="append")
    arms = {name: {"arm": name, "table": refs[name]} for name in ("pool", "source")}
    manifest.record("prepare", {}, {"arms": arms, "counts": {"pool": 10}}, rows=20, seconds=1.0)
    manifest.record("gen-0/label-pool", {}, {"labels": refs["labels"], "counts": {}}, rows=10, seconds=1.0)
    gone = TableRef(uri=str(folder / "gone.lance"), version=1).to_json()
    manifest.record("gen-0/grade-pool", {}, {"grades": gone}, rows=10, seconds=1.0)
    return folder


def test_a_run_directory_lists_its_tables(run: Path):
    found = [(item.name, item.version, item.rows, item.state) for item in list_tables(run)]
    assert found == [
        ("prepare/pool", 1, 10, "done"),
        ("prepare/source", 1, 10, "done"),
        ("gen-0/label-pool", 1, 10, "done"),
        ("gen-0/grade-pool", 1, None, "missing"),
        (str(run / "gen-0/signal-3/signal.lance"), None, 10, "not on record"),
    ]
    shown = curate(run).stdout.splitlines()
    assert [line.split()[0] for line in shown[1:]] == [name for name, *_ in found]
    assert [item["name"] for item in json.loads(curate(run, "--json").stdout)] == [name for name, *_ in found]


def test_the_tables_of_a_stage_that_is_not_done_are_found_by_its_name(run: Path):
    for folder, stop in (("gen-0/label-test-0123abcd", 3), ("gen-0/label-test-4567abcd.1", 6), ("late-89ab0123", 2)):
        for name in ("labels",) if "label" in folder else ("pool", "source"):
            io.write(rows(0, stop), str(run / folder / f"{name}.lance"))
    told = json.loads(curate(run, "gen-0/label-test", "--where", "row_id > 1", "--json").stdout)
    assert told["rows"] == 6  # the newest
    assert json.loads(curate(run, "late/pool", "--json").stdout)["rows"] == 2
    assert "name one: late/pool, late/source" in mistake(run, "late")
    assert "did you mean gen-0/label-test" in mistake(run, "gen-0/label-tes")


def test_a_stage_names_its_table_at_the_version_on_record(run: Path):
    assert find(str(run), "gen-0/label-pool")[1] == 1
    told = json.loads(curate(run, "gen-0/label-pool", "--json").stdout)
    assert told["version"] == 1 and told["rows"] == 10
    assert json.loads(curate(run, "gen-0/label-pool", "--version", 2, "--json").stdout)["rows"] == 20
    assert "prepare-1/source.lance, version 1" in curate(run, "prepare/source").stdout
    assert "name one: prepare/pool, prepare/source" in mistake(run, "prepare")
    assert "did you mean gen-0/label-pool" in mistake(run, "gen-0/label-pol")
    assert "there are: prepare/pool" in mistake(run, "zzzzzz")
    with pytest.raises(TableError, match=r"gone\.lance"):
        uri, version = find(str(run), "gen-0/grade-pool")
        examine(uri, version=version)


def test_names_kinds_and_values_of_foreign_tables_do_not_act(tmp_path: Path):
    acting = "\x1b]0;owned\x07\x9b2J\x7f\u202e\u2028"
    uri = tmp_path / "labels\u202e.lance"
    columns = {f"name\n{acting}": [acting], "error": [f"kind{acting}\nforged 1: {acting}"], "list": [[acting]]}
    lance.write_dataset(pa.table({**columns, "struct": [{acting: 1}]}), str(uri))
    told = curate(uri, "--where", "error IS NOT NULL").stdout
    assert not any(sign in told for sign in acting if not sign.isascii() or not sign.isprintable())
    assert "  name\\u000a\\u001b]0;owned" in told and "kind\\u001b]0;owned\\u0007\\u009b2J\\u007f" in told
    assert not any(line.startswith("forged") for line in told.splitlines())
    found = json.loads(curate(uri, "--json").stdout)
    assert found["columns"][0]["name"] == f"name\n{acting}"
