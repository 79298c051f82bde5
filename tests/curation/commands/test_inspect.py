from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from curation.cli import main
from curation.commands.inspect import find, list_tables
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


def test_a_tables_rows_and_columns_are_shown(table: Path):
    shown = curate(table, "--where", "error IS NOT NULL", "--columns", "row_id, state", "--rows", 2).stdout.splitlines()
    assert shown[:3] == [f"{table}, version 6", "rows       38, 3 where error IS NOT NULL", "columns"]
    assert [line.split() for line in shown[3:8]] == [
        ["row_id", "int64,", "not", "null"],
        ["label", "string"],
        ["state", "fixed_size_list<item:", f"halffloat>[{STATE_SIZE}]"],
        ["error", "string"],
        ["double", "int64,", "not", "null"],
    ]
    assert shown[8] == "sample     2 of 3 rows"
    assert [line.split()[1] for line in shown[9:] if "row_id" in line] == ["3", "7"]
    assert max(map(len, shown)) < 120 and not any("label" in line for line in shown[9:])
    assert "sample" not in curate(table, "--rows", 0).stdout
    assert "sample     5 of 38 rows" in curate(table).stdout


def test_long_values_are_cut(tmp_path: Path):
    uri = str(tmp_path / "kinds.lance")
    values = {
        "bytes": b"abc" * 100,
        "words": ["a"] * 20,
        "nested": {"x": [1.0] * 16, "y": None},
        "text": "two\nlines " + "x" * 500,
    }
    lance.write_dataset(pa.Table.from_pylist([values]), uri)
    shown = curate(uri).stdout
    assert "'two\\nlines xx" in shown and "['a', 'a', 'a', 'a', 'a', 'a', ...]" in shown
    assert max(map(len, shown.splitlines())) < 200


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--where", "labl IS NULL"], ("No field named labl", "its columns are row_id, label, state")),
        (["--where", "label =="], ("Expected: an expression", "its columns are")),
        (["--where", "row_id"], ("does not return a boolean",)),
        (["--where", "label = 'a"], ("Unterminated string literal",)),
        (["--columns", "row_id,lable"], ("No field named lable", "its columns are row_id, label")),
        (["gen-0/label-pool"], ("is not a run directory", "'gen-0/label-pool'")),
    ],
)
def test_what_a_table_does_not_have_is_named(table: Path, arguments: list[str], told: tuple[str, ...]):
    line = mistake(table, *arguments)
    assert all(part in line for part in told), line
    assert ".rs:" not in line


def test_paths_that_are_no_table(table: Path, tmp_path: Path):
    for path in (tmp_path / "label.lance", tmp_path, "/no/such/folder/x.lance"):
        line = mistake(path)
        assert f"{path}: is no Lance table" in line and "`curate inspect RUN_DIR` lists those of a run" in line
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


def test_a_stage_names_its_table_at_the_version_on_record(run: Path):
    assert find(str(run), "gen-0/label-pool")[1] == 1
    assert curate(run, "gen-0/label-pool").stdout.splitlines()[1] == "rows       10"  # the newest version has 20
    assert "prepare-1/source.lance, version 1" in curate(run, "prepare/source").stdout
    assert "name one: prepare/pool, prepare/source" in mistake(run, "prepare")
    assert "there are prepare/pool, prepare/source, gen-0/label-pool" in mistake(run, "zzzzzz")
    assert "gone.lance: is no Lance table" in mistake(run, "gen-0/grade-pool")


def test_names_kinds_and_values_of_foreign_tables_do_not_act(tmp_path: Path):
    acting = "\x1b]0;owned\x07\x9b2J\x7f\u202e\u2028"
    uri = tmp_path / "labels\u202e.lance"
    columns = {f"name\n{acting}": [acting], "error": [f"kind{acting}\nforged 1: {acting}"], "list": [[acting]]}
    lance.write_dataset(pa.table({**columns, "struct": [{acting: 1}]}), str(uri))
    told = curate(uri, "--where", "error IS NOT NULL").stdout
    assert not any(sign in told for sign in acting if not sign.isascii() or not sign.isprintable())
    assert "  name\\u000a\\u001b]0;owned" in told and "kind\\x1b]0;owned\\x07\\x9b2J\\x7f" in told
    assert not any(line.startswith("forged") for line in told.splitlines())
