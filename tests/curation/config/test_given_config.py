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
        ({"teacher__completion": None}, "teacher: backend given needs completion: the column of the source"),
        ({"teacher__confidence": []}, "neither states nor log-probabilities, so that trust can only read columns"),
        (
            {"teacher__confidence": ["a b", "a.b"]},
            "columns 'a b' and 'a.b' would both be given_a_b in the labels table",
        ),
        ({"teacher__grade": "answer"}, "column 'answer' is named twice by teacher.completion, grade and confidence"),
        ({"teacher__backend": "scripted"}, "completion: names a column of labels made elsewhere"),
        ({"teacher__model": {"path": "x"}}, "model: backend given asks no model for labels; leave it out, or name one"),
        ({"teacher__states": ["output_last"]}, "states: backend given asks no model.*or set reader"),
        ({"teacher__store_states": False}, "store_states: backend given asks no model"),
        (
            {"trust__kind": "neural"},
            r"neural reads states, and backend given has none; set trust.columns: \[given_score\]",
        ),
        ({"trust__search": True}, "search reads states, and backend given has none"),
        ({"trust__pca": 3}, "trust.pca: joins states, and backend given has none"),
        ({"trust__columns": ["given_scor"]}, r"given_scor: comes from no column of teacher.confidence"),
        ({"selection__arms": ["trust", "given_x"]}, r"given_x: comes from no column .*\(there: given_score\)"),
        ({"selection__arms": ["margin"]}, "the margin arm ranks by log-probabilities, and backend given has none"),
        ({"selection__arms": ["self_consistency"]}, "the self_consistency arm asks the teacher further questions"),
        (
            {"selection__arms": ["ground_truth"], "splits__audit": True, "teacher__grade": "ok"},
            "the ground_truth arm trains on gold labels, and teacher.grade says only",
        ),
        ({"selection__gold_rollouts": {"source": "samples"}}, "selection.gold_rollouts.source: samples may sample"),
        (
            {"judge": {"model": {"path": "x"}, "splits": ["source"]}, "teacher__grade": "ok"},
            "judge: judges labels beside gold ones, and teacher.grade has judged them",
        ),
        (
            {"generations": [{"student": {"path": "x"}}] * 2, "splits__test": {"from": "one", "rows": 5}},
            "generations: a student that teaches the next generation is asked as teacher says",
        ),
        (
            {"domain": {**BASE["domain"], "given_labels": {"completion": "x"}}, "teacher": {"backend": "scripted"}},
            "domain.given_labels: differs from the columns that teacher names",
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
    assert (ask.backend, ask.dtype, ask.reads_given) == ("vllm", "bfloat16", True)
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
        ({"teacher__reader": {}}, r"teacher.reader: needs model: the one that reads, e.g. \{path: "),
        ({"teacher__reader": {"model": {}}}, "teacher.reader.model: takes exactly one of path and init"),
        (
            {"teacher__reader": {**READER, "backend": "scripted"}},
            "teacher.reader.backend: 'scripted': Input should be 'transformers', 'vllm' or 'auto'",
        ),
        ({"teacher__reader": {**READER, "dtype": "float32"}}, "teacher.reader.dtype: unknown key; known here: backend"),
        (
            {"teacher": {"backend": "scripted", "reader": READER}},
            "reader: .* backend scripted has states of its own; take backend given or endpoint, or leave it out",
        ),
        ({"teacher__reader": {**READER, "chat_template": True}}, "is teacher.chat_template with backend given"),
        ({"teacher__reader": READER, "teacher__completion": None}, "backend given needs completion"),
        ({"teacher__reader": READER, "teacher__model": READER["model"]}, "model: backend given asks no model"),
        ({"teacher__reader": READER, "teacher__adapt": {"epochs": 1}}, "adapt: backend given asks no model"),
        ({"teacher__reads_given": True}, r"reads_given: follows from reader; leave it out, and set reader: \{model"),
        (
            {"teacher__reader": {"model": {"init": INIT}}, "teacher__states": ["layer2_output_last"]},
            "states: 'layer2_output_last' asks for layer 2 of a model that has 2",
        ),
        ({"teacher__reader": READER, "trust__states": ["prompt_last"]}, "trust.states: prompt_last not among teacher"),
        (
            {"teacher__reader": READER, "trust__kind": "neural", "trust__states": []},
            r"neural reads states, and trust.states names none; set trust.columns: \[given_score\]",
        ),
        (
            {"teacher__reader": READER, "selection__arms": ["self_consistency"]},
            "arm asks the teacher further questions",
        ),
    ],
)
def test_what_a_reader_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(**changes)


def test_a_network_may_read_the_numbers() -> None:
    assert made(trust__kind="neural", trust__columns=["given_score"]).trust.inputs == ("given_score",)
