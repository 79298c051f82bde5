"""The pass of ``logit_numbers`` as a Triton kernel, with one program per row.

It keeps running values over the vocabulary ("Online normalizer calculation for softmax", Milakov and Gimelshein 2018),
to read the logits once and without a float32 copy of all of them.
"""

from typing import Any

import torch
import triton
import triton.language as tl

BLOCK = 4096


def compute_numbers_by_kernel(logits_BV: torch.Tensor, token_B: torch.Tensor) -> torch.Tensor:
    """Return each row's ``logsumexp``, log-probability of its token, margin and negative entropy, float32 [B, 4]."""
    logits_BV = logits_BV if logits_BV.stride(1) == 1 else logits_BV.contiguous()
    number_B4 = torch.empty((len(logits_BV), 4), dtype=torch.float32, device=logits_BV.device)
    if len(logits_BV):
        _reduce_logits[(len(logits_BV),)](
            logits_BV, token_B.contiguous(), number_B4, logits_BV.stride(0), logits_BV.shape[1], BLOCK=BLOCK
        )
    return number_B4


@triton.jit  # type: ignore[untyped-decorator]
def _reduce_logits(logits: Any, tokens: Any, numbers: Any, stride: Any, size: Any, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    # The maximum begins at the lowest finite number, since -inf minus -inf would be NaN.
    top = -3.4028234663852886e38
    best = float("-inf")
    second = float("-inf")
    mass = 0.0
    moment = 0.0
    for start in range(0, size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        tile = tl.load(logits + column, mask=column < size, other=float("-inf")).to(tl.float32)
        first = tl.max(tile, axis=0)
        place = tl.argmax(tile, axis=0)
        other = tl.max(tl.where(tl.arange(0, BLOCK) == place, float("-inf"), tile), axis=0)
        second = tl.maximum(tl.minimum(best, first), tl.maximum(second, other))
        best = tl.maximum(best, first)
        new = tl.maximum(top, first)
        scale = tl.exp(top - new)
        below = tile - new
        part = tl.exp(below)
        moment = scale * (moment + mass * (top - new)) + tl.sum(tl.where(part > 0, part * below, 0.0), axis=0)
        mass = scale * mass + tl.sum(part, axis=0)
        top = new
    normaliser = top + tl.log(mass)
    chosen = tl.load(logits + tl.load(tokens + row)).to(tl.float32)
    tl.store(numbers + row * 4, normaliser)
    tl.store(numbers + row * 4 + 1, chosen - normaliser)
    tl.store(numbers + row * 4 + 2, best - second)
    tl.store(numbers + row * 4 + 3, moment / mass - tl.log(mass))
