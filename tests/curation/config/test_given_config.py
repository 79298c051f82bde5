"""Labels made elsewhere, in the configuration: what follows from the keys, and what is refused."""

from typing import Any

import pytest

from curation.config import RunConfig
from curation.config.load import as_config
from curation.errors import ConfigError

BASE: dict[str, Any] = {
    "name": "given",
    "domain": {"name": "classification", "classes": ["a", "b"]},
    "sources": {"one": {"path": "one.csv"}, "two": {"path": "two.csv", "domain": {"name": "math"}}},
    "splits": {"source": {"from": "one", "rows": 10}, "pool": {"from": "one"}},
    "teacher": {"backend": "given", "completion": "answer", "confidence": "score"},
    "selection": {"budget": {"n": 5}},
}


def made(**changes: Any) -> RunConfig:
    raw = {key: dict(value) if isinstance(value, dict) else value for key, value in BASE.items()}
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if not name:
            raw[section] = value
        else:
            raw[section] = {**raw.get(section, {}), name: value}
    return as_config(raw)


def test_every_domain_knows_the_columns_and_nothing_is_kept_of_states() -> None:
    config = made(splits__probes={"math": {"from": "two", "regime": "OOD-domain"}}, splits__audit=True)
    for split in ("source", "pool", "probe-math"):
        given = config.domain_of(split).given_labels
        assert given is not None and given.completion == "answer" and given.numbers == {"score": "given_score"}
    assert config.teacher.states == config.trust.states == () and config.compared == ("given_score",)
    assert config.selection.arms == ("naive", "given_score", "naive_parsed", "trust", "trust_gold", "ground_truth")
    assert as_config(config.model_dump(mode="json", by_alias=True)) == config


def test_a_test_split_is_graded_by_gold_labels() -> None:
    same = made(splits__test={"from": "one", "rows": 5}, teacher__grade="ok").domain_of("test").given_labels
    assert same is not None and same.completion == "answer" and same.grade is None and same.confidence == ()
    assert made(splits__test={"from": "two", "rows": 5}).domain_of("test").given_labels is None


def test_a_run_with_a_model_knows_nothing_of_them() -> None:
    config = made(teacher={"backend": "scripted"})
    assert "given_labels" not in config.domain.to_key() and config.teacher.given is None


def test_grades_bring_no_gold_arms() -> None:
    assert made(splits__audit=True, teacher__grade="ok").selection.arms == (
        "naive",
        "given_score",
        "naive_parsed",
        "trust",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher__completion": None}, "backend given needs teacher.completion: set it"),
        (
            {"teacher__confidence": []},
            "backend given needs numbers for trust to read: set teacher.confidence: to one or",
        ),
        (
            {"teacher__confidence": ["a b", "a.b"]},
            "or two whose names differ only in signs: answer, a b, a.b; name each once",
        ),
        ({"teacher__grade": "answer"}, "completion, grade and confidence name a column twice"),
        ({"teacher__backend": "scripted"}, "teacher.completion needs teacher.backend: given: set that"),
        ({"teacher__model": {"path": "x"}}, "teacher.model needs a model that labels: set teacher.backend"),
        ({"teacher__states": ["output_last"]}, "teacher.states needs a model that runs here.*or set teacher.reader"),
        ({"teacher__store_states": False}, "teacher.store_states needs hidden states"),
        (
            {"trust__kind": "neural"},
            r"trust: neural needs something to read: set trust.columns: \[given_score\]",
        ),
        ({"trust__search": True}, "trust: search needs something to read"),
        ({"trust__pca": 3}, "trust.pca needs hidden states"),
        (
            {"trust__columns": ["given_scor"]},
            r"trust.columns needs the number given_scor, which comes from no column of teacher.confidence",
        ),
        (
            {"selection__arms": ["trust", "given_x"]},
            r"the given_x arm needs the number given_x, which comes from no column",
        ),
        ({"selection__arms": ["margin"]}, "the margin arm needs log-probabilities: .*; or rank by .given_score"),
        ({"selection__arms": ["self_consistency"]}, "the self_consistency arm needs a teacher that can be asked"),
        (
            {"selection__arms": ["ground_truth"], "splits__audit": True, "teacher__grade": "ok"},
            "the ground_truth arm needs gold labels, and teacher.grade says only",
        ),
        (
            {"selection__gold_rollouts": {"source": "samples"}},
            "selection.gold_rollouts.source: samples needs a teacher that can be asked",
        ),
        (
            {"judge": {"model": {"path": "x"}, "splits": ["source"]}, "teacher__grade": "ok"},
            "judge needs gold labels, and teacher.grade says only",
        ),
        (
            {"generations": [{"student": {"path": "x"}}] * 2, "splits__test": {"from": "one", "rows": 5}},
            "a chain of generations needs a model that labels",
        ),
        (
            {"domain": {**BASE["domain"], "given_labels": {"completion": "x"}}, "teacher": {"backend": "scripted"}},
            "domain.given_labels needs teacher.backend: given",
        ),
    ],
)
def test_what_cannot_be_had_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(**changes)


