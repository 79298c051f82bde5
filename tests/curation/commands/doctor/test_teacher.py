import pytest

from curation.commands.doctor import check_vllm, count_gpus_asked, rate_vllm
from curation.config import RunConfig
from curation.models.loading import is_installed
from curation.teachers import vllm_names

RAW = {
    "name": "tiny",
    "sources": {"puzzles": {"path": "puzzles.parquet"}},
    "splits": {"source": {"from": "puzzles", "rows": 15}, "pool": {"from": "puzzles"}},
    "selection": {"budget": {"n": 5}, "arms": ["naive"]},
}


def config(**teacher: object) -> RunConfig:
    model = {"init": {"hidden_size": 16, "num_layers": 2}}
    return RunConfig.model_validate(RAW | {"teacher": {"model": model} | teacher})


@pytest.mark.parametrize(
    ("backend", "version", "state", "told"),
    [
        ("transformers", None, "ok", "not installed"),
        ("vllm", None, "fail", "not installed"),
        ("transformers", "0.32.0", "ok", "0.32.0 is installed"),
        ("vllm", "0.32.0+cpu", "ok", "0.32.0+cpu is installed"),
        ("vllm", "0.31.0", "warn", "tested with 0.32.0"),
    ],
)
def test_vllm_is_judged_by_the_backend(
    monkeypatch: pytest.MonkeyPatch, backend: str, version: str | None, state: str, told: str
):
    monkeypatch.setattr(vllm_names, "TESTED", ("0.32.0",))
    verdict = rate_vllm(backend, version)
    assert verdict.state == state and told in verdict.finding
    assert bool(verdict.fix) == (state != "ok")


@pytest.mark.skipif(is_installed(), reason="vLLM is installed here")
def test_where_vllm_is_missing_it_is_said():
    assert check_vllm("vllm").state == "fail"


def test_the_gpus_that_a_configuration_asks_for_at_once():
    assert count_gpus_asked(config()) == 0
    assert count_gpus_asked(config(actors={"num_gpus": 0.5})) == 0.5
    trained = RAW | {"teacher": {"backend": "scripted"}, "trust": {"kind": "neural", "gpus_per_worker": 1}}
    assert count_gpus_asked(RunConfig.model_validate(trained)) == 1
