"""What of vLLM's arguments and variables is settled without vLLM."""

import pytest

from curation.errors import ConfigError
from curation.models.loading import ENVIRONMENT
from curation.teachers.vllm_engine import check_arguments


@pytest.mark.parametrize("name", ["kv_sharing_fast_prefill", "enable_lora", "async_engine"])
def test_switches_that_cannot_go_with_the_tap_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"teacher\.vllm\.engine\.{name}: True cannot be used"):
        check_arguments({name: True})


def test_no_kernel_is_compiled_by_nvcc_for_the_sampler() -> None:
    assert ENVIRONMENT["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
