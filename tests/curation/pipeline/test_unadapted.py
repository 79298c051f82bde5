"""V-confidence asks an adapted teacher's model as it was before: which model each signal's stage asks."""

from pathlib import Path
from typing import Any

from test_chains import BASES, CONFIG, by_name, config

from curation.refs import ModelRef
from curation.rundir.graph import Out, Stage

ARMS = ["trust", "verbalized_confidence", "self_consistency"]
SIGNALS = {"verbalized_confidence": "verbalized_confidence", "self_consistency": "self_consistency"}
SELECTED = {"selection": {"budget": {"n": 10}, "arms": ARMS}, "chain": {}}


def stages_of(num: int = 1, *, adapt: bool = True, **teacher: Any) -> dict[str, Stage]:
    section = {**CONFIG["teacher"], **teacher}
    return by_name(config(num, teacher=section if adapt else {**section, "adapt": None}, **SELECTED))


def asked_model(stage: Stage) -> str:
    """Who answers, in words: an output's name, or the base's folder; of an adapter it says so."""
    model = stage.inputs["model"]
    if isinstance(model, Out):
        return str(model)
    assert isinstance(model, ModelRef) and model.adapter is None
    return Path(model.base).name


def test_a_teacher_that_was_not_adapted_is_asked_as_it_labels():
    stages = stages_of(adapt=False)
    signal = stages["gen-0/signal-verbalized_confidence-pool"]
    assert asked_model(signal) == asked_model(stages["gen-0/label-pool"]) == "teacher"
    assert signal.beside_labels and set(stages["gen-0/label-pool"].signals) == set(SIGNALS)


def test_an_adapted_teacher_is_asked_as_its_base_and_only_in_words():
    stages = stages_of()
    label = stages["gen-0/label-pool"]
    assert asked_model(label) == "gen-0/teacher: model"
    signal, votes = (stages[f"gen-0/signal-{column}-pool"] for column in ("verbalized_confidence", "self_consistency"))
    assert asked_model(signal) == "teacher" and asked_model(votes) == "gen-0/teacher: model"
    # The labelling actors hold the adapted model, so they do not measure it, nor is it looked for beside the labels.
    assert set(label.signals) == {"self_consistency"}
    assert not signal.beside_labels and votes.beside_labels


def test_a_student_that_teaches_is_asked_as_the_base_that_it_was_trained_from():
    stages = stages_of(2)
    label, signal = stages["gen-1/label-pool"], stages["gen-1/signal-verbalized_confidence-pool"]
    assert asked_model(label) == "gen-0/student-trust: model"
    assert asked_model(signal) == Path(BASES[0]["student"]["path"]).name == "student"
    assert "verbalized_confidence" not in label.signals
