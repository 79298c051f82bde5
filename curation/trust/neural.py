"""The neural trust function (paper, section "Neural Trust Functions"): a residual MLP over the teacher's hidden states.

The paper leaves some choices open. Ours are: a linear projection of the input to the width; blocks
``x + drop_path(dropout(SwiGLU(RMSNorm(x))))`` with matrices without bias; stochastic depth per row, at rates that grow
linearly over the blocks up to the last one's (Huang et al. 2016); PyTorch's own initialisation. We also add
standardised inputs (can be switched off) and several concatenated states as one input (off by default).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from curation.config import TrustConfig
from curation.json_types import JsonView
from curation.trust import Scores
from curation.trust.folded import FoldedNets
from curation.trust.states import StateTrust


class TrustNet(nn.Module):
    """A network from concatenated inputs, [N, D] in any floating type, to logits [N]."""

    architecture: Any
    """The network's shape: a dataclass of JSON values."""
    head: nn.Linear
    """The last layer."""
    mean_D: Tensor
    scale_D: Tensor

    def __init__(self, input_size: int, *, standardise: bool) -> None:
        super().__init__()
        self.input_size, self.standardise = input_size, standardise
        if standardise:
            self.register_buffer("mean_D", torch.zeros(input_size))
            self.register_buffer("scale_D", torch.ones(input_size))

    def standardised(self, hidden_ND: Tensor) -> Tensor:
        """Return the inputs in the weights' type, [N, D], standardised if ``standardise`` is set."""
        hidden_ND = hidden_ND.to(self.head.weight.dtype)
        return (hidden_ND - self.mean_D) / self.scale_D if self.standardise else hidden_ND


Net = TypeVar("Net", bound=TrustNet)


class NetTrust(StateTrust, Generic[Net]):
    """A fitted network. The raw score is the logit; trust is its calibrated sigmoid."""

    network: ClassVar[Any]
    """The class of the network, which takes a ``shape``."""
    shape: ClassVar[Any]
    """The class of the network's shape, whose fields are those of the saved architecture."""

    def __init__(self, net: Net, inputs: Sequence[str], fit: Mapping[str, object]) -> None:
        super().__init__(inputs, fit)
        self.net = net.eval()
        self.size, self.weights, self.own = net.input_size, net.state_dict(), {"architecture": asdict(net.architecture)}

    def logits(self, hidden_ND: Tensor) -> Scores:
        """Return the logit of each row, float32 [N]."""
        with torch.inference_mode():
            logit_N: Scores = self.net(hidden_ND.to(self.net.head.weight.device)).cpu().numpy()
        return logit_N

    @classmethod
    def made(cls, weights: Mapping[str, Tensor], description: JsonView) -> Self:
        """Return the trust function on the CPU; memory is allocated only after the shapes are known to match.

        The architecture, as read from JSON, is not trusted, since a file may claim any size. Raise ``ValueError`` if
        the weights do not fit it.
        """
        architecture = description["architecture"]
        if architecture["depth"] > len(weights):
            raise ValueError(f"it names {architecture['depth']:,} blocks and holds {len(weights):,} tensors")
        with torch.device("meta"):
            made = cls.network(cls.shape(**architecture))
            shapes = {name: tuple(tensor.shape) for name, tensor in made.state_dict().items()}
        found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        for name in sorted({*shapes, *found}):
            if (has := found.get(name)) != (asks := shapes.get(name)):
                raise ValueError(f"{name} has the shape {has}, and its architecture asks for {asks}")
        net = cls.network(cls.shape(**architecture))
        net.load_state_dict(weights)
        return cls(net, description["inputs"], description["fit"])


NORM_EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class NetShape:
    """The part of a network's shape that ``TrustConfig`` sets and documents."""

    width: int
    depth: int
    expansion: float
    dropout: float
    stochastic_depth: float
    standardise: bool

    @classmethod
    def with_config(cls, config: TrustConfig, **own: Any) -> Self:
        """Return the shape that a configuration asks for, with the fields that it does not set."""
        return cls(**own, **config.model_dump(include=set(cls.__dataclass_fields__) - own.keys()))


@dataclass(frozen=True, kw_only=True)
class Architecture(NetShape):
    """The shape of a neural trust function's network."""

    input_size: int
    """The number of values per row that the network reads."""

    @classmethod
    def of(cls, config: TrustConfig, input_size: int) -> Self:
        """Return the architecture that a configuration asks for."""
        return cls.with_config(config, input_size=input_size)


class Block(nn.Module):
    """``dropout(SwiGLU(RMSNorm(x)))``, the branch of one residual block, [N, W] -> [N, W]."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.w1 = nn.Linear(width, inner, bias=False)
        self.w3 = nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_NW: Tensor) -> Tensor:
        """Return the branch's output, [N, W]."""
        x_NW = self.norm(x_NW)
        y_NW: Tensor = self.dropout(self.w2(nn.functional.silu(self.w1(x_NW)) * self.w3(x_NW)))
        return y_NW


class NeuralTrustNet(TrustNet):
    """A network from hidden states [N, D] to logits [N]; the calibrated sigmoid of a logit is the trust score."""

    architecture: Architecture

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture.input_size, standardise=architecture.standardise)
        self.architecture = architecture
        width, depth = architecture.width, architecture.depth
        self.input = nn.Linear(architecture.input_size, width)
        inner = max(1, round(architecture.expansion * width))
        self.blocks = nn.ModuleList(Block(width, inner, architecture.dropout) for _ in range(depth))
        self.norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.head = nn.Linear(width, 1)

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """Return the logit of each row, [N]; states may have any floating type."""
        x_NW = self.input(self.standardised(hidden_ND))
        for index, block in enumerate(self.blocks, start=1):
            rate = self.architecture.stochastic_depth * index / len(self.blocks)
            x_NW = x_NW + drop_path(block(x_NW), rate, training=self.training)
        logit_N: Tensor = self.head(self.norm(x_NW)).squeeze(-1)
        return logit_N


def drop_path(x_NW: Tensor, rate: float, *, training: bool) -> Tensor:
    """Zero whole rows with probability ``rate`` and scale the others to keep the expectation, [N, ...]."""
    if not training or rate == 0:
        return x_NW
    kept_N1 = torch.rand(len(x_NW), *[1] * (x_NW.ndim - 1), device=x_NW.device) >= rate
    return x_NW * kept_N1 / (1 - rate)


class NeuralTrust(NetTrust[NeuralTrustNet]):
    """A fitted neural trust function. The raw score is the logit; trust is its calibrated sigmoid."""

    kind, network, shape = "neural", NeuralTrustNet, Architecture

    def raw_of(self, columns: Sequence[Tensor]) -> Scores:
        """Return the logit of each row, float32 [N], by the folded network."""
        if self._folded is None:
            self._folded = FoldedNets([self.net], self.pca)
        logit_N: Scores = self._folded(columns)[0].numpy()
        return logit_N
