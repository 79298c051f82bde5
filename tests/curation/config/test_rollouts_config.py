"""The engines that draw GRPO's answers divide the workers of the training."""

from typing import Any

import pytest
from pydantic import ValidationError

from curation.config.models import GrpoConfig


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_workers": 4, "rollouts": {"tensor_parallel": 3}}, r"3 .*does not divide num_workers: 4"),
        ({"rollouts": {"tensor_parallel": 2}}, r"2 .*does not divide num_workers: 1"),
        ({"num_workers": 2, "rollouts": {"tensor_parallel": 2, "backend": "transformers"}}, "applies to vLLM only"),
    ],
)
def test_engines_divide_the_workers(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        GrpoConfig.model_validate(changed)
