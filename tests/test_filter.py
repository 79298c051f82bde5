"""``curate filter``: which rows are written, by which cut, and what a second start does."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from filter_package import COMPLETIONS, ids_of, make_package, states_of, write_pool

from curation.arrays import Int64s
from curation.cli import main
from curation.config.load import load_filter
from curation.errors import BudgetError, ClusterError, ConfigError, PackageError, RunDirError, ShiftError, SourceError
from curation.filter.opened import check, open_filter
from curation.filter.package.folder import TrustPackage
from curation.filter.run import Filtered, run_filter
from curation.selection import Candidates
from curation.selection.risk import calibrate
from curation.selection.top_n import TopN, sort_by_rank
from curation.storage.lease import guard_nothing
from curation.tables.schemas import get_state_column
from curation.trust import load_fitted
from tests import golden

NUM_ROWS, NUM_MORE, BAD = 400, 200, (3, 77)
SETTINGS = ("teacher.chunk_rows=64", "pool.columns=[url]", "ray.num_cpus=2")


@dataclass(frozen=True)
class Answers:
    """What the teacher says to rows, and their scores, without Ray or tables."""

    row_ids_N: Int64s
    labels: list[str | None]
    raw_N: np.ndarray[Any, Any]
    trust_N: np.ndarray[Any, Any]

    @property
    def usable_N(self) -> np.ndarray[Any, Any]:
        """The raw scores of rows that have a label, NaN for the others."""
        return np.where([label is None for label in self.labels], np.nan, self.raw_N)

    def ranks(self, row_ids: list[int]) -> dict[int, int]:
        """The rank of these rows among them."""
        taken_N = np.isin(self.row_ids_N, row_ids)
        ordered_n = sort_by_rank(self.row_ids_N[taken_N], self.raw_N[taken_N], 0)
        return {row_id: rank for rank, row_id in enumerate(ordered_n.tolist())}

    def top(self, n: int) -> set[int]:
        candidates = Candidates(row_ids_N=self.row_ids_N, raw_score_N=self.usable_N)
        return set(TopN().cut(candidates, n, 0).row_ids_n.tolist())


def answers(package: TrustPackage, row_ids_N: Int64s) -> Answers:
    table = states_of(row_ids_N.tolist()).combine_chunks()
    trust = load_fitted(package.trust)
    (batch,) = table.select(["row_id", get_state_column("output_last")]).to_batches()
    read = {" \\boxed{1}": "1", " \\boxed{2}": "2", COMPLETIONS[2]: None}
    labels = [read[text] for text in table["completion"].to_pylist()]
    order_N = np.searchsorted(table["row_id"].to_numpy(), row_ids_N)
    assert (order_N == np.arange(len(row_ids_N))).all()
    return Answers(row_ids_N, labels, trust.raw_score(batch), trust.score(batch))


def healthy(file: int, num_rows: int, bad: tuple[int, ...] = ()) -> Int64s:
    return np.delete(ids_of(file, num_rows), list(bad))


def go(package: str, pool: Path, output: Path, keep: dict[str, Any], *overrides: str, **how: Any) -> Filtered:
    given = {"package": package, "pool.path": str(pool), "output.path": str(output), "keep": keep}
    return run_filter(load_filter(None, (*SETTINGS, *overrides), given), **how)


def written(output: Path) -> pa.Table:
    """The rows of the files that the manifest names."""
    content = json.loads((output / "filter.json").read_text())
    files = [output / file["path"] for file in content["files"]]
    if content["data"] == "jsonl":
        return pa.Table.from_pylist([json.loads(line) for path in files for line in path.read_text().splitlines()])
    return pa.concat_tables(pq.read_table(path) for path in files)


def ranks_in(rows: pa.Table) -> dict[int, int]:
    """The rank of each written row by its raw score."""
    ordered_n = sort_by_rank(rows["row_id"].to_numpy(), rows["trust_raw"].to_numpy(), 0)
    return {row_id: rank for rank, row_id in enumerate(ordered_n.tolist())}


def row_ids(output: Path) -> set[int]:
    """The ids that are written, none of them twice."""
    ids = written(output)["row_id"].to_pylist()
    assert len(ids) == len(set(ids))
    return set(ids)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return make_package(tmp_path_factory.mktemp("package"))


@dataclass(frozen=True)
class Grown:
    """An output after a first file, and after a second one came."""

    pool: Path
    output: Path
    first: Filtered
    rows: pa.Table
    files: dict[str, int]
    again: Filtered
    second: Filtered
    both: pa.Table


@pytest.fixture(scope="module")
def grown(local_ray, package, tmp_path_factory):
    directory = tmp_path_factory.mktemp("filter")
    pool, output = directory / "pool", directory / "out"
    write_pool(pool / "a.jsonl", NUM_ROWS, bad=BAD)
    keep = {"share": 0.1}
    first = go(package.uri, pool, output, keep)
    rows = written(output)
    files = {path.name: path.stat().st_mtime_ns for path in (output / "data").iterdir()}
    again = go(package.uri, pool, output, keep)
    write_pool(pool / "b.jsonl", NUM_MORE, first=NUM_ROWS)
    second = go(package.uri, pool, output, keep)
    return Grown(pool, output, first, rows, files, again, second, written(output))


def test_the_rows_of_the_top_share_are_written_once_with_their_columns(grown, package):
    found = answers(package, healthy(0, NUM_ROWS, BAD))
    num = int(0.1 * (NUM_ROWS - len(BAD)))
    rows = grown.rows.sort_by("row_id")
    ids = rows["row_id"].to_pylist()
    assert len(ids) == num and set(ids) == found.top(num)
    assert rows.column_names == [
        "row_id", "problem", "difficulty", "url", "prompt", "completion", "label", "trust", "trust_raw", "source_file"
    ]  # fmt: skip
    place = {row_id: number for number, row_id in enumerate(found.row_ids_N.tolist())}
    for row in rows.to_pylist():
        number = place[row["row_id"]]
        assert row["url"] == f"https://example.org/{row['row_id']}" and row["label"] == found.labels[number]
        assert row["problem"] == f"What is {row['row_id']} + 1?" and row["problem"] in row["prompt"]
        assert row["trust"] == found.trust_N[number] and row["completion"] == f" \\boxed{{{row['label']}}}"
        assert row["source_file"] == str(grown.pool / "a.jsonl")
    assert ranks_in(rows) == found.ranks(ids)
    content = grown.first.content
    assert grown.first.did and grown.first.alarm is None
    assert (content["rows"], content["kept"]) == (NUM_ROWS, num)
    (told,) = content["rounds"]
    assert told["errors"] == {"null_field": len(BAD)} and told["labelled"] == NUM_ROWS - len(BAD)
    assert told["unparsed"] == sum(label is None for label in found.labels)
    assert content["cut"]["lowest_trust"] == pytest.approx(min(rows["trust"].to_pylist()))
    assert sum(file["rows"] for file in content["files"]) == num and all(file["rows"] for file in content["files"])


def test_the_cut_and_the_rows_are_those_on_record(grown):
    rows = {"first": grown.rows, "both": grown.both}
    names = ("lowest_trust", "num_dropped", "num_labelled", "num_scored", "num_short")
    found = {
        "cut": {name: grown.second.content["cut"][name] for name in names},
        "kept": {name: len(table) for name, table in rows.items()},
    }
    ranks = ranks_in(grown.rows)  # those of the cut, which later rows have not
    ranked = {
        name: table.append_column("rank", pa.array([ranks.get(row_id) for row_id in table["row_id"].to_pylist()]))
        for name, table in rows.items()
    }
    golden.compare("filter", found | {"selected": {name: golden.digest(table) for name, table in ranked.items()}})


def test_nothing_new_is_nothing_to_do(grown):
    assert not grown.again.did and grown.again.content == grown.first.content


def test_what_is_done_and_what_waits_is_told_without_ray(grown, package, tmp_path):
    out = str(grown.output)

    def told(*arguments: str) -> str:
        result = CliRunner().invoke(main, [*arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    kept = grown.second.content["rounds"][1]["kept"]
    first, *_, last = told("status", out).splitlines()
    assert first == f"{out}: not running" and last.startswith(f"cut {grown.second.content['cut']['id']} (share 0.1)")
    assert f"200 labelled, 0 error rows; {kept} pass cut" in told("status", out)
    settings = [part for key in SETTINGS for part in ("--set", key)]
    command = ("filter", package.uri, str(grown.pool), "-o", out, "--keep", "0.1", "--recut", *settings)
    planned = told(*command, "--plan")
    assert planned.startswith("pool: 600 rows in 2 files\n")
    assert "changed: rounds" in planned and "waits for cut" in planned
    found = json.loads(told("status", out, "--json"))
    assert [item["kept"] for item in found["written"]["rounds"]][1] == kept
    files = sorted((grown.output / "data").iterdir())
    assert "label-0001" in told("inspect", out) and "200 rows" in told("inspect", out, "label-0001")
    told("clean", out, "--older-than", "0")
    assert sorted((grown.output / "data").iterdir()) == files
    nothing = told("status", out)
    assert "has to run again" not in nothing


def test_new_files_pass_the_kept_cut_and_are_added(grown, package):
    content, first = grown.second.content, grown.first.content
    assert content["cut"] == first["cut"] and content["cut"]["rounds"] == ["0000"]
    new = answers(package, ids_of(1, NUM_MORE))
    lowest = min(answers(package, healthy(0, NUM_ROWS, BAD)).raw_N[
        np.isin(healthy(0, NUM_ROWS, BAD), grown.rows["row_id"].to_numpy())
    ])  # fmt: skip
    passing = set(new.row_ids_N[new.usable_N >= lowest].tolist())
    assert passing and len(passing) != int(0.1 * NUM_MORE)  # the cut is the first round's, not a share of the second
    rounds = {item["round"]: item for item in content["rounds"]}
    assert rounds["0000"] == first["rounds"][0]
    assert rounds["0001"]["rows"] == NUM_MORE and rounds["0001"]["kept"] == len(passing)
    added = [file for file in content["files"] if file["round"] == "0001"]
    assert sum(file["rows"] for file in added) == len(passing)
    assert set(grown.both["row_id"].to_pylist()) == set(grown.rows["row_id"].to_pylist()) | passing
    assert grown.both.num_rows == grown.rows.num_rows + len(passing)
    assert [file for file in content["files"] if file["round"] == "0000"] == first["files"]


def test_a_recut_writes_everything_again_in_any_format_and_labels_nothing(grown, package):
    everything = answers(package, np.concatenate([healthy(0, NUM_ROWS, BAD), ids_of(1, NUM_MORE)]))
    labels = sorted(grown.output.glob("_curation/label-*/labels.lance/data/*"))
    for form, n in (("parquet", 33), ("jsonl", 50), ("parquet", 33)):
        found = go(package.uri, grown.pool, grown.output, {"n": n}, f"output.format={form}", recut=True)
        assert row_ids(grown.output) == everything.top(n), form
        rows = written(grown.output)
        assert ranks_in(rows) == everything.ranks(rows["row_id"].to_pylist())
        content = found.content
        assert content["cut"]["rule"] == {"n": n} and content["cut"]["rounds"] == ["0000", "0001"]
        named = {Path(file["path"]).name for file in content["files"]}
        assert {path.name for path in (grown.output / "data").iterdir()} == named
        for file in content["files"]:
            data = (grown.output / file["path"]).read_bytes()
            assert (file["bytes"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert sorted(grown.output.glob("_curation/label-*/labels.lance/data/*")) == labels
    with pytest.raises(ConfigError, match=r"was cut by n 33, and is to be by share 0\.2; --recut"):
        go(package.uri, grown.pool, grown.output, {"share": 0.2})


def test_a_threshold_is_one_of_trust(grown, package):
    everything = answers(package, np.concatenate([healthy(0, NUM_ROWS, BAD), ids_of(1, NUM_MORE)]))
    usable_N = ~np.isnan(everything.usable_N)
    trust = float(np.sort(everything.trust_N[usable_N])[-20])  # exactly a row's: it passes
    go(package.uri, grown.pool, grown.output, {"threshold": trust}, recut=True)
    expected = everything.row_ids_N[usable_N & (everything.trust_N >= np.float32(trust))]
    assert row_ids(grown.output) == set(expected.tolist()) and len(expected) == 20
    before = (grown.output / "filter.json").read_text()
    with pytest.raises(BudgetError, match=r"nothing is written: no row has a trust of at least 0\.999, the highest"):
        go(package.uri, grown.pool, grown.output, {"threshold": 0.999}, recut=True)
    assert (grown.output / "filter.json").read_text() == before


def test_a_certified_cut_is_that_of_the_calibration_rows(grown, package, tmp_path):
    everything = answers(package, np.concatenate([healthy(0, NUM_ROWS, BAD), ids_of(1, NUM_MORE)]))
    graded = package.calibration()
    cut = calibrate(graded.raw_M, graded.correct_M, everything.usable_N, alpha=0.25, delta=0.1)
    assert cut.threshold is not None
    found = go(package.uri, grown.pool, grown.output, {"certified": {"alpha": 0.25}}, recut=True)
    assert row_ids(grown.output) == set(everything.row_ids_N[everything.usable_N >= cut.threshold].tolist())
    assert found.content["cut"]["risk"]["guarantee"] == cut.guarantee
    fresh = tmp_path / "calibration.parquet"
    columns = {"raw": graded.raw_M, "trust": graded.trust_M, "correct": np.zeros(len(graded.raw_M), np.bool_)}
    pq.write_table(pa.table(columns), fresh)
    rule = {"certified": {"alpha": 0.25, "calibration": str(fresh)}}
    with pytest.raises(ConfigError, match="--recut"):
        go(package.uri, grown.pool, grown.output, rule)
    with pytest.raises(BudgetError, match=r"nothing is written: 600 calibration rows certify no cut at alpha 0\.25"):
        go(package.uri, grown.pool, grown.output, rule, recut=True)
    pq.write_table(pa.table({"raw": graded.raw_M, "correct": graded.correct_M}), fresh)
    with pytest.raises(SourceError, match=r"calibration\.parquet: column 'trust' is missing"):
        go(package.uri, grown.pool, grown.output, rule, recut=True)


def test_a_shifted_pool_raises_an_alarm_with_an_exit_code_of_its_own(local_ray, tmp_path):
    package = make_package(tmp_path, shift=5.0)
    write_pool(tmp_path / "pool.jsonl", 200)
    pool, output = tmp_path / "pool.jsonl", tmp_path / "out"
    with pytest.raises(ShiftError, match=r"round 0000: The hidden states differ \(severe.*Nothing of it was written"):
        go(package.uri, pool, output, {"n": 20}, "on_shift=fail")
    assert not (output / "data").exists() and not (output / "filter.json").exists()
    command = ["filter", package.uri, str(pool), "-o", str(output), "--keep", "20"]
    for setting in SETTINGS:
        command += ["--set", setting]
    for _ in range(2):  # the same command again has nothing to do, and the same exit code
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 3, result.output
        assert "curate: shift: The hidden states differ (severe" in result.stderr
        assert "kept: 20 (10.00 % of the labelled)" in result.stdout
    assert "nothing to do" in result.stdout
    content = json.loads((output / "filter.json").read_text())
    assert content["rounds"][0]["shift"]["alarm"] and len(row_ids(output)) == 20
    assert CliRunner().invoke(main, [*command, "--on-shift", "ignore"]).exit_code == 0


def test_a_minority_of_foreign_rows_that_are_trusted_most_raises_the_alarm(local_ray, tmp_path):
    """A tenth of the pool lies further along the line than any labelled row, and has the most trust."""
    package, pool = make_package(tmp_path, below=0.9), tmp_path / "pool.jsonl"
    write_pool(pool, 1000)
    with pytest.raises(ShiftError, match=r"rows are unlike any labelled one.*Nothing of it was written"):
        go(package.uri, pool, tmp_path / "out", {"share": 0.2}, "on_shift=fail")
    found = go(package.uri, pool, tmp_path / "out", {"share": 0.2})
    (item,) = found.content["rounds"]
    assert item["shift"]["auc"]["low"] < 0.6 and item["shift"]["alarm"]  # an AUC does not see it
    assert 0.05 < item["shift"]["foreign"]["share"]["value"] < 0.13
    assert item["shift"]["passing"]["share"]["value"] > 0.2  # half of what is kept
    assert "that pass the cut are unlike the labelled rows that pass it" in found.alarm
    shown = CliRunner().invoke(main, ["status", str(tmp_path / "out")])
    assert "round 0000: shift: ALARM: " in shown.output, shown.output


def test_rows_that_cannot_be_used_have_a_limit_of_their_own(local_ray, package, tmp_path):
    pool, output = tmp_path / "pool", tmp_path / "out"
    write_pool(pool / "a.jsonl", 40, bad=BAD[:1])
    told = r"^pool: 1 of 40 rows cannot be used \(null_field 1\), more than pool.max_error_rate 0.02; `curate inspect"
    with pytest.raises(SourceError, match=told):
        go(package.uri, pool, output, {"n": 5}, "pool.max_error_rate=0.02")
    assert not list(output.glob("_curation/label-*"))
    done = go(package.uri, pool, output, {"n": 5}, "teacher.max_error_rate=0")  # of rows that were asked
    assert sum(file["rows"] for file in json.loads((output / "filter.json").read_text())["files"]) == 5, done


def test_inputs_that_do_not_fit_are_refused_with_both_values(grown, package, tmp_path):
    pool, out = tmp_path / "pool", tmp_path / "out"
    write_pool(pool / "a.jsonl", 5)
    other = make_package(tmp_path, shift=1.0)

    def refused(error: type[Exception], match: str, *overrides: str, at: Path = out, using: Any = package) -> None:
        with pytest.raises(error, match=match):
            go(using.uri, pool, at, {"n": 2}, *overrides)

    refused(PackageError, "backend scripted, and teacher.backend is transformers", "teacher.backend=transformers")
    refused(PackageError, "backend scripted, which has no weights", f"teacher.model.path={package.uri}")
    refused(SourceError, r"a\.jsonl: has no column 'text' \(it has: problem, url", "pool.columns=[text]")
    with pytest.raises(RunDirError, match=f"digest {package.digest}, and {other.uri} has {other.digest}"):
        go(other.uri, grown.pool, grown.output, {"n": 2})
    with pytest.raises(RunDirError, match="was filtered with seed 0, and it is 1 now"):
        go(package.uri, grown.pool, grown.output, {"n": 2}, "seed=1")
    with pytest.raises(SourceError, match=r"a\.jsonl: was read when this run began and is gone"):
        go(package.uri, pool, grown.output, {"n": 2})
    foreign = tmp_path / "foreign"
    write_pool(foreign / "mine.jsonl", 1)
    refused(RunDirError, r"holds files that no filter wrote \(mine\.jsonl\)", at=foreign)
    refused(ConfigError, r"out and the pool \(.*pool\) lie in each other", at=pool / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="empty: the folder holds no files"):
        go(package.uri, tmp_path / "empty", out, {"n": 2})
    assert not (out / "data").exists() and not (out / "filter.json").exists()


def test_a_filter_for_which_the_cluster_has_no_room_writes_nothing(local_ray, package, tmp_path):
    write_pool(tmp_path / "pool" / "a.jsonl", 5)
    with pytest.raises(ClusterError, match=r"teacher\.actors asks for a worker of 500 CPU"):
        go(package.uri, tmp_path / "pool", tmp_path / "out", {"n": 2}, "teacher.actors.num_cpus=500")
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.parent.name != "lease"]
    assert written == []


def test_a_file_that_was_replaced_before_its_rows_were_read_is_refused(local_ray, package, tmp_path):
    pool, out = tmp_path / "pool", tmp_path / "out"
    write_pool(path := pool / "a.jsonl", 50)
    given = {"package": package.uri, "pool.path": str(pool), "output.path": str(out), "keep": {"n": 2}}
    config = load_filter(None, SETTINGS, given)
    open_filter(config, *check(config), recut=False, guard=guard_nothing).save()  # and the driver dies here
    found = path.stat()
    path.write_text(path.read_text().replace("is", "IS"))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert path.stat().st_size == found.st_size
    with pytest.raises(SourceError, match="its size and time are the same, but its bytes differ"):
        run_filter(config)
    assert not (out / "data").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep", "0"], "--keep: '0' is neither a share between 0 and 1 nor a whole number of rows"),
        (["--keep", "1.5"], "--keep: '1.5' is neither"),
        (["--keep", "0.1", "--threshold", "0.9"], "--keep and --threshold are two rules; give one"),
        (["--threshold", "1.5"], "keep.threshold: 1.5"),
        (["--certified", "0"], "keep.certified.alpha"),
        ([], "no rule for the rows to keep is given"),
        (["--keep", "5", "--set", "pool.id_column=id"], "ids are positions here"),
        (["--keep", "5", "--set", "pool.columns=[label]"], "'label' is a column that the filter writes itself"),
        (["--keep", "5", "--set", "output.formt=lance"], "did you mean 'format'"),
        (["--keep", "5"], "is not a trust package"),
    ],
)
def test_the_command_line_refuses(tmp_path, options, message):
    command = ["filter", str(tmp_path), str(tmp_path / "pool"), "-o", str(tmp_path / "out"), *options]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
