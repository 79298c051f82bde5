"""Linear maps of hidden states: their principal components, and fitted networks whose linear steps are folded.

**Principal components** (paper, App. "Dimensionality Ablations"): the paper projects the states before the fit. Our
choices: several states are concatenated and have one projection, fitted only on the rows on which the trust function's
weights are fitted; components are ordered by variance and signed so that each one's entry of largest magnitude is
positive; nothing is rescaled.

**Folded networks**, for scoring in float32: the projection on principal components, the standardisation and the input
layer become one matrix, computed in float64; a norm's gain is folded into the matrices that read it; the two input
matrices of a SwiGLU become one. So each row is read once, in its stored type, and states need no concatenation. The
rows of a pass are few enough for a core's cache.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from curation.errors import ConfigError


class PrincipalComponents(NamedTuple):
    """The first K principal components of rows of D numbers, in float64."""

    mean_D: Tensor
    components_DK: Tensor
    variance_kept: float
    """The share of the rows' variance that the components explain, in [0, 1]."""
    num_rows: int
    """The number of rows that the components were fitted on."""

    @property
    def shape(self) -> tuple[int, int]:
        """The number of inputs D and of components K."""
        width, size = self.components_DK.shape
        return width, size

    def project(self, hidden_ND: Tensor) -> Tensor:
        """Return each row with its first D numbers projected on the components and the others unchanged, float32.

        The product is computed in float64, so that in float32 it hardly depends on which rows are projected together.
        """
        width = len(self.mean_D)
        projected_NK = (hidden_ND[:, :width].double() - self.mean_D) @ self.components_DK
        return torch.cat([projected_NK.float(), hidden_ND[:, width:].float()], dim=1)

    def fold(self, weight_WK: Tensor, bias_W: Tensor, centre_K: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the map ``weight @ (row - centre) + bias`` of projected rows as that of rows before the projection."""
        size = self.shape[1]
        # The centre of the projected rows is not the projection of the centre: what is left goes into the bias.
        bias_W = bias_W - weight_WK[:, :size] @ centre_K[:size]
        projected_WD = weight_WK[:, :size] @ self.components_DK.double().T
        weight_WD = torch.cat([projected_WD, weight_WK[:, size:]], dim=1)
        return weight_WD, bias_W, torch.cat([self.mean_D.double(), centre_K[size:]])


def compute_principal_components(batches: Iterable[Tensor], *, size: int) -> PrincipalComponents:
    """Return the first ``size`` principal components of all rows, in one pass over batches [B, D]."""
    num_rows, sum_D, square_DD = 0, torch.zeros(()), torch.zeros(())
    for batch_BD in batches:
        wide_BD = batch_BD.double()
        num_rows += len(wide_BD)
        sum_D = sum_D + wide_BD.sum(0)
        square_DD = square_DD + wide_BD.T @ wide_BD
    check_size(size, width=sum_D.numel(), num_rows=num_rows)
    mean_D = sum_D / num_rows
    covariance_DD = square_DD / num_rows - torch.outer(mean_D, mean_D)
    variance_D, vector_DD = torch.linalg.eigh(covariance_DD)  # ascending
    components_DK = vector_DD[:, -size:].flip(1)
    largest_K = components_DK.abs().argmax(dim=0)
    components_DK = components_DK * components_DK[largest_K, torch.arange(size)].sign()
    kept = float(variance_D[-size:].sum() / variance_D.clamp(min=0).sum()) if variance_D[-1] > 0 else 1.0
    return PrincipalComponents(mean_D, components_DK, min(kept, 1.0), num_rows)


def check_size(size: int, *, width: int, num_rows: int) -> None:
    """Raise ``ConfigError`` if ``trust.pca`` asks for more than ``width`` components, or ``num_rows`` less one."""
    if size > min(width, num_rows - 1):
        raise ConfigError(
            f"trust.pca: {size} components of {num_rows:,} rows with {width:,} numbers each; "
            "give fewer components or more source rows"
        )


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
