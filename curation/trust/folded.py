"""Fitted networks for scoring: linear steps are folded into the matrix that follows, in float32.

The projection on principal components, the standardisation and the input layer become one matrix, computed in float64;
a norm's gain is folded into the matrices that read it; the two input matrices of a SwiGLU become one. So each row is
read once, in its stored type, and states need no concatenation. The rows of a pass are few enough for a core's cache.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from curation.trust.components import PrincipalComponents


class FoldedInput:
    """An affine map of a row's columns in their stored type."""

    def __init__(self, weight_WD: Tensor, bias_W: Tensor, centre_D: Tensor) -> None:
        """Take the map ``weight_WD @ (row - centre_D) + bias_W`` in float64; products are computed in float32."""
        self._weight_WD, self._bias_W, self._centre_D = weight_WD.float(), bias_W.float(), centre_D.float()
        self._parts: tuple[tuple[Tensor, Tensor], ...] = ()

    def __call__(self, columns: Sequence[Tensor]) -> Tensor:
        """Return the mapped rows, float32 [B, W]; each column is [B, D] in any floating type."""
        sizes = [column.shape[1] for column in columns]
        if [len(centre_D) for _, centre_D in self._parts] != sizes:
            parts = zip(*(torch.split(both, sizes, dim=-1) for both in (self._weight_WD, self._centre_D)), strict=True)
            self._parts = tuple((weight_WD.contiguous(), centre_D.contiguous()) for weight_WD, centre_D in parts)
        sum_BW = self._bias_W
        for column_BD, (weight_WD, centre_D) in zip(columns, self._parts, strict=True):
            centred_BD = column_BD.to(torch.float32, copy=True).sub_(centre_D)  # one new array, not two
            sum_BW = sum_BW + linear(centred_BD, weight_WD)
        return sum_BW


class FoldedNets:
    """Networks (``NeuralTrustNet``) of one architecture for scoring the same rows, on the CPU."""

    def __init__(self, nets: Sequence[Any], pca: PrincipalComponents | None) -> None:
        """Make one map of stored values of the projection ``pca``, the standardisations and all input layers."""
        first, weights, biases = nets[0], [], []
        centre_D = _to_double(first.mean_D) if first.standardise else torch.zeros(first.input_size, dtype=torch.float64)
        self._stacks, self._eps = [], float(first.norm.eps)
        for net in nets:
            weight_WD, bias_W = _to_double(net.input.weight), _to_double(net.input.bias)
            if net.standardise:
                weight_WD = weight_WD / _to_double(net.scale_D)
                bias_W = bias_W + weight_WD @ (centre_D - _to_double(net.mean_D))
            weights.append(weight_WD)
            biases.append(bias_W)
            blocks = []
            for block in net.blocks:
                both = torch.cat([_to_double(block.w1.weight), _to_double(block.w3.weight)])
                blocks.append(((both * _to_double(block.norm.weight)).float(), _to_double(block.w2.weight).float()))
            head_W = (_to_double(net.head.weight)[0] * _to_double(net.norm.weight)).float()
            self._stacks.append((blocks, head_W, _to_double(net.head.bias).float()))
        folded = torch.cat(weights), torch.cat(biases), centre_D
        self._input = FoldedInput(*(folded if pca is None else pca.fold(*folded)))

    @torch.inference_mode()
    def __call__(self, columns: Sequence[Tensor]) -> Tensor:
        """Return the logit of each row by each of M networks, float32 [M, B]; ``columns`` are the rows' inputs."""
        parts = self._input(columns).chunk(len(self._stacks), dim=1)
        logits = []
        for (blocks, head_W, head_bias), x_BW in zip(self._stacks, parts, strict=True):
            for both, down in blocks:
                gate_BU, value_BU = linear(x_BW * _invert_rms(x_BW, self._eps), both).chunk(2, dim=-1)
                x_BW = x_BW + linear(silu(gate_BU).mul_(value_BU), down)
            logits.append((x_BW @ head_W) * _invert_rms(x_BW, self._eps)[:, 0] + head_bias)
        return torch.stack(logits)


def _to_double(weight: Tensor) -> Tensor:
    return weight.detach().double().cpu()


def _invert_rms(x_BW: Tensor, eps: float) -> Tensor:
    """Return the reciprocal of the root mean square of each row, [B, 1], as ``RMSNorm`` computes it."""
    norm_B1: Tensor = torch.linalg.vector_norm(x_BW, dim=-1, keepdim=True)
    return norm_B1.square_().div_(x_BW.shape[-1]).add_(eps).rsqrt_()
