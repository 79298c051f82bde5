"""``curate filter`` with a cascade: rows dropped after their prompt, what it saves, what it refuses, later starts."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from filter_package import COMPLETIONS, STATES, ids_of, make_package, matrix, states_of, write_pool

from benchmarks.recorded import recorded
from curation.cli import main
from curation.commands.filter import describe_filtered
from curation.config.filter import FilterConfig
from curation.config.load import load_filter
from curation.errors import ConfigError, PackageError
from curation.extras.first_cut.gate import FirstCutRule, settle
from curation.extras.first_cut.threshold import find_first_cut, read_held_out
from curation.extras.plan.filters import make_askings
from curation.filter.described import FilterInputs
from curation.filter.opened import look
from curation.filter.package.folder import TrustPackage, load
from curation.filter.run import Filtered, run_filter
from curation.filter.stages.cut import ThresholdCut
from curation.filter.stages.pool_shift import ComparePool
from curation.refs import TableRef
from curation.registry import BACKENDS
from curation.selection import Candidates
from curation.selection.bound import Bound
from curation.selection.top_n import TopN
from curation.tables import io
from curation.tables.schemas import get_state_column
from curation.trust import load_fitted

pytestmark = pytest.mark.long

SETTINGS = ("teacher.chunk_rows=64", "ray.num_cpus=2")

NUM_ROWS, NUM_MORE = 400, 200
WORDS = 40
LONG = (*(" so" * (WORDS - 1) + text for text in COMPLETIONS[:2]), COMPLETIONS[2])
"""Answers of 40 words, and one of two from which no label is read."""


def go(package: str, pool: Path, output: Path, *overrides: str, keep: dict[str, Any], **how: Any) -> Filtered:
    given = {"package": package, "pool.path": str(pool), "output.path": str(output), "keep": keep}
    return run_filter(load_filter(None, (*SETTINGS, *overrides), given), **how)


CASCADE = ("cascade.loss=0.05", "cascade.confidence=0.9")


def row_ids(output: Path) -> set[int]:
    """The ids that are written."""
    files = json.loads((output / "filter.json").read_text())["files"]
    return {row for file in files for row in pq.read_table(output / file["path"])["row_id"].to_pylist()}


def labels_of(output: Path) -> Any:
    """The labels of all rounds, with their columns of the first cut."""
    stages = recorded(output / "_curation")
    refs = [TableRef.from_json(made["outputs"]["labels"]) for name, made in stages.items() if name.startswith("label-")]
    return [io.read(ref).to_pandas() for ref in refs]


def full_pass(uri: str) -> tuple[set[int], dict[int, int]]:
    """What the full pass keeps of the first file, and the words of each answer: without Ray, tables or a first cut."""
    ids_N = ids_of(0, NUM_ROWS)
    table = states_of(ids_N.tolist()).combine_chunks()
    (batch,) = table.select(["row_id", "state_output_last"]).to_batches()
    raw_N = load_fitted(load(uri).trust).raw_score(batch)
    chosen = [COMPLETIONS.index(text) for text in table["completion"].to_pylist()]
    raw_N[[place == 2 for place in chosen]] = np.nan
    kept = TopN().cut(Candidates(row_ids_N=ids_N, raw_score_N=raw_N), NUM_ROWS // 10, 0).row_ids_n
    return set(kept.tolist()), dict(zip(ids_N.tolist(), (len(LONG[place].split()) for place in chosen), strict=True))


@dataclass(frozen=True)
class Cascaded:
    """An output after a first file, and after a second one came."""

    uri: str
    pool: Path
    output: Path
    first: Filtered
    rows: set[int]
    second: Filtered


@pytest.fixture(scope="module")
def cascaded(local_ray, tmp_path_factory):
    directory = tmp_path_factory.mktemp("cascade")
    package = make_package(directory, completions=LONG, answer_words=WORDS)
    pool, output = directory / "pool", directory / "out"
    write_pool(pool / "a.jsonl", NUM_ROWS)
    first = go(package.uri, pool, output, *CASCADE, keep={"share": 0.1})
    rows = row_ids(output)
    write_pool(pool / "b.jsonl", NUM_MORE, first=NUM_ROWS)
    second = go(package.uri, pool, output, *CASCADE, keep={"share": 0.1})
    return Cascaded(package.uri, pool, output, first, rows, second)


def test_dropped_rows_are_counted_and_the_best_rows_are_those_of_the_full_pass(cascaded):
    content, (labels, _) = cascaded.first.content, labels_of(cascaded.output)
    dropped = labels[labels["dropped"]]
    told = content["first_cut"]
    assert told["dropped"] == len(dropped) and 0.6 * NUM_ROWS < len(dropped) <= 0.95 * NUM_ROWS
    assert dropped[["label", "completion", "error"]].isna().all().all() and (dropped["num_output_tokens"] == 0).all()
    assert content["cut"]["num_dropped"] == len(dropped) and content["cut"]["num_labelled"] == NUM_ROWS - len(dropped)
    (rnd,) = content["rounds"]
    assert rnd["labelled"] + rnd["first_cut"]["dropped"] == rnd["rows"] == NUM_ROWS and rnd["errors"] == {}
    full, _ = full_pass(cascaded.uri)
    assert len(full) == 40 == content["kept"]  # a share of the pool: dropped rows count
    assert len(full - cascaded.rows) <= 0.05 * 40
    assert not rnd["shift"]["alarm"]  # both sides of the test are those that pass the first cut


def test_the_summary_says_what_was_dropped_and_what_is_guaranteed(cascaded):
    told, (labels, _) = cascaded.first.content["first_cut"], labels_of(cascaded.output)
    _, words = full_pass(cascaded.uri)
    assert set(words[row] for row in labels["row_id"][labels["dropped"]]) == {2, WORDS}
    lines = "\n".join(describe_filtered(cascaded.first, "home"))
    assert f"{told['dropped']:,} dropped after their prompt" in lines and "of the labelled and dropped" in lines
    assert "first cut on: about" in lines and f"first cut: {told['dropped']:,} of {NUM_ROWS} rows were dropped" in lines
    assert "at most 0.05 of the rows that the full pass would select" in lines


def test_a_forecast_says_that_it_leaves_the_first_cut_out(cascaded):
    given = {"package": cascaded.uri, "pool.path": str(cascaded.pool), "output.path": str(cascaded.output / "other")}
    opened = look(load_filter(None, (*SETTINGS, *CASCADE), {**given, "keep": {"share": 0.1}}))
    left = {name: rnd.label.num_rows for name, rnd in opened.described.rounds.items()}
    (asking, *_) = make_askings(opened, left, opened.package)
    saved = cascaded.first.content["first_cut"]["found"]["saved"]
    assert 0.5 < saved["low"] < saved["value"] < saved["high"] < 1
    assert f"saves {saved['value']:.1%} of its tokens ({saved['low']:.1%} to {saved['high']:.1%})" in asking.note


def test_new_files_pass_the_same_first_cut(cascaded):
    content, (old, new) = cascaded.second.content, labels_of(cascaded.output)
    assert len(old) == NUM_ROWS and len(new) == NUM_MORE
    threshold = content["first_cut"]["found"]["threshold"]
    assert threshold == cascaded.first.content["first_cut"]["found"]["threshold"]
    assert (new["first_cut_raw"] < threshold).tolist() == new["dropped"].tolist() and new["dropped"].any()
    assert content["first_cut"]["dropped"] == old["dropped"].sum() + new["dropped"].sum()
    assert cascaded.rows <= row_ids(cascaded.output)


def test_a_cut_that_is_made_again_labels_nothing_and_keeps_no_more_than_the_first_cut_allows(cascaded):
    before = {path.name for path in (cascaded.output / "_curation").iterdir() if path.name.startswith("label-")}
    how = {"recut": True}
    with pytest.raises(ConfigError, match=r"keep\.share: keeps rows that the first cut .*share 0\.1.*another output"):
        go(cascaded.uri, cascaded.pool, cascaded.output, *CASCADE, keep={"share": 0.2}, **how)
    with pytest.raises(ConfigError, match=r"keep\.threshold: keeps rows that the first cut of this output"):
        go(cascaded.uri, cascaded.pool, cascaded.output, *CASCADE, keep={"threshold": 0.5}, **how)
    found = go(cascaded.uri, cascaded.pool, cascaded.output, *CASCADE, keep={"n": 30}, **how)
    assert found.content["kept"] == 30 and found.content["first_cut"]["share"] == 0.1
    after = {path.name for path in (cascaded.output / "_curation").iterdir() if path.name.startswith("label-")}
    assert after == before
    again = go(cascaded.uri, cascaded.pool, cascaded.output, *CASCADE, keep={"n": 30})
    assert not again.did and again.content == found.content
    other = ("cascade.loss=0.2", "cascade.confidence=0.9")
    found = go(cascaded.uri, cascaded.pool, cascaded.output, *other, keep={"n": 30})
    assert found.did and found.content["first_cut"]["loss"] == 0.2 and found.content["kept"] == 30
    events = [json.loads(line) for line in (cascaded.output / "_curation/events.jsonl").read_text().splitlines()]
    why = [event["why"] for event in events if event["event"] == "started" and event["stage"] == "label-0000"]
    assert len(why) == 2 and why[1].startswith("changed: first_cut.goal.loss was 0.05, is 0.2")


def test_one_that_saves_nothing_says_so_with_numbers_and_is_off(local_ray, tmp_path):
    package = make_package(tmp_path, completions=COMPLETIONS, answer_words=1)
    write_pool(tmp_path / "pool.jsonl", 60)
    assert package.description.cascade.cut["threshold"] is None
    command = ["filter", package.uri, str(tmp_path / "pool.jsonl"), "-o", str(tmp_path / "out"), "--keep", "0.1"]
    for setting in (*SETTINGS, "ray.address=auto"):
        command += ["--set", setting]
    result = CliRunner().invoke(main, [*command[:-2], "--cascade"])
    assert result.exit_code == 0, result.output
    line = "first cut off: it would save"
    assert line in result.stdout and line in result.stderr and "(prompts of 20 tokens, answers of 1)" in result.stdout
    content = json.loads((tmp_path / "out/filter.json").read_text())
    assert content["first_cut"]["dropped"] == 0 and content["first_cut"]["found"]["off"] in result.stdout
    (labels,) = labels_of(tmp_path / "out")
    assert "dropped" not in labels and labels["label"].notna().any()
    assert not go(package.uri, tmp_path / "pool.jsonl", tmp_path / "out", keep={"share": 0.1}).did  # the same labels


def test_the_shift_test_compares_the_rows_that_pass_on_both_sides(tmp_path):
    package = make_package(tmp_path, completions=LONG, answer_words=WORDS)
    threshold = package.description.cascade.cut["threshold"]
    table = states_of(range(4000), states=STATES)
    cut = FirstCutRule(function=package.functions["cascade"], threshold=threshold)
    passes_N = cut.load_test().passes({name: matrix(table, name) for name in STATES})
    assert 0.05 < passes_N.mean() < 0.3
    columns = {"row_id": table["row_id"]}
    for name in STATES:
        states = [row if kept else None for row, kept in zip(matrix(table, name), passes_N, strict=True)]
        columns[get_state_column(name)] = pa.array(states, pa.list_(pa.float32()))
    columns |= {"label": ["1"] * len(table), "trust_raw": pa.nulls(len(table), pa.float32())}
    labels = io.write(pa.table(columns), str(tmp_path / "labels"))
    threshold = ThresholdCut(column="trust_raw", bound=Bound(score=0.0, tie=0, seed=0, num_selected=0)).to_json()
    how = {"name": "shift", "labels": labels, "examples": labels, "threshold": threshold, "function": "trust"}
    how |= {"package": "", "seed": 0, "uri": package.uri, "allow_code": ()}
    assert not ComparePool(**how, gate=cut).measure()["alarm"]
    assert ComparePool(**how).measure()["alarm"]  # the same rows beside all of the package's


def test_the_threshold_of_a_rule_by_trust_is_set_on_the_held_out_rows_of_that_trust(cascaded, tmp_path):
    package = load(cascaded.uri)
    rows = read_held_out(package)
    trust_M = load_fitted(package.trust).to_trust(rows.full_M.astype(np.float32))
    threshold = float(np.nanquantile(trust_M, 0.9))
    config = load_filter(
        None, CASCADE, {"package": cascaded.uri, "pool.path": "p", "output.path": "o", "keep": {"threshold": threshold}}
    )
    found = settle(inputs_of(config, package))
    evidence = found.collect([], True)["first_cut"]["found"]
    best = np.sort(rows.first_M[trust_M >= np.float32(threshold)])
    assert found.rule.goal == {"trust": threshold, "loss": 0.05, "confidence": 0.9}
    assert evidence["num_selected"] == len(best) and evidence["threshold"] in best[: int(0.05 * len(best)) + 1]
    own = find_first_cut(rows, keep=0.25, loss=0.05, confidence=0.9)
    given = {"package": "x", "pool.path": "p", "output.path": "o", "keep": {"n": 25}}
    assert settle(inputs_of(load_filter(None, CASCADE, given), package)).rule.threshold == own["threshold"]


def inputs_of(config: FilterConfig, package: TrustPackage) -> FilterInputs:
    """What a filter over 100 rows gives its feature at its first start."""
    return FilterInputs(
        section=config.cascade, config=config, package=package, rounds={"0000": 100}, cut_rounds=None, labelled={}
    )


@pytest.mark.parametrize(
    ("keep", "setting", "message"),
    [
        ({"share": 0.1}, "cascade.loss=1.5", r"cascade\.loss: 1\.5"),
        ({"share": 0.1}, "cascade.confidence=0", r"cascade\.confidence: 0"),
        (
            {"certified": {"alpha": 0.1}},
            "cascade.loss=0.01",
            "calibration rows have not passed the first cut",
        ),
        ({"n": 600}, "cascade.loss=0.01", r"keep\.n 600 is all of the pool's 600 rows"),
    ],
)
def test_what_a_cascade_cannot_be_is_refused(cascaded, tmp_path, keep, setting, message):
    with pytest.raises(ConfigError, match=message):
        go(cascaded.uri, cascaded.pool, tmp_path / "out", setting, keep=keep)


def test_a_package_without_one_and_a_teacher_that_knows_none_are_refused(cascaded, tmp_path, monkeypatch):
    bare = make_package(tmp_path)
    with pytest.raises(PackageError, match=r"holds no first cut.*teacher\.states: \[prompt_last, output_last\]"):
        go(bare.uri, cascaded.pool, tmp_path / "out", *CASCADE, keep={"share": 0.1})
    assert not (tmp_path / "out/_curation/manifest.json").exists()
    own = BACKENDS["scripted"].__class__("test_filter_cascade:Ungated", weights=False)
    monkeypatch.setitem(BACKENDS._entries, "scripted", own)
    with pytest.raises(ConfigError, match="the backend scripted does not support a first cut"):
        go(cascaded.uri, cascaded.pool, tmp_path / "out", *CASCADE, keep={"share": 0.1})


class Ungated:
    """A teacher without gates."""

    def label(self, requests, decoding, *, seed, states=True):
        """As ``Teacher.label``, without a gate."""
