"""What a change of the configuration does again, on the graph of a real run whose work is made up.

Each stage makes outputs that follow from its key alone, so that another key makes another content.
"""

import copy
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from built import saved_run
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from curation.arms import ARMS
from curation.config import RunConfig
from curation.config.load import load_config
from curation.pipeline.opened import open_run
from curation.refs import fingerprint
from curation.rundir.graph import Done, Known, Stage, make_cache_key
from curation.rundir.manifest import Manifest
from curation.rundir.run import Run, Task
from curation.rundir.status import iter_statuses

ROOT = Path(__file__).parents[3]
NAMES = ("naive", "icl_confidence", "linear_probe", "trust", "ground_truth")
SMALL = {"preset": "scratch", "epochs": 1}
CONFIG = {
    "name": "changes",
    "sources": {"puzzles": {"path": str(ROOT / "examples/data/puzzles.parquet")}},
    "splits": {
        "adapt": {"from": "puzzles", "rows": 20},
        "source": {"from": "puzzles", "rows": 30},
        "shots": {"from": "puzzles", "rows": 5},
        "test": {"from": "puzzles", "rows": 20},
        "pool": {"from": "puzzles", "rows": 40},
        "audit": True,
    },
    "teacher": {"model": {"path": str(ROOT / "examples/bases/teacher")}, "adapt": SMALL},
    "trust": {"kind": "neural"},
    "selection": {"budget": {"n": 10}, "arms": list(NAMES)},
    "student": {"preset": "paper", "epochs": 1},
    "generations": [{"student": {"path": str(ROOT / "examples/bases/student")}}],
    "evaluation": {"decoding": {"max_tokens": 4}},
}


def answers_of(models: Iterable[str]) -> set[str]:
    return {stage for model in models for stage in (f"test-{model}", f"grade-test-{model}")}


STUDENTS = {f"student-{arm}" for arm in NAMES} | answers_of(NAMES)
SELECTED = {"select", "selected-shift"}
CHOSEN = SELECTED | STUDENTS
SCORES = {"score-source", "score-pool"}
SIGNAL = "signal-icl_mean_logprob-pool"
LABELLED = {"label-source", "label-pool", "grade-source", "grade-pool", SIGNAL, "trust", "trust-linear_probe", "shift"}
LABELLED |= {"length-pool", "rollouts"} | SCORES | CHOSEN
FEWER = {f"student-{arm}" for arm in NAMES if arm != "icl_confidence"} | answers_of(set(NAMES) - {"icl_confidence"})

CHANGES: dict[str, set[str]] = {
    "student.learning_rate=3e-4": STUDENTS,
    "student.epochs=2": STUDENTS,
    "student.lora.rank=8": STUDENTS,
    "student.schedule=constant": STUDENTS,
    "student.cpus_per_worker=2": set(),
    "student.max_failures=5": set(),
    "student.num_workers=2": set(),
    "student.sharding=fsdp": set(),
    "student.compute_dtype=bfloat16": STUDENTS,
    "student.micro_batch_size=2": set(),
    "student.gradient_checkpointing=false": set(),
    "student.max_length=512": {"length-pool", "rollouts"} | STUDENTS,
    "student.chat_template=true": {"length-pool", "rollouts"} | STUDENTS,
    "generations.0.student.path=%s" % (ROOT / "examples/bases/teacher"): {"length-pool", "rollouts"}
    | STUDENTS
    | answers_of(["base"]),
    "evaluation.decoding.max_tokens=5": answers_of([*NAMES, "teacher", "base"]),
    "evaluation.chat_template=true": answers_of([*NAMES, "teacher", "base"]),
    "evaluation.margin=0.05": set(),
    "selection.budget.n=12": {"rollouts"} | CHOSEN,
    "selection.max_per_label=3": {"rollouts"} | CHOSEN,
    "selection.gold_rollouts.temperature=0.9": {"rollouts"},
    "selection.gold_rollouts.source=answers": {"rollouts", "length-pool"},
    "selection.arms=[naive, linear_probe, trust, ground_truth]": {"score-pool"} | SELECTED | FEWER,
    "trust.width=64": {"trust"} | SCORES | CHOSEN,
    "trust.kind=stacked": {"trust"} | SCORES | CHOSEN,
    "trust.class_weight=0.2": {"trust", "trust-linear_probe"} | SCORES | CHOSEN,
    "trust.max_failures=7": set(),
    "trust.calibration=none": {"trust", "trust-linear_probe"} | SCORES | CHOSEN,
    "trust.source_share=0.5": {"trust", "trust-linear_probe"} | SCORES | CHOSEN,
    "trust.pca=4": {"trust", "trust-linear_probe"} | SCORES | CHOSEN,
    "trust.columns=[mean_logprob]": {"trust", "trust-linear_probe"} | SCORES | CHOSEN,
    "signals.options={icl_mean_logprob: {question: again}}": {SIGNAL, "score-pool"} | CHOSEN,
    "teacher.chunk_rows=100": set(),
    "teacher.actors.max=3": set(),
    "teacher.max_error_rate=0.5": set(),
    "splits.max_error_rate=0.5": set(),
    "teacher.decoding.max_tokens=6": LABELLED,
    "teacher.states=[prompt_last, output_last]": LABELLED,
    "teacher.batch_tokens=4096": LABELLED | answers_of([*NAMES, "teacher", "base"]),
    "teacher.adapt.epochs=2": {"teacher"} | LABELLED | answers_of(["teacher"]),
    "splits.overlap=report": {"prepare", "repeats", "teacher"} | LABELLED | answers_of(["teacher", "base"]),
    "commit_seconds=9": set(),
    "fragment_mb=16": set(),
    "ray.max_stages=1": set(),
    "chain.stop.min_auc=0.6": set(),
    "chain.shallow=[first_teacher]": set(),
}


