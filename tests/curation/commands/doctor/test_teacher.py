import pytest

from curation.commands import doctor
from curation.commands.doctor import check_vllm, count_gpus_asked, get_vllm_arguments, rate_vllm
from curation.config import RunConfig
from curation.models.loading import is_installed
from curation.teachers import vllm_choice

RAW = {
    "name": "tiny",
    "sources": {"puzzles": {"path": "puzzles.parquet"}},
    "splits": {"source": {"from": "puzzles", "rows": 15}, "pool": {"from": "puzzles"}},
    "selection": {"budget": {"n": 5}, "arms": ["naive"]},
}


def config(**teacher: object) -> RunConfig:
    model = {"init": {"hidden_size": 16, "num_layers": 2}}
    return RunConfig.model_validate(RAW | {"teacher": {"model": model} | teacher})


Seen = tuple[str | None, dict[str, str] | None]


def answer(version: str | None = "0.32.0", **probed: str) -> Seen:
    return version, probed or None


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
def test_vllm_is_judged_by_the_backend(
    monkeypatch: pytest.MonkeyPatch, backend: str, seen: Seen, state: str, told: str
):
    monkeypatch.setattr(vllm_choice, "TESTED", ("0.32.0",))
    verdict = rate_vllm(backend, *seen)
    assert verdict.state == state and told in verdict.finding
    assert bool(verdict.fix) == (state != "ok")


def test_vllm_is_started_only_where_the_backend_may_be_it(monkeypatch: pytest.MonkeyPatch):
    asked = []
    monkeypatch.setattr(doctor, "is_installed", lambda: True)
    monkeypatch.setattr(
        vllm_choice, "probe", lambda *arguments, **named: asked.append((*arguments, named)) or {"runs": "x"}
    )
    for backend in ("transformers", "vllm", "auto"):
        check_vllm(*get_vllm_arguments(config(backend=backend, vllm={"engine": {"block_size": 16}})))
    check_vllm(*get_vllm_arguments(None))
    assert asked == [({"block_size": 16}, None, {"gpus": False})] * 2
    assert get_vllm_arguments(config(actors={"num_gpus": 1}))[3]


@pytest.mark.skipif(is_installed(), reason="vLLM is installed here")
def test_where_vllm_is_missing_it_is_said():
    assert check_vllm("vllm", {}, None, gpus=False).state == "fail"


def test_the_gpus_that_a_configuration_asks_for_at_once():
    assert count_gpus_asked(config()) == 0
    assert count_gpus_asked(config(actors={"num_gpus": 0.5})) == 0.5
    trained = RAW | {"teacher": {"backend": "scripted"}, "trust": {"kind": "neural", "gpus_per_worker": 1}}
    assert count_gpus_asked(RunConfig.model_validate(trained)) == 1
