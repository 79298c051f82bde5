"""The stages that test models: one for each decoding and run, none twice, and which of them share their answers."""

import copy
from pathlib import Path
from typing import Any

import pytest

from curation.config import DecodingConfig, RunConfig
from curation.config.load import parse_config
from curation.config.resolved import describe_resolved
from curation.errors import ConfigError
from curation.pipeline.chain import describe
from curation.pipeline.roles import describe_helper_models
from curation.rundir.graph import Stage, to_plain_json, with_outs
from curation.sources import discover

ROOT = Path(__file__).parents[3]
TEACHER, STUDENT = (str(ROOT / "examples/bases" / name) for name in ("teacher", "student"))
CONFIG = {
    "name": "tests",
    "run_dir": "/nowhere/runs/tests",
    "sources": {"puzzles": {"path": str(ROOT / "examples/data/puzzles.parquet")}},
    "splits": {
        "source": {"from": "puzzles", "rows": 30},
        "test": {"from": "puzzles", "rows": 20},
        "pool": {"from": "puzzles", "rows": 40},
    },
    "teacher": {"model": {"path": TEACHER}},
    "selection": {"budget": {"n": 10}, "arms": ["naive", "trust"]},
}
NUCLEUS = DecodingConfig(temperature=0.7, top_p=0.8, top_k=20)


def config(*bases: Any, **sections: Any) -> RunConfig:
    students = [{"student": base if isinstance(base, dict) else {"path": base}} for base in bases]
    return parse_config(copy.deepcopy(CONFIG) | {"generations": students} | sections)


def asking(of: RunConfig) -> dict[str, Stage]:
    """The stages that ask models about the test split."""
    stages = describe(of, {name: discover(source) for name, source in of.sources.items()}).stages
    return {stage.name: stage for stage in stages if "/test-" in stage.name}


def key(stage: Stage) -> Any:
    return to_plain_json(with_outs(stage.inputs, str), {})


def test_further_decodings_add_stages_and_leave_those_of_the_main_one_as_they_are() -> None:
    plain_tests = asking(config(STUDENT))
    assert sorted(plain_tests) == [f"gen-0/test-{model}" for model in ("base", "naive", "teacher", "trust")]
    more = asking(config(STUDENT, evaluation={"preset": "strategy_games"}))
    assert set(plain_tests) < set(more) and len(more) == 12
    assert {name: key(more[name]) for name in plain_tests} == {name: key(stage) for name, stage in plain_tests.items()}
    nucleus, hot = (more[f"gen-0/test-naive-{kind}"] for kind in ("nucleus", "high_temperature"))
    assert nucleus.inputs["decoding"] == NUCLEUS and hot.inputs["decoding"] == DecodingConfig(temperature=1)
    seeds = [stage.inputs["seed"] for stage in more.values()]
    assert len(set(seeds)) == len(seeds)


def test_only_decodings_with_a_temperature_run_several_times() -> None:
    sampled = {"decoding": {"temperature": 0.6}, "num_runs": 2, "also": {"greedy": {}, "hot": {"temperature": 1}}}
    of_base = [
        name.partition("/test-base")[2] for name in asking(config(STUDENT, evaluation=sampled)) if "base" in name
    ]
    assert of_base == ["-0", "-1", "-greedy", "-hot-0", "-hot-1"]


