"""Principal components of hidden states (paper, App. "Dimensionality Ablations").

The paper projects the states before the fit. Our choices: several states are concatenated and have one projection,
fitted only on the rows on which the trust function's weights are fitted; components are ordered by variance and signed
so that each one's entry of largest magnitude is positive; nothing is rescaled.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

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


def compute_principal_components(batches: Iterable[Tensor], *, size: int, key: str) -> PrincipalComponents:
    """Return the first ``size`` principal components of all rows, in one pass over batches [B, D]."""
    num_rows, sum_D, square_DD = 0, torch.zeros(()), torch.zeros(())
    for batch_BD in batches:
        wide_BD = batch_BD.double()
        num_rows += len(wide_BD)
        sum_D = sum_D + wide_BD.sum(0)
        square_DD = square_DD + wide_BD.T @ wide_BD
    check_size(size, width=sum_D.numel(), num_rows=num_rows, key=key)
    mean_D = sum_D / num_rows
    covariance_DD = square_DD / num_rows - torch.outer(mean_D, mean_D)
    variance_D, vector_DD = torch.linalg.eigh(covariance_DD)  # ascending
    components_DK = vector_DD[:, -size:].flip(1)
    largest_K = components_DK.abs().argmax(dim=0)
    components_DK = components_DK * components_DK[largest_K, torch.arange(size)].sign()
    kept = float(variance_D[-size:].sum() / variance_D.clamp(min=0).sum()) if variance_D[-1] > 0 else 1.0
    return PrincipalComponents(mean_D, components_DK, min(kept, 1.0), num_rows)


def check_size(size: int, *, width: int, num_rows: int, key: str) -> None:
    """Raise ``ConfigError`` if ``key`` asks for more than ``width`` components, or ``num_rows`` less one."""
    if size > min(width, num_rows - 1):
        raise ConfigError(
            f"{key}: {size} components of {num_rows:,} rows with {width:,} numbers each; "
            "give fewer components or more source rows"
        )
