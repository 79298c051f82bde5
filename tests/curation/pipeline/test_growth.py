"""What a run that grows deals, keeps and refuses, on graphs whose work is made up."""

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from built import saved_run
from test_changes import answers_of, made_up

from curation.commands.validate import check
from curation.config import RunConfig
from curation.errors import RunDirError, SourceError
from curation.pipeline.growth import find_deals, iter_prepare_records
from curation.pipeline.opened import open_run
from curation.rundir.graph import Stage
from curation.rundir.manifest import Manifest
from curation.rundir.run import Run
from curation.rundir.status import iter_statuses
from curation.sources import make_assignment
from curation.stages.prepare import Prepare

ROOT = Path(__file__).parents[3]
PUZZLES = str(ROOT / "examples/data/puzzles.parquet")
CONFIG = {
    "name": "growing",
    "sources": {"puzzles": {"path": PUZZLES}},
    "splits": {"source": {"from": "puzzles", "rows": 30}, "pool": {"from": "puzzles", "rows": 40}},
    "teacher": {"model": {"path": str(ROOT / "examples/bases/teacher")}},
    "selection": {"budget": {"n": 10}, "arms": ["naive", "trust"]},
}
TEST = {"splits.test": {"from": "puzzles", "rows": 20}}
PROBE = {"splits.probes": {"near": {"from": "puzzles", "rows": 25, "regime": "ID"}}}
OTHER = {"sources.others": {"path": PUZZLES}}
STUDENTS = {
    "generations": [{"student": {"path": str(ROOT / "examples/bases/student")}}],
    "student": {"preset": "scratch", "epochs": 1},
}
OF_PROBE = {"prepare-1", "label-probe-near", "grade-probe-near", "score-probe-near"}


def load(directory: Path, *changes: Mapping[str, Any]) -> RunConfig:
    config: dict[str, Any] = copy.deepcopy(CONFIG) | {"run_dir": str(directory / "run")}
    for change in changes:
        for path, value in change.items():
            *sections, key = path.split(".")
            section = config
            for name in sections:
                section = section.setdefault(name, {})
            section[key] = copy.deepcopy(value)
            if value is None:
                del section[key]
    return RunConfig.model_validate(config)


def work(stage: Stage) -> None:
    """Make up the work of a stage, and of one that deals splits the tables of those that it deals."""
    made_up(stage)
    do, dealt = stage.do, set[str]()
    if isinstance(stage, Prepare):
        dealt = set(stage.config.splits.named()) - set(stage.inputs.get("before", ()))

    def doing(*args: Any) -> Any:
        done = do(*args)
        if dealt:
            done.outputs["tables"] = {name: {"uri": f"{stage.name}-{name}", "version": 1} for name in dealt}
        done.outputs.update(go_on=True, num_trained=1)
        return done

    object.__setattr__(stage, "do", doing)


