"""The pass over a step's logits, in torch and as a kernel in Triton's interpreter, against sums in float64."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from curation.teachers import logit_numbers


def logits_and_tokens(size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows with many tokens that cannot be drawn, with two that are alike, and with one alone."""
    torch.manual_seed(size)
    logits_BV = (torch.randn(7, size) * 5).to(dtype)
    logits_BV[1, : size // 2] = -torch.inf
    logits_BV[2, 3] = logits_BV[2, 5] = 40
    logits_BV[3] += 500
    logits_BV[4, 1:] = -torch.inf
    return logits_BV, torch.tensor([0, size - 1, 3, 1, 0, 2, size // 2])


def in_float64(logits_BV: torch.Tensor, token_B: torch.Tensor) -> np.ndarray:
    """``logsumexp``, log-probability, margin, negative entropy."""
    found = []
    for row, token in zip(logits_BV.double().numpy(), token_B.tolist(), strict=True):
        whole = np.log(np.exp(row - row.max()).sum()) + row.max()
        logprobs = row - whole
        drawable = logprobs[np.isfinite(logprobs)]
        best = np.sort(logprobs)[-2:]
        found.append([whole, logprobs[token], best[1] - best[0], (np.exp(drawable) * drawable).sum()])
    return np.array(found)


@pytest.mark.parametrize("tile", [14, 40, 2**20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_equal_sums_in_float64_whatever_the_tile(monkeypatch, tile, dtype):
    monkeypatch.setattr(logit_numbers, "TILE", tile)
    logits_BV, token_B = logits_and_tokens(101, dtype)
    whole_B, number_B3 = logit_numbers.compute_token_numbers(logits_BV, token_B, sure=True)
    expected_B4 = in_float64(logits_BV, token_B)
    np.testing.assert_allclose(torch.cat([whole_B[:, None], number_B3], dim=1), expected_B4, rtol=2e-5, atol=1e-4)
    whole_B, number_B3 = logit_numbers.compute_token_numbers(logits_BV, token_B, sure=False)
    np.testing.assert_allclose(torch.stack([whole_B, number_B3[:, 0]], dim=1), expected_B4[:, :2], rtol=2e-5, atol=1e-4)


PROGRAM = """
import numpy as np, torch
from curation.teachers.logit_kernel import compute_numbers_by_kernel
from tests.curation.teachers.test_logit_numbers import in_float64, logits_and_tokens
for size in (101, 9001):
    for dtype in (torch.float32, torch.bfloat16):
        logits_BV, token_B = logits_and_tokens(size, dtype)
        found_B4 = compute_numbers_by_kernel(logits_BV, token_B)
        np.testing.assert_allclose(found_B4, in_float64(logits_BV, token_B), rtol=2e-5, atol=1e-4)
print("EQUAL")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernel_equals_sums_in_float64_in_the_interpreter():
    """In a process of its own: Triton reads the variable when it is imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "EQUAL" in done.stdout, done.stderr
