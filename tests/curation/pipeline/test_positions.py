"""Class and position of a run's stages: they tell each stage that is looked up from all others."""

from collections import Counter
from typing import Any

import pytest
from test_keys import ROOT, RUNS

from curation.config.load import load_config
from curation.pipeline.chain import describe
from curation.rundir.graph import Position, Stage
from curation.sources import discover
from curation.stages.fit import FitTrust, Search
from curation.stages.grade import Grade
from curation.stages.label import Label
from curation.stages.score import Score
from curation.stages.select import Select
from curation.stages.signal import Judge
from curation.stages.training import TrainStudent

FOUND_BY_POSITION = (Label, Score, Grade, Judge, Select, FitTrust, Search, TrainStudent)


def stages_of(run: str, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> dict[str, Stage]:
    monkeypatch.chdir(ROOT)
    path, own = RUNS[run]
    config = load_config(str(ROOT / path), [*own, *overrides, "run_dir=/nowhere/run"])
    chain = describe(config, {name: discover(source) for name, source in config.sources.items()})
    return {stage.name: stage for stage in chain.stages}


@pytest.mark.parametrize("run", ["chain", "search and judge", "mcqa"])
def test_no_two_stages_of_a_class_share_a_position(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = [stage for stage in stages_of(run, monkeypatch).values() if isinstance(stage, FOUND_BY_POSITION)]
    counts: Counter[Any] = Counter((stage.kind, stage.at) for stage in stages)
    assert len(stages) > 10 and max(counts.values()) == 1, counts.most_common(3)
    assert all(stage.at.generation is not None for stage in stages)


def test_a_position_says_generation_chain_split_and_what_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = stages_of("chain", monkeypatch)
    assert stages["gen-1/label-pool"].at == Position(generation=1, split="pool")
    assert stages["gen-1-naive/select"].at == Position(generation=1, branch="naive", split="pool")
    assert stages["gen-2/student-trust"].at == Position(generation=2, of="trust")
    assert stages["gen-0/trust"].at == Position(generation=0, split="source", of="trust")
    assert stages["gen-0/grade-test-teacher"].at == Position(generation=0, split="test", of="test-teacher")
    further = stages_of(
        "quickstart", monkeypatch, "generations.0.students={small: {model: {path: examples/bases/teacher}}}"
    )
    assert further["gen-0-small/student-trust"].at == Position(generation=0, branch="small", of="trust")
