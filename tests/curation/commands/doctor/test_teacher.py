import pytest

from curation.commands.doctor.machine import (
    VllmAnswer,
    choose_vllm_backend,
    count_gpus_asked,
    judge_vllm,
    look,
    make_vllm_question,
)
from curation.config import RunConfig
from curation.models.loading import is_installed

RAW = {
    "name": "tiny",
    "sources": {"puzzles": {"path": "puzzles.parquet"}},
    "splits": {"source": {"from": "puzzles", "rows": 15}, "pool": {"from": "puzzles"}},
    "selection": {"budget": {"n": 5}, "arms": ["naive"]},
}


def config(**teacher: object) -> RunConfig:
    model = {"init": {"hidden_size": 16, "num_layers": 2}}
    return RunConfig.model_validate(RAW | {"teacher": {"model": model} | teacher})


def answer(version: str | None = "0.32.0", **probed: str) -> VllmAnswer:
    return VllmAnswer(version=version, tested=("0.32.0",), probed=probed or None)


@pytest.mark.parametrize(
    ("backend", "seen", "state", "told"),
    [
        ("transformers", answer(None), "ok", "not installed"),
        ("auto", answer(None), "ok", "transformers will label"),
        ("vllm", answer(None), "fail", "not installed"),
        ("transformers", answer(), "ok", "0.32.0 is installed"),
        ("transformers", answer("0.31.0"), "warn", "tested with 0.32.0"),
        ("vllm", answer("0.32.0+cpu", runs="it runs on cpu"), "ok", "it runs on cpu"),
        ("vllm", answer("0.31.0", runs="it runs on cpu"), "warn", "tested with 0.32.0"),
        ("vllm", answer(lacks="no cuda device computes"), "fail", "no cuda device computes"),
        ("auto", answer(lacks="no cuda device computes"), "warn", "transformers will label"),
        ("auto", answer(refused="teacher.vllm.engine: unknown"), "fail", "teacher.vllm.engine: unknown"),
    ],
)
def test_vllm_is_judged_by_the_backend(backend: str, seen: VllmAnswer, state: str, told: str):
    verdict = judge_vllm(backend, seen)
    assert verdict.state == state and told in verdict.finding
    assert bool(verdict.fix) == (state != "ok")


def test_vllm_is_started_only_where_it_is_asked_for():
    assert [make_vllm_question(config(backend=name), False).probe for name in ("transformers", "vllm", "auto")] == [
        False,
        True,
        True,
    ]
    assert make_vllm_question(config(), True).probe and make_vllm_question(None, True).probe
    assert not make_vllm_question(None, False).probe
    assert choose_vllm_backend(config(), True) == "vllm" and choose_vllm_backend(config(backend="auto"), True) == "auto"
    asked = make_vllm_question(config(vllm={"engine": {"block_size": 16}}, actors={"num_gpus": 1}), False)
    assert asked.engine == {"block_size": 16} and asked.gpus and asked.model is None


@pytest.mark.skipif(is_installed(), reason="vLLM is installed here")
def test_where_vllm_is_missing_it_is_said():
    seen = look(make_vllm_question(None, True))
    assert seen.version is None and seen.probed is None and judge_vllm("vllm", seen).state == "fail"


def test_the_gpus_that_a_configuration_asks_for_at_once():
    assert count_gpus_asked(config()) == 0
    assert count_gpus_asked(config(actors={"num_gpus": 0.5})) == 0.5
    trust = {"kind": "neural", "num_workers": 3, "gpus_per_worker": 1}
    trained = RAW | {"teacher": {"backend": "scripted"}, "trust": trust}
    assert count_gpus_asked(RunConfig.model_validate(trained)) == 3