def made_up(stage: Stage) -> None:
    """Give a stage work that is done at once."""

    def do(task: Task, known: Known) -> Done:
        key = fingerprint(make_cache_key(stage, known))
        table, model = {"uri": f"{task.name}-{key}", "version": 1}, {"base": key, "revision": None, "adapter": None}
        digested = {"uri": key, "digest": key}
        outputs: dict[str, Any] = {
            "Prepare": {"tables": {name: table | {"uri": f"{name}-{key}"} for name in TABLES}},
            "RollOut": {"texts": {"source": "answer", "samples": None}},  # of bare answers nothing is drawn
            "MeasureLength": {"counts": {}, "too_long": None},  # nothing is too long
            "Select": {
                "budget": {},
                "arms": {arm: {"digest": key + arm, "table": table, "threshold": key} for arm in ARMS},
                "rows_of": dict.fromkeys(ARMS, table),
            },
        }.get(stage.kind, {})
        named = {"labels": table, "grades": table, "signal": table, "model": model, "trust": digested}
        rest: dict[str, Any] = {
            name: {} for name in ("counts", "fit", "shift", "foreign", "num_unread", "num_asked", "training")
        }
        return Done(outputs={**named, **rest, **outputs}, rows=1)

    object.__setattr__(stage, "do", do)


TABLES = (*CONFIG["splits"], "audit")


def run(config: RunConfig) -> tuple[dict[str, str], set[str]]:
    """What is planned, by stage, and what is then done."""
    opened = saved_run(config)
    stages = opened.chain.stages
    planned = {status.stage.name: status.state for status in iter_statuses(stages, opened.manifest)}
    before = dict(opened.manifest.stages)
    for stage in stages:
        made_up(stage)
    Run(config.name, opened.manifest, room=lambda: {"CPU": 2.0}).do(stages)
    done = {
        name
        for name, record in opened.manifest.stages.items()  # a class or place that is recorded anew is no work
        if (old := before.get(name)) is None or replace(record, kind=old.kind, at=old.at) != old
    }
    again = iter_statuses(open_run(config).chain.stages, Manifest.load(config.directory))
    assert {status.state for status in again} == {"done"}
    return planned, done


def load(directory: Path, *overrides: str) -> RunConfig:
    config = copy.deepcopy(CONFIG) | {"run_dir": str(directory / "run")}
    for override in [item for item in overrides if item.startswith("generations.")]:
        config["generations"][0]["student"]["path"] = override.partition("=")[2]
    path = directory / "changes.yaml"
    path.write_text(yaml.safe_dump(config))
    return load_config(path, [item for item in overrides if not item.startswith("generations.")])


def short(names: Iterable[str]) -> set[str]:
    return {name.removeprefix("gen-0/") for name in names}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    directory = tmp_path_factory.mktemp("finished")
    planned, done = run(load(directory))
    assert set(planned) == done and len(done) == 36
    return directory


@pytest.mark.long
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_does_again_what_reads_it_and_nothing_else(tmp_path, finished, change):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    planned, done = run(load(tmp_path, change))
    assert short(done) == CHANGES[change]
    states = {
        state: {name for name, found in planned.items() if found == state} for state in ("done", "changed", "waits")
    }
    assert set().union(*states.values()) == set(planned)
    assert states["changed"] <= done <= states["changed"] | states["waits"]


@pytest.mark.long
@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=5, unique=True))
def test_several_changes_do_again_what_each_does(tmp_path_factory, finished, changes):
    fewer = any(change.startswith("selection.arms") for change in changes)
    assume(not (fewer and any("icl" in change and change.startswith("signals") for change in changes)))  # is refused
    assume(not {"trust.kind=stacked", "trust.width=64"} <= set(changes))  # too
    directory = shutil.copytree(finished, tmp_path_factory.mktemp("several"), dirs_exist_ok=True)
    planned, done = run(load(directory, *changes))
    expected = set().union(*(CHANGES[change] for change in changes))
    if fewer:
        expected -= {"student-icl_confidence", SIGNAL, *answers_of(["icl_confidence"])}
    assert short(done) == expected
    assert {name for name, state in planned.items() if state == "changed"} <= done