def run(config: RunConfig) -> set[str]:
    """Do what is missing; the stages that were done."""
    opened = saved_run(config)
    before = dict(opened.manifest.stages)
    for stage in opened.chain.stages:
        work(stage)
    Run(config.name, opened.manifest, room=lambda: {"CPU": 2.0}).do(opened.chain.stages)
    after = Manifest.load(config.directory).stages
    assert {status.state for status in open_run(config).statuses} == {"done"}
    return {name.removeprefix("gen-0/") for name, record in after.items() if record != before.get(name)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run without test split or students."""
    directory = tmp_path_factory.mktemp("growing")
    assert "prepare" in run(load(directory))
    return directory


@pytest.fixture
def home(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path, dirs_exist_ok=True)


def places(config: RunConfig) -> dict[str, set[int]]:
    """The positions of the rows of each split in its source."""
    opened = open_run(config)
    files = opened.manifest.source_files
    found = {}
    for source in config.sources:
        dealt = make_assignment(config, source, files[source], opened.deals.taken(files))
        split_N = dealt.split_of(np.arange(sum(file.num_rows for file in files[source])))
        found |= {name: set(np.flatnonzero(split_N == place)) for place, name in enumerate(dealt.counts)}
    return found


@pytest.mark.parametrize(
    ("changes", "done"),
    [
        ([PROBE], OF_PROBE),
        ([OTHER, {"splits.probes": {"near": {"from": "others", "fraction": 0.001, "regime": "ID"}}}], OF_PROBE),
        ([OTHER], set()),
        (
            [TEST, STUDENTS],
            {"prepare-1", "length-pool", "student-naive", "student-trust"}
            | answers_of(["teacher", "base", "naive", "trust"]),
        ),
    ],
    ids=["probe", "source", "unused source", "test"],
)
def test_what_is_added_is_dealt_and_answered_and_nothing_else_is_done_again(home: Path, changes: Any, done: set[str]):
    before, kept = places(load(home)), Manifest.load(home / "run").stages["prepare"]
    grown = load(home, *changes)
    assert run(grown) == done
    after = places(grown)
    assert {name: after[name] for name in before} == before
    shared = {name: rows for name, rows in after.items() if grown.splits.named()[name].source == "puzzles"}
    assert len(set().union(*shared.values())) == sum(map(len, shared.values()))
    assert Manifest.load(home / "run").stages["prepare"] == kept
    assert run(grown) == set()


def test_a_test_split_is_added_to_finished_students(tmp_path: Path):
    done = run(load(tmp_path, STUDENTS))
    assert {"student-naive", "student-trust"} <= done and not any("test" in name for name in done)
    assert run(load(tmp_path, STUDENTS, TEST)) == {"prepare-1"} | answers_of(["teacher", "base", "naive", "trust"])


@pytest.mark.long
def test_a_test_split_is_added_to_a_chain(tmp_path: Path):
    """The next generation's check that nothing was trained on looks at the new split, and what was made stays."""
    chain = {**STUDENTS, "generations": STUDENTS["generations"] * 2, "chain.arms": ["trust"]}
    run(load(tmp_path, chain, TEST))
    done = run(load(tmp_path, chain, TEST, PROBE))
    of_next = {"gen-1/held-out", *(f"gen-1/{name}" for name in OF_PROBE - {"prepare-1"})}
    assert done == OF_PROBE | of_next


def test_a_run_grows_again_and_its_earlier_growth_stays(home: Path):
    run(load(home, PROBE))
    record, before = Manifest.load(home / "run").stages["prepare-1"], places(load(home, PROBE))
    both = load(home, PROBE, TEST, STUDENTS)
    done = run(both)
    assert "prepare-2" in done and not {"prepare", "prepare-1", "label-pool", "label-probe-near"} & done
    assert Manifest.load(home / "run").stages["prepare-1"] == record
    assert {name: rows for name, rows in places(both).items() if name != "test"} == before
    assert [record.name for record in iter_prepare_records(Manifest.load(home / "run"))] == [
        "prepare",
        "prepare-1",
        "prepare-2",
    ]


def test_how_shared_questions_were_handled_stays_when_the_new_splits_are_handled_otherwise(home: Path):
    assert run(load(home, PROBE, {"splits.overlap": "drop"})) == OF_PROBE
    manifest = Manifest.load(home / "run")
    modes = [manifest.stages[name].inputs["config"]["splits"].get("overlap") for name in ("prepare", "prepare-1")]
    assert modes == [None, "drop"]  # refuse is the default


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, "seed was 0, is 1"),
        ({"splits.pool": {"from": "puzzles", "rows": 41}}, "splits.pool.rows was 40, is 41"),
        (
            {"sources.others": {"path": PUZZLES}, "splits.pool": {"from": "others", "rows": 40}},
            "splits.pool.source was",
        ),
        ({"splits.probes": None}, "splits.probes.near was"),
        ({"sources.puzzles": {"path": PUZZLES, "id_column": "n"}}, "sources.puzzles.id_column was not set, is n"),
        ({"splits.audit": True}, "splits.audit was not set, is True"),
    ],
)
def test_what_was_dealt_cannot_be_changed(home: Path, change: dict[str, Any], words: str):
    run(load(home, PROBE))
    before = (home / "run" / "manifest.json").read_bytes()
    changed = load(home, PROBE, TEST, change)
    for look in (lambda: saved_run(changed), lambda: list(check(changed))):
        with pytest.raises(RunDirError, match="belongs to another configuration") as caught:
            look()
        told = str(caught.value)
        assert words in told and "splits.test" not in told and "splits and sources can only be added" in told
        assert "another name or run_dir, or undo the change" in told
    assert (home / "run" / "manifest.json").read_bytes() == before


