"""A trust function that attends over the inputs of a row (ours; the paper's section "Limitations" leaves it open).

The neural trust function concatenates its inputs. Here each state is a token, and all numbers of
``TrustConfig.columns`` are one more, so that the content of one position or layer can decide what is read from another.
Each token has its own linear projection, as layers differ in scale and may differ in width; the projection's bias is
the learned embedding that tells the tokens apart. A learned query is the first token. Pre-norm transformer blocks
follow (Vaswani et al. 2017; Xiong et al. 2020), and a linear head reads the query's output. Norms, feed-forward branch,
dropout, stochastic depth and standardised inputs are those of the neural trust function.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from curation.config import TrustConfig
from curation.errors import ConfigError
from curation.trust.neural import NORM_EPS, Block, NetShape, NetTrust, TrustNet, drop_path

QUERY_SCALE = 0.02
"""The standard deviation of the query's initial values, as in BERT."""


@dataclass(frozen=True, kw_only=True)
class AttentionArchitecture(NetShape):
    """The shape of an attention network."""

    sizes: tuple[int, ...]
    """The width of each token before its projection."""
    num_heads: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))  # a list, as read from JSON

    @classmethod
    def of(cls, config: TrustConfig, sizes: Sequence[int], num_heads: int) -> Self:
        """Return the architecture that a configuration asks for; ``sizes`` are the widths of ``config.inputs``.

        Raises:
            ConfigError: ``num_heads`` is no positive whole number or does not divide the width, or ``config.pca`` is
                set.
        """
        if type(num_heads) is not int or num_heads < 1 or config.width % num_heads:
            raise ConfigError(
                f"trust.options.attention.num_heads: {num_heads!r}; the heads divide trust.width ({config.width}) "
                "evenly: give a whole number that divides it, or another trust.width"
            )
        if config.pca is not None:
            raise ConfigError(f"trust.pca: {config.pca}, but attention reads state by state; leave trust.pca out")
        states, numbers = tuple(sizes[: len(config.states)]), sum(sizes[len(config.states) :])
        return cls.with_config(config, sizes=(*states, numbers) if numbers else states, num_heads=num_heads)


class Attention(nn.Module):
    """``dropout(SelfAttention(RMSNorm(x)))``, the branch of one residual block, [N, T, W] -> [N, T, W]."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_NTW: Tensor) -> Tensor:
        """Return the branch's output, [N, T, W]."""
        parts = self.query_key_value(self.norm(x_NTW)).chunk(3, dim=-1)
        heads = (part_NTW.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part_NTW in parts)
        mixed_NATU = nn.functional.scaled_dot_product_attention(*heads)
        y_NTW: Tensor = self.dropout(self.output(mixed_NATU.transpose(1, 2).flatten(2)))
        return y_NTW


class AttentionNet(TrustNet):
    """A network from concatenated inputs [N, D] to logits [N]; the calibrated sigmoid of a logit is the trust score."""

    architecture: AttentionArchitecture

    def __init__(self, architecture: AttentionArchitecture) -> None:
        super().__init__(sum(architecture.sizes), standardise=architecture.standardise)
        self.architecture = architecture
        width, dropout = architecture.width, architecture.dropout
        self.tokens = nn.ModuleList(nn.Linear(size, width) for size in architecture.sizes)
        self.query_W = nn.Parameter(torch.randn(width) * QUERY_SCALE)
        inner = max(1, round(architecture.expansion * width))
        layers = range(architecture.depth)
        self.attention = nn.ModuleList(Attention(width, architecture.num_heads, dropout) for _ in layers)
        self.feed_forward = nn.ModuleList(Block(width, inner, dropout) for _ in layers)
        self.norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.head = nn.Linear(width, 1)

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """Return the logit of each row, [N]; inputs may have any floating type."""
        parts = self.standardised(hidden_ND).split_with_sizes(self.architecture.sizes, dim=1)
        tokens = [token(part_ND) for token, part_ND in zip(self.tokens, parts, strict=True)]
        x_NTW = torch.stack([self.query_W.expand(len(hidden_ND), -1), *tokens], dim=1)
        for index, branches in enumerate(zip(self.attention, self.feed_forward, strict=True), start=1):
            rate = self.architecture.stochastic_depth * index / self.architecture.depth
            for branch in branches:
                x_NTW = x_NTW + drop_path(branch(x_NTW), rate, training=self.training)
        logit_N: Tensor = self.head(self.norm(x_NTW[:, 0])).squeeze(-1)
        return logit_N


class AttentionTrust(NetTrust[AttentionNet]):
    """A fitted attention network. The raw score is the logit; trust is its calibrated sigmoid."""

    kind, network, shape = "attention", AttentionNet, AttentionArchitecture
