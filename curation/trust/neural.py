"""The neural trust function (paper, section "Neural Trust Functions"): a residual MLP over the teacher's hidden states.

The paper leaves some choices open. Ours are: a linear projection of the input to the width; blocks
``x + drop_path(dropout(SwiGLU(RMSNorm(x))))`` with matrices without bias; stochastic depth per row, at rates that grow
linearly over the blocks up to the last one's (Huang et al. 2016); PyTorch's own initialisation. We also add
standardised inputs (can be switched off) and several states side by side as one input (off by default).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack

from curation.config import TrustConfig
from curation.errors import SourceError
from curation.places import Place
from curation.refs import TrustRef
from curation.tables import state_column
from curation.trust import Scores, saved
from curation.trust.calibration import Calibration

NORM_EPS = 1e-6
SCORE_ROWS = 4096
"""Rows of one forward pass when scoring."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The shape of a network; ``TrustConfig`` documents the fields that it shares."""

    input_size: int
    """The sum of the sizes of the states that it reads."""
    width: int
    depth: int
    expansion: float
    dropout: float
    stochastic_depth: float
    standardise: bool

    @classmethod
    def of(cls, config: TrustConfig, input_size: int) -> Self:
        """The architecture that a configuration asks for."""
        shared = set(cls.__dataclass_fields__) - {"input_size"}
        return cls(input_size=input_size, **config.model_dump(include=shared))


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
        """The branch's output, [N, W]."""
        x_NW = self.norm(x_NW)
        y_NW: Tensor = self.dropout(self.w2(nn.functional.silu(self.w1(x_NW)) * self.w3(x_NW)))
        return y_NW


class NeuralTrustNet(nn.Module):
    """Hidden states [N, D] to logits [N]; the calibrated sigmoid of a logit is the trust score."""

    mean_D: Tensor
    scale_D: Tensor

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        size, width, depth = architecture.input_size, architecture.width, architecture.depth
        if architecture.standardise:
            self.register_buffer("mean_D", torch.zeros(size))
            self.register_buffer("scale_D", torch.ones(size))
        self.input = nn.Linear(size, width)
        inner = max(1, round(architecture.expansion * width))
        self.blocks = nn.ModuleList(Block(width, inner, architecture.dropout) for _ in range(depth))
        self.norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.head = nn.Linear(width, 1)

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """The logit of each row, [N]; states may have any floating type."""
        hidden_ND = hidden_ND.to(self.head.weight.dtype)
        if self.architecture.standardise:
            hidden_ND = (hidden_ND - self.mean_D) / self.scale_D
        x_NW = self.input(hidden_ND)
        for index, block in enumerate(self.blocks, start=1):
            rate = self.architecture.stochastic_depth * index / len(self.blocks)
            x_NW = x_NW + drop_path(block(x_NW), rate, training=self.training)
        logit_N: Tensor = self.head(self.norm(x_NW)).squeeze(-1)
        return logit_N


def drop_path(x_NW: Tensor, rate: float, *, training: bool) -> Tensor:
    """Zero whole rows with probability ``rate`` and scale the others so that the expectation stays, [N, W]."""
    if not training or rate == 0:
        return x_NW
    kept_N1 = torch.rand(len(x_NW), 1, device=x_NW.device) >= rate
    return x_NW * kept_N1 / (1 - rate)


