"""The tap under asynchronous scheduling, the default on GPUs: a step begins before the last one's tokens are read."""

import pytest

from curation.config import DecodingConfig
from tests.with_vllm.conftest import start
from tests.with_vllm.test_vllm_teacher import LETTERS, TEXTS, both, with_options


@pytest.fixture(scope="module")
def ahead(model):
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    create, schedulers = EngineArgs.create_engine_config, []

    def forced(*args, **kwargs):
        settings = create(*args, **kwargs)
        settings.scheduler_config.async_scheduling = True  # the CPU build turns it off
        schedulers.append(settings.scheduler_config.get_scheduler_cls())
        return settings

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineArgs, "create_engine_config", forced)
        teacher = start(model, max_num_batched_tokens=32, block_size=32)
    assert schedulers == [AsyncScheduler]
    return teacher


@pytest.mark.parametrize("max_tokens", [1, 6])
def test_answers_and_states_equal_transformers(ahead, reference, requests, max_tokens):
    rows = both(ahead, reference, requests, DecodingConfig(max_tokens=max_tokens))
    assert len(rows) == len(requests) and ahead.engine.num_held() == 0


@pytest.mark.parametrize("options", [LETTERS, TEXTS])
def test_options_equal_transformers(ahead, reference, requests, options):
    both(ahead, reference, with_options(requests[:60], *options), DecodingConfig(max_tokens=4))
    assert ahead.engine.num_held() == 0