def test_a_model_that_is_asked_the_same_way_twice_is_tested_once() -> None:
    # The student that teaches has been tested as a student; the second base as the first.
    twice = asking(config(STUDENT, STUDENT))
    assert [name for name in twice if name.startswith("gen-1/")] == ["gen-1/test-naive", "gen-1/test-trust"]
    records = describe(config(STUDENT, STUDENT), {"puzzles": discover(config(STUDENT).sources["puzzles"])}).generations
    graded = {name: [out.stage.name for out in runs] for name, runs in records[1]["tests"].items()}
    assert graded["teacher"] == ["gen-0/grade-test-trust"] and graded["base"] == ["gen-0/grade-test-base"]
    assert graded["trust"] == ["gen-1/grade-test-trust"]
    other = asking(config(STUDENT, TEACHER, teacher={"model": {"path": TEACHER}}))
    assert {"gen-0/test-teacher", "gen-0/test-base"} < set(other) and "gen-1/test-base" not in other  # the teacher's
    assert "gen-0/test-base" not in asking(config(TEACHER))
    auto = asking(config(STUDENT, STUDENT, teacher={"model": {"path": TEACHER}, "backend": "auto"}))
    assert "gen-0/test-base" in auto and "gen-1/test-base" not in auto
    # From scratch every generation has a base of its own; another recipe makes another teacher.
    init = {"init": {"hidden_size": 8, "num_layers": 1}}
    assert "gen-1/test-base" in asking(config(init, init))
    adapted = {"model": {"path": TEACHER}, "adapt": {"preset": "scratch"}}
    splits = CONFIG["splits"] | {"adapt": {"from": "puzzles", "rows": 5}}
    assert "gen-0/test-base" in asking(config(TEACHER, teacher=adapted, splits=splits))


def test_a_server_is_tested_as_it_labels_and_the_others_as_models_with_weights() -> None:
    def inputs(**server: Any) -> dict[str, Any]:
        teacher = {"backend": "endpoint", "endpoint": {"url": "http://localhost:8000/v1", "model": "m", **server}}
        found = config(STUDENT, teacher=teacher)
        stages = describe(found, {name: discover(source) for name, source in found.sources.items()}).stages
        return {stage.name: key(stage) for stage in stages if "ask" in stage.inputs}

    chats, others = inputs(), inputs(body={"reasoning_effort": "low"})
    assert chats["gen-0/label-pool"]["ask"]["chat_template"] and chats["gen-0/test-teacher"]["ask"]["chat_template"]
    assert "chat_template" not in inputs(kind="vllm")["gen-0/test-teacher"]["ask"]
    for name in ("base", "naive", "trust"):
        asked = chats[f"gen-0/test-{name}"]
        assert asked == others[f"gen-0/test-{name}"] and asked["backend"] == "transformers"
        assert "chat_template" not in asked["ask"] and "endpoint" not in asked["ask"]
    assert chats["gen-0/test-teacher"] != others["gen-0/test-teacher"]


@pytest.mark.parametrize("in_words", [False, True])
def test_a_second_teacher_is_asked_as_the_tests_are_where_a_server_is_the_first(in_words: bool) -> None:
    teacher = {"backend": "endpoint", "endpoint": {"url": "http://localhost:8000/v1", "model": "m"}}
    signals, evaluation = {"second_teacher": {"path": TEACHER}}, {"chat_template": in_words}
    found = config(STUDENT, teacher=teacher, signals=signals, evaluation=evaluation)
    second = describe_helper_models(found, {}, {})["second_teacher"]
    assert second.ask.chat_template is in_words and second.ask.endpoint is None and second.backend == "transformers"


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({"also": {"main": {"temperature": 1}}}, "also.main: is the name of evaluation.decoding"),
        ({"also": {"again": {}}}, "also.again: is the same decoding as evaluation.decoding; drop it"),
        ({"also": {"one": {"top_k": 5}, "two": {"top_k": 5}}}, "also.two: is the same decoding as also.one"),
        ({"also": {"0": {"temperature": 1}}}, "String should match pattern"),
        ({"also": {"hot": {"temprature": 1}}}, "did you mean 'temperature'"),
        ({"preset": "chess"}, "evaluation.preset: 'chess'"),
    ],
)
def test_what_cannot_be_is_refused(evaluation: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(STUDENT, evaluation=evaluation)


def test_further_decodings_end_as_the_main_one_and_are_told() -> None:
    found = config(STUDENT, evaluation={"decoding": {"max_tokens": 5, "top_k": 3}, "preset": "strategy_games"})
    assert found.evaluation.also["nucleus"] == NUCLEUS.model_copy(update={"max_tokens": 5})
    assert parse_config(found.model_dump(mode="json", by_alias=True)) == found
    assert 'evaluation.also.high_temperature: 1 run, temperature 1, max_tokens 5, stop ["\\n"]' in describe_resolved(
        found
    )
    more = config(STUDENT, evaluation={"preset": "strategy_games", "also": {}})
    assert more.evaluation.also == {} and config(STUDENT).evaluation.also == {}