class StateTrust(ABC):
    """A trust function that computes a logit from hidden states; trust is its calibrated sigmoid."""

    kind: ClassVar[str]
    """Its name in ``curation.trust.FITTED``."""

    def __init__(self, states: Sequence[str], fit: Mapping[str, Any], calibration: Calibration | None = None) -> None:
        self.states = tuple(states)
        self.fit = fit
        """The data and the course of the fit, as JSON."""
        self.calibration = calibration or Calibration()

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of the states, in the order in which they form the input."""
        return tuple(state_column(state) for state in self.states)

    @abstractmethod
    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """The logit of each row, float32 [N]; NaN if a state is null."""

    @property
    @abstractmethod
    def weights(self) -> Mapping[str, Tensor]:
        """The fitted tensors, by name."""

    @classmethod
    @abstractmethod
    def made(cls, weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Self:
        """Build the trust function from what :meth:`save` wrote."""

    def description(self) -> dict[str, Any]:
        """What :meth:`made` needs besides the weights, as JSON."""
        return {
            "kind": self.kind,
            "states": self.states,
            "calibration": asdict(self.calibration),
            "fit": self.fit,
        }

    def to_trust(self, raw_N: Scores) -> Scores:
        """The calibrated sigmoid of logits, float32 [N]."""
        return self.calibration.to_trust(raw_N)

    def score(self, labels: pa.RecordBatch) -> Scores:
        """The trust score of each row, float32 [N]; NaN if a state is null."""
        return self.to_trust(self.raw_score(labels))

    def noted(self, **notes: Any) -> Self:
        """This trust function, with notes on its fit added to ``fit``."""
        self.fit = {**self.fit, **notes}
        return self

    def save(self, directory: Place) -> TrustRef:
        """Write weights and description into ``directory``; make the directory if it is missing."""
        return saved.save(directory, TrustRef, self.weights, self.description())


class NeuralTrust(StateTrust):
    """A fitted neural trust function. The raw score is the logit, trust its calibrated sigmoid."""

    kind = "neural"

    def __init__(
        self,
        net: NeuralTrustNet,
        states: Sequence[str],
        fit: Mapping[str, Any],
        calibration: Calibration | None = None,
    ) -> None:
        super().__init__(states, fit, calibration)
        self.net = net.eval()

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """The logit of each row, float32 [N]; NaN if a state is null.

        Raises:
            SourceError: a state column is missing, or the states differ in size from those of the fit.
        """
        states = read_states(labels, self.features)
        size = self.net.architecture.input_size
        if states.size != size:
            raise SourceError(
                f"{', '.join(self.features)}: {states.size} numbers a row, the trust function was fitted on {size}; "
                "score the labels of the teacher that it was fitted for"
            )
        raw_N = np.empty(labels.num_rows, dtype=np.float32)
        device = self.net.head.weight.device
        with torch.inference_mode():
            for start, hidden_ND in states.batches(SCORE_ROWS):
                raw_N[start : start + len(hidden_ND)] = self.net(hidden_ND.to(device)).cpu().numpy()
        raw_N[states.missing_N] = np.nan
        return raw_N

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The network's parameters and buffers."""
        return self.net.state_dict()

    def description(self) -> dict[str, Any]:
        """Adds the network's architecture."""
        return {**super().description(), "architecture": asdict(self.net.architecture)}

    @classmethod
    def made(cls, weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Self:
        """The trust function on the CPU."""
        net = NeuralTrustNet(Architecture(**description["architecture"]))
        net.load_state_dict(weights)
        return cls(net, description["states"], description["fit"], Calibration(**description["calibration"]))


@dataclass(frozen=True, kw_only=True)
class States:
    """Hidden states of N rows, as views of Arrow's memory."""

    columns: tuple[Tensor, ...]
    """One tensor [N, D] per column, in the stored type; the numbers of a missing row are undefined."""
    missing_N: npt.NDArray[np.bool_]
    """Whether one of the row's states is null."""

    @property
    def size(self) -> int:
        """The number of values per row, over all columns."""
        return sum(column.shape[1] for column in self.columns)

    def batches(self, num_rows: int) -> Iterator[tuple[int, Tensor]]:
        """The first row's index and the states [num_rows, D] of consecutive batches, columns side by side."""
        for start in range(0, len(self.missing_N), num_rows):
            parts = [column[start : start + num_rows] for column in self.columns]
            yield start, parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def read_states(labels: pa.RecordBatch, columns: Sequence[str]) -> States:
    """The ``fixed_size_list`` columns of a batch without a copy.

    Raises:
        SourceError: a column is missing, or is no fixed-size list of floating-point numbers.
    """
    missing_N = np.zeros(labels.num_rows, dtype=np.bool_)
    views = []
    for name in columns:
        if name not in labels.schema.names:
            raise SourceError(f"labels: column {name} is missing; add its state to teacher.states")
        array = labels.column(name)
        if not pa.types.is_fixed_size_list(array.type) or not pa.types.is_floating(array.type.value_type):
            raise SourceError(f"labels: column {name} is {array.type}, not a fixed-size list of floating-point numbers")
        size, values = array.type.list_size, array.values
        # ``values`` ignores the slice and has a slot for null rows too; DLPack accepts it without its validity bitmap.
        offset = values.offset + array.offset * size
        flat = pa.Array.from_buffers(values.type, len(array) * size, [None, values.buffers()[1]], offset=offset)
        views.append(from_dlpack(flat).reshape(len(array), size))
        missing_N |= array.is_null().to_numpy(zero_copy_only=False)
        if values.null_count:
            slots = values.slice(array.offset * size, len(array) * size).is_null().to_numpy(zero_copy_only=False)
            missing_N |= slots.reshape(len(array), size).any(axis=1)
    return States(columns=tuple(views), missing_N=missing_N)