def test_a_source_that_was_dealt_from_is_not_taken_away(home: Path):
    of_others = {name: {"from": "others", "rows": rows} for name, rows in (("source", 30), ("pool", 40))}
    with pytest.raises(RunDirError, match=r"sources\.puzzles was .*, is not set"):
        saved_run(load(home, OTHER, {"sources.puzzles": None, "splits": of_others}))
    run(load(home, OTHER))
    assert run(load(home)) == set()  # nothing was dealt from the other one


def test_a_split_that_asks_for_more_than_is_left_is_told_how_much_is_left(home: Path):
    rows = open_run(load(home)).manifest.source_files["puzzles"][0].num_rows
    for config in (load(home, {**TEST, "splits.test": {"from": "puzzles", "rows": rows}}),):
        with pytest.raises(SourceError) as caught:
            saved_run(config)
        told = str(caught.value)
        assert f"splits ask for {rows} rows of source 'puzzles' (test {rows})" in told
        assert f"has {rows}, of which {rows - 70} are left (source 30, pool 40 were assigned before, and stay)" in told
        assert "another source" in told
    assert run(load(home, {"splits.test": {"from": "puzzles"}})) == {"prepare-1"}
    assert len(places(load(home, {"splits.test": {"from": "puzzles"}}))["test"]) == rows - 70
    with pytest.raises(
        SourceError, match=r"splits.probe-near: gets none .* 0 of which are left .*test \d+, pool 40 were"
    ):
        saved_run(load(home, {"splits.test": {"from": "puzzles"}}, PROBE, {"splits.probes.near.rows": None}))


def test_growth_that_was_not_dealt_yet_can_be_changed_or_taken_back(home: Path):
    saved_run(load(home, TEST))  # killed before its rows were dealt, or refused for shared questions
    assert [deal["splits"] for deal in Manifest.load(home / "run").deals] == [["source", "pool"], ["test"]]
    assert run(load(home)) == set()
    assert [deal["splits"] for deal in Manifest.load(home / "run").deals] == [["source", "pool"]]
    saved_run(load(home, TEST))
    assert run(load(home, PROBE)) == OF_PROBE


def test_validate_says_what_is_added_and_what_stays(home: Path):
    lines = [line.text for line in check(load(home, PROBE))]
    assert (
        "added to the run: probe-near (25 rows of puzzles); the rows of source (30), pool (40) stay as they are"
        in lines
    )
    assert not any("added" in line.text for line in check(load(home)))


def test_a_run_that_has_not_grown_has_one_deal(tmp_path: Path):
    config = load(tmp_path, TEST, PROBE)
    deals = find_deals(config, Manifest.load(config.directory))
    assert deals.rows == (config.rows,) and len(deals.deals) == 1
    assert [stage.name for stage in saved_run(config).chain.preparing] == ["prepare"]
    assert Manifest.load(config.directory).deals == [
        {"splits": ["source", "pool", "test", "probe-near"], "sources": ["puzzles"]}
    ]


def test_every_stage_stands_as_before_where_only_a_source_was_added(home: Path):
    found = iter_statuses(open_run(load(home, OTHER)).chain.stages, Manifest.load(home / "run"))
    assert {status.state for status in found} == {"done"}
