"""Trust functions that are one network: its standardised inputs, and how such a function scores and is saved."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from curation.json_types import Json, JsonView
from curation.trust import Scores
from curation.trust.states import StateTrust


class TrustNet(nn.Module):
    """A network from inputs side by side, [N, D] in any floating type, to logits [N]."""

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
        """The inputs in the weights' type, [N, D]; standardised if the network does that."""
        hidden_ND = hidden_ND.to(self.head.weight.dtype)
        return (hidden_ND - self.mean_D) / self.scale_D if self.standardise else hidden_ND


Net = TypeVar("Net", bound=TrustNet)
Module = TypeVar("Module", bound=nn.Module)


class NetTrust(StateTrust, Generic[Net]):
    """A fitted network. The raw score is the logit, trust its calibrated sigmoid."""

    def __init__(self, net: Net, inputs: Sequence[str], fit: Mapping[str, object]) -> None:
        super().__init__(inputs, fit)
        self.net = net.eval()

    @classmethod
    @abstractmethod
    def net_of(cls, architecture: Mapping[str, object]) -> Net:
        """A network, not fitted yet, of an architecture that was read from JSON."""

    @property
    def size(self) -> int:
        """The network's inputs."""
        return self.net.input_size

    def logits(self, hidden_ND: Tensor) -> Scores:
        """The logit of each row, float32 [N]."""
        with torch.inference_mode():
            logit_N: Scores = self.net(hidden_ND.to(self.net.head.weight.device)).cpu().numpy()
        return logit_N

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The network's parameters and buffers."""
        return self.net.state_dict()

    def description(self) -> Json:
        """Adds the network's architecture."""
        return {**super().description(), "architecture": asdict(self.net.architecture)}

    @classmethod
    def made(cls, weights: Mapping[str, Tensor], description: JsonView) -> Self:
        """The trust function on the CPU."""
        net = with_weights(lambda: cls.net_of(description["architecture"]), description["architecture"], weights)
        return cls(net, description["inputs"], description["fit"])


def with_weights(make: Callable[[], Module], architecture: JsonView, weights: Mapping[str, Tensor]) -> Module:
    """A network with saved weights, which takes memory only once its shapes are those of the weights.

    Args:
        make: gives the network, not fitted yet.
        architecture: its own, as read from JSON; whoever wrote the file may have promised any size.
        weights: its parameters and buffers.

    Raises:
        ValueError: the architecture is another one than that of the weights.
    """
    if architecture["depth"] > len(weights):
        raise ValueError(f"it names {architecture['depth']:,} blocks and holds {len(weights):,} tensors")
    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in make().state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if other := sorted(name for name in {*shapes, *found} if shapes.get(name) != found.get(name)):
        name = other[0]
        raise ValueError(f"{name} has the shape {found.get(name)}, and its architecture asks for {shapes.get(name)}")
    net = make()
    net.load_state_dict(weights)
    return net
