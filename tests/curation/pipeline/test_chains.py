"""The stages of a chain: which lines there are, what they share, what another generation adds, what is refused."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
from built import saved_run
from test_changes import made_up

from curation.commands.export.run import Student
from curation.config import RunConfig
from curation.config.load import parse_config
from curation.errors import ConfigError, RunFailedError
from curation.pipeline.chain import Chain, describe
from curation.pipeline.extending import describe_analysis
from curation.pipeline.opened import open_run
from curation.refs import fingerprint
from curation.rundir.graph import Done, Skipped, Stage, order_stages, to_plain_json, with_outs
from curation.rundir.manifest import Manifest
from curation.rundir.run import Run
from curation.rundir.status import iter_statuses
from curation.sources import discover

ROOT = Path(__file__).parents[3]
BASES = [{"student": {"path": str(ROOT / "examples/bases" / name)}} for name in ("student", "teacher", "student")]
CONFIG = {
    "name": "chains",
    "sources": {"puzzles": {"path": str(ROOT / "examples/data/puzzles.parquet")}},
    "splits": {
        "adapt": {"from": "puzzles", "rows": 20},
        "source": {"from": "puzzles", "rows": 30},
        "test": {"from": "puzzles", "rows": 20},
        "pool": {"from": "puzzles", "rows": 80},
        "audit": True,
    },
    "teacher": {"model": {"path": str(ROOT / "examples/bases/teacher")}, "adapt": {"preset": "scratch", "epochs": 1}},
    "selection": {"budget": {"n": 10}, "arms": ["naive", "linear_probe", "trust", "ground_truth"]},
    "student": {"preset": "paper", "epochs": 1},
    "chain": {"arms": ["trust", "naive"], "shallow": ["first_teacher", "predecessor"]},
}


def config(num: int, directory: Path | None = None, **changes: Any) -> RunConfig:
    where = {} if directory is None else {"run_dir": str(directory / "run")}
    return parse_config(copy.deepcopy(CONFIG) | {"generations": BASES[:num]} | where | changes)


def described(of: RunConfig) -> Chain:
    return describe(of, {name: discover(source) for name, source in of.sources.items()})


def by_name(of: RunConfig) -> dict[str, Stage]:
    return {stage.name: stage for stage in described(of).stages}


def key(stage: Stage) -> Any:
    return to_plain_json(with_outs(stage.inputs, str), {})


def of_line(stages: dict[str, Stage], prefix: str, what: str) -> set[str]:
    return {name.removeprefix(f"{prefix}/{what}-") for name in stages if name.startswith(f"{prefix}/{what}-")}


def test_one_run_has_all_lines_and_what_is_equal_once():
    stages = by_name(config(3))
    assert of_line(stages, "gen-0", "student") == {"naive", "linear_probe", "trust", "ground_truth"}
    for index in (1, 2):
        main = {"trust", "linear_probe", "ground_truth", "shallow-trust", "shallow-naive"}
        assert of_line(stages, f"gen-{index}", "student") == main  # naive has a chain of its own
        assert of_line(stages, f"gen-{index}-naive", "student") == {"naive"}
    assert of_line(stages, "gen-2-predecessor", "student") == {"trust"} and "gen-1-predecessor/select" not in stages
    # Who teaches: the student of the same arm; the base before the last, adapted as the first teacher was.
    teachers = {name: str(stages[f"{name}/label-pool"].inputs["model"]) for name in ("gen-1", "gen-2-naive")}
    assert teachers == {"gen-1": "gen-0/student-trust: model", "gen-2-naive": "gen-1-naive/student-naive: model"}
    adapted, first = stages["gen-2-predecessor/teacher"], stages["gen-0/teacher"]
    assert adapted.inputs["base"].base == BASES[1]["student"]["path"]
    assert {**key(adapted), "base": 0} == {**key(first), "base": 0}
    # Shallow students learn the first generation's rows, and no model is asked for labels for them.
    for arm in ("trust", "naive"):
        learns = stages[f"gen-2/student-shallow-{arm}"]
        assert str(learns.inputs["digest"]) == f"gen-0/select: arms.{arm}.digest"
        assert learns.inputs["base"] == stages["gen-2/student-trust"].inputs["base"]
        assert learns.inputs["seed"] == stages["gen-2/student-trust"].inputs["seed"]
    # The lines of a generation label the same rows with the same seeds, from bases and by tests that they share.
    for split in ("pool", "source"):
        asked = [key(stages[f"gen-2{line}/label-{split}"]) for line in ("", "-naive", "-predecessor")]
        assert len({fingerprint({**found, "model": 0}) for found in asked}) == 1
    assert [stages[f"gen-{index}/label-pool"].inputs["share"]["index"] for index in range(3)] == [0, 1, 2]
    assert not {name for name in stages if name.endswith("-naive/test-base") or name.endswith("-naive/test-teacher")}


def test_an_analysis_of_a_chain_reads_the_arms_that_each_generation_has():
    chain = described(of := config(3))
    found = [order_stages([outs]) for outs in describe_analysis(of, chain.tables, chain.generations)]
    names = [{stage.name for stage in stages} for stages in found]
    assert "gen-0/gradients-naive" in names[0] and "gen-1/gradients-trust" in names[1]
    assert "gen-1/gradients-naive" not in names[1]


def test_a_chain_of_one_arm_is_what_it_was():
    stages = by_name(config(2, chain={}))
    assert {name.partition("/")[0] for name in stages} == {"prepare", "repeats", "gen-0", "gen-1"}
    assert of_line(stages, "gen-1", "student") == set(CONFIG["selection"]["arms"])
    assert "gen-0/go-on" in stages and "gen-0/go-on" not in by_name(config(2, chain={"stop": None}))
    alone = by_name(config(1))
    assert alone["gen-0/label-pool"].inputs["share"] is None and "gen-0/go-on" not in alone


def finish(of: RunConfig, **outputs: Any) -> tuple[Any, set[str]]:
    """Do a run with made-up work; ``outputs`` replace those of a stage. All outputs, and the names of what was done."""
    opened = saved_run(of)
    before = dict(opened.manifest.stages)
    for stage in opened.chain.stages:
        made_up(stage)
        if (own := outputs.get(stage.name.rpartition("/")[2].replace("-", "_"))) is not None:
            object.__setattr__(stage, "do", lambda task, known, own=own: Done(outputs=own, rows=1))
    known = Run(of.name, opened.manifest, room=lambda: {"CPU": 2.0}).do(opened.chain.stages)
    return known, {name for name, item in opened.manifest.stages.items() if item is not before.get(name)}


FEW = {"selection": {"budget": {"n": 10}, "arms": ["naive", "trust"]}, "splits": CONFIG["splits"] | {"audit": False}}
"""Fewer stages, for runs."""
GO_ON = {"go_on": True, "signs": {}, "reasons": []}
STOP = {"go_on": None, "absent": {"go_on": "the chain stops after generation 0: no signal"}, "reasons": ["no signal"]}


@pytest.mark.long
def test_another_generation_does_nothing_again(tmp_path):
    finish(config(2, tmp_path, **FEW), go_on=GO_ON, held_out={"num_trained": 1})
    records = Manifest.load(tmp_path / "run").stages
    longer = config(3, tmp_path, **FEW)
    planned = list(iter_statuses(open_run(longer).chain.stages, Manifest.load(longer.directory)))
    assert {status.state for status in planned} == {"done", "new", "waits"}  # and none has changed
    _, done = finish(longer, go_on=GO_ON, held_out={"num_trained": 1})
    assert {name.partition("/")[0] for name in done} == {"gen-1", "gen-2", "gen-2-naive", "gen-2-predecessor"}
    assert {name for name in done if name.startswith("gen-1/")} == {"gen-1/go-on"}
    after = Manifest.load(tmp_path / "run").stages
    assert {name: after[name] for name in records} == records


@pytest.mark.long
def test_a_chain_that_stops_says_why_and_goes_on_without_the_rule(tmp_path):
    few = FEW | {"chain": CONFIG["chain"] | {"shallow": []}}
    stopped = config(2, tmp_path, **few)
    known, _ = finish(stopped, go_on=STOP, held_out={"num_trained": 1})
    reached = {name.partition("/")[0] for name, found in known.items() if not isinstance(found, Skipped)}
    assert "gen-0" in reached and not reached & {"gen-1-naive", "gen-1-predecessor"}
    assert {found.why for found in known.values() if isinstance(found, Skipped)} == {STOP["absent"]["go_on"]}
    status = {item.stage.name: item.words for item in open_run(stopped).statuses}
    assert status["gen-1/select"] == "nothing to do: the chain stops after generation 0: no signal"
    before = Manifest.load(stopped.directory).stages
    known, done = finish(
        config(2, tmp_path, **few | {"chain": few["chain"] | {"stop": None}}), held_out={"num_trained": 1}
    )
    assert not any(isinstance(found, Skipped) for found in known.values())
    assert not done & before.keys() and "gen-1/student-trust" in done


def test_a_student_of_each_chain_is_found_for_an_export() -> None:
    of = config(3)
    stages = by_name(of)
    for arm in ("trust", "naive"):
        for index in range(3):
            student = Student(config=of, manifest=Manifest.load(of.directory), arm=arm, generation=index)
            assert stages[student.training].settings["rows"].stage.name == f"{student.home}/select"


def test_files_that_two_sources_share_are_refused(tmp_path):
    copied = tmp_path / "puzzles.parquet"
    shutil.copy(ROOT / "examples/data/puzzles.parquet", copied)
    splits = CONFIG["splits"] | {"source": {"from": "again", "rows": 30}}
    sources = CONFIG["sources"] | {"again": {"path": CONFIG["sources"]["puzzles"]["path"]}}
    with pytest.raises(ConfigError, match=r"splits\.source\.from: source 'again' and the pool's source 'puzzles' both"):
        described(config(2, sources=sources, splits=splits))
    described(config(1, sources=sources, splits=splits))
    other = sources | {"again": {"path": str(copied)}}
    stages = {stage.name: stage for stage in described(config(2, sources=other, splits=splits)).stages}
    assert set(stages["gen-1/held-out"].inputs["splits"]) == {"test"}  # ids of another source are other rows
    assert set(by_name(config(2))["gen-1/held-out"].inputs["splits"]) == {"test", "source"}


def test_nothing_is_labelled_before_the_rows_are_compared(tmp_path):
    def refuse(task, known):
        raise ConfigError("row 7 trained the teacher")

    of = config(2, tmp_path, **FEW)
    opened = saved_run(of)
    for stage in opened.chain.stages:
        made_up(stage)
        if stage.name.endswith("/go-on"):
            object.__setattr__(stage, "do", lambda task, known: Done(outputs=GO_ON, rows=1))
        if stage.name.endswith("/held-out"):
            object.__setattr__(stage, "do", refuse)
    with pytest.raises((ConfigError, RunFailedError), match="row 7 trained the teacher"):
        Run(of.name, opened.manifest, room=lambda: {"CPU": 2.0}).do(opened.chain.stages)
    assert not [name for name in opened.manifest.stages if "/label-" in name and not name.startswith("gen-0/")]
