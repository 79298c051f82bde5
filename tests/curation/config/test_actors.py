"""The cores of an actor: on a CPU those that its machine has for it, unless the configuration says otherwise."""

import pytest

from curation.config import ActorsConfig
from curation.passes.dataset import get_thread_settings


@pytest.mark.parametrize("backend", ["transformers", "vllm"])
@pytest.mark.parametrize(
    ("actors", "nodes", "cpus"),
    [
        ({}, [2], 2),
        ({}, [], 1),  # nothing is known of the machine
        ({}, [8, 4], 8),  # of the largest node: an actor is on one
        ({"max": 2}, [8, 4], 6),
        ({"max": 4}, [8], 2),
        ({"max": 16}, [8], 1),
        ({"num_cpus": 1}, [8], 1),
        ({"num_cpus": 3, "max": 2}, [8], 3),
        ({"num_gpus": 1}, [8], 1),
    ],
)
def test_actors_of_models_share_all_cores(backend: str, actors: dict[str, int], nodes: list[float], cpus: int) -> None:
    assert ActorsConfig.model_validate(actors).cpus(backend, nodes) == cpus


@pytest.mark.parametrize("backend", ["scripted", "endpoint", "given"])
def test_what_runs_no_model_takes_one_core(backend: str) -> None:
    assert ActorsConfig().cpus(backend, [8]) == 1
    assert not ActorsConfig().takes_all_cores(backend)


def test_an_actor_has_a_thread_for_each_core_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert get_thread_settings(4.0) == {"env_vars": {"OMP_NUM_THREADS": "4"}}
    assert get_thread_settings(1) is None  # which Ray sets
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert get_thread_settings(4) is None