READER: dict[str, Any] = {"model": {"path": "small"}}
INIT = {"hidden_size": 8, "num_layers": 2}


def test_a_reader_brings_what_a_model_has() -> None:
    config = made(teacher__reader={**READER, "backend": "vllm"}, teacher__dtype="bfloat16")
    assert config.teacher.states == config.trust.states == config.compared == ("output_last",)
    assert config.selection.arms == ("naive", "given_score", "naive_parsed", "internal_confidence", "trust")
    ask = config.teacher.ask
    assert (ask.backend, ask.dtype, ask.reads_given, ask.chat_template) == ("vllm", "bfloat16", True, False)
    assert made(teacher__reader={**READER, "chat_template": True}).teacher.ask.chat_template
    assert config.models["reader"].path == "small" and "teacher" not in config.models
    assert not ask.of_weights(chat_template=False).reads_given  # students answer
    assert as_config(config.model_dump(mode="json", by_alias=True)) == config


def test_with_a_reader_numbers_and_states_are_both_optional() -> None:
    alone = made(teacher__reader=READER, teacher__confidence=[], trust__kind="neural", trust__pca=3)
    assert alone.selection.arms == ("naive", "naive_parsed", "internal_confidence", "trust")
    stateless = made(teacher__reader=READER, teacher__confidence=[], teacher__states=[], trust__states=[])
    assert stateless.compared == ("mean_logprob",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher__reader": {}}, r"teacher.reader.model: Field required"),
        ({"teacher__reader": {"model": {}}}, "teacher.reader.model: takes exactly one of path and init"),
        (
            {"teacher__reader": {**READER, "backend": "scripted"}},
            "teacher.reader.backend: 'scripted': Input should be 'transformers' or 'vllm'",
        ),
        ({"teacher__reader": {**READER, "dtype": "float32"}}, "teacher.reader.dtype: unknown key; known here: backend"),
        (
            {"teacher": {"backend": "scripted", "reader": READER}},
            "teacher.reader needs answers of another: take backend given or endpoint, or leave it out",
        ),
        ({"teacher__reader": READER, "teacher__completion": None}, "backend given needs teacher.completion"),
        ({"teacher__reader": READER, "teacher__model": READER["model"]}, "teacher.model needs a model that labels"),
        ({"teacher__reader": READER, "teacher__adapt": {"epochs": 1}}, "teacher.adapt needs a model that labels"),
        ({"teacher__reads_given": True}, r"reads_given: follows from reader; leave it out, and set reader: \{model"),
        (
            {"teacher": {"backend": "endpoint", "reads_given": True, "reader": READER}}
            | {"teacher__endpoint": {"url": "http://localhost:8000/v1", "model": "m"}},
            "reads_given: follows from reader; leave it out",
        ),
        (
            {"teacher__reader": {"model": {"init": INIT}}, "teacher__states": ["layer2_output_last"]},
            "states: 'layer2_output_last' asks for layer 2 of a model that has 2",
        ),
        (
            {"teacher__reader": READER, "trust__states": ["prompt_last"]},
            "trust.states needs the state prompt_last, not among teacher",
        ),
        (
            {"teacher__reader": READER, "trust__kind": "neural", "trust__states": []},
            r"neural needs something to read: set trust.columns: \[given_score\], or trust.states",
        ),
        (
            {"teacher__reader": READER, "selection__arms": ["self_consistency"]},
            "arm needs a teacher that can be asked",
        ),
    ],
)
def test_what_a_reader_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(**changes)


def test_a_network_may_read_the_numbers() -> None:
    assert made(trust__kind="neural", trust__columns=["given_score"]).trust.inputs == ("given_score",)
