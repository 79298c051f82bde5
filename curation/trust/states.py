"""Trust functions of hidden states: what all of them share, and the states as views of a batch's memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from curation.errors import SourceError
from curation.refs import TrustRef
from curation.storage.paths import Place
from curation.tables.schemas import state_column
from curation.trust import Scores, saved
from curation.trust.calibration import Calibration

SCORE_ROWS = 4096
"""Rows of one forward pass when scoring."""


class StateTrust(ABC):
    """A trust function that gives a logit from hidden states; trust is its calibrated sigmoid."""

    kind: ClassVar[str]
    """What it is called on record."""

    def __init__(self, states: Sequence[str], fit: Mapping[str, Any], calibration: Calibration | None = None) -> None:
        self.states = tuple(states)
        self.fit = fit
        """What it was fitted on and how that went, as JSON."""
        self.calibration = calibration or Calibration()

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of the states, in the order in which they form the input."""
        return tuple(state_column(state) for state in self.states)

    @property
    @abstractmethod
    def size(self) -> int:
        """Numbers a row, over all states, that it was fitted on."""

    @abstractmethod
    def logits(self, hidden_ND: Tensor) -> Scores:
        """The logit of each row of states side by side, in their stored type, float32 [N]."""

    @property
    @abstractmethod
    def weights(self) -> Mapping[str, Tensor]:
        """What was fitted, by name."""

    @classmethod
    @abstractmethod
    def made(cls, weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Self:
        """The trust function that :meth:`save` described so."""

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """The logit of each row, float32 [N]; NaN where a state is null.

        Raises:
            SourceError: a state column is missing, or the states have another size than those it was fitted on.
        """
        states = read_states(labels, self.features)
        if states.size != self.size:
            raise SourceError(
                f"{', '.join(self.features)}: {states.size} numbers a row, the trust function was fitted on "
                f"{self.size}; score the labels of the teacher that it was fitted for"
            )
        raw_N = np.empty(labels.num_rows, dtype=np.float32)
        for start, hidden_ND in states.batches(SCORE_ROWS):
            raw_N[start : start + len(hidden_ND)] = self.logits(hidden_ND)
        raw_N[states.missing_N] = np.nan
        return raw_N

    def description(self) -> dict[str, Any]:
        """What :meth:`made` needs beside the weights, as JSON."""
        return {
            "kind": self.kind,
            "made_by": f"{type(self).__module__}:{type(self).__qualname__}",
            "states": self.states,
            "calibration": asdict(self.calibration),
            "fit": self.fit,
        }

    def to_trust(self, raw_N: Scores) -> Scores:
        """The calibrated sigmoid of logits, float32 [N]."""
        return self.calibration.to_trust(raw_N)

    def score(self, labels: pa.RecordBatch) -> Scores:
        """The trust score of each row, float32 [N]; NaN where a state is null."""
        return self.to_trust(self.raw_score(labels))

    def noted(self, **notes: Any) -> Self:
        """This trust function, with notes on record of how its fit went."""
        self.fit = {**self.fit, **notes}
        return self

    def save(self, directory: Place) -> TrustRef:
        """Write weights and description into ``directory``, made where missing."""
        return saved.save(directory, TrustRef, self.weights, self.description())


@dataclass(frozen=True, kw_only=True)
class States:
    """Hidden states of N rows, as views of Arrow's memory."""

    columns: tuple[Tensor, ...]
    """[N, D] a column, in the stored type; the numbers of a missing row are undefined."""
    missing_N: npt.NDArray[np.bool_]
    """One of the row's states is null."""

    @property
    def size(self) -> int:
        """Numbers a row, over all columns."""
        return sum(column.shape[1] for column in self.columns)

    def batches(self, num_rows: int) -> Iterator[tuple[int, Tensor]]:
        """The first row's index and the states [num_rows, D] of consecutive batches, columns side by side."""
        for start in range(0, len(self.missing_N), num_rows):
            parts = [column[start : start + num_rows] for column in self.columns]
            yield start, parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def read_states(labels: pa.RecordBatch, columns: Sequence[str]) -> States:
    """The ``fixed_size_list`` columns of a batch without a copy.

    Raises:
        SourceError: a column is missing or no fixed-size list of floating-point numbers.
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
        # ``values`` ignores the slice and holds a slot for null rows too; without its validity bitmap DLPack takes it.
        offset = values.offset + array.offset * size
        flat = pa.Array.from_buffers(values.type, len(array) * size, [None, values.buffers()[1]], offset=offset)
        views.append(from_dlpack(flat).reshape(len(array), size))
        missing_N |= array.is_null().to_numpy(zero_copy_only=False)
        if values.null_count:
            slots = values.slice(array.offset * size, len(array) * size).is_null().to_numpy(zero_copy_only=False)
            missing_N |= slots.reshape(len(array), size).any(axis=1)
    return States(columns=tuple(views), missing_N=missing_N)
