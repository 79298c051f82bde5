"""Stacking (Wolpert 1992): a regularised model combines numbers of the answer and cross-fitted models of its states.

The numbers cost nothing: every labelling pass stores them (``schemas.NUMBERS``). The members read the hidden states:
linear probes, networks if there are many rows, and a class probe if labels are a closed set. Each member gives every
labelled row a logit by weights that have not seen the row. The combination, a logistic regression or boosted trees, is
fitted on numbers and logits of all labelled rows, so that its output is a probability without rows held out for
calibration. ``train.stack`` fits the stack, with fewer inputs, down to a single number, if those do as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from scipy.special import expit
from torch import Tensor

from curation.arrays import Bools, Float64s
from curation.errors import SourceError
from curation.json_types import JsonView
from curation.tables.schemas import describe_mend, is_number
from curation.trust import Scores
from curation.trust.boosted_trees import BoostedTrees
from curation.trust.class_probe import CLASS_PROBE, LABEL, ClassProbe, find_value_places
from curation.trust.deep_ensemble import DeepEnsemble
from curation.trust.folded import FoldedInput
from curation.trust.states import StateTrust, read_states, select_under

NETWORKS = "networks"
"""The name of the networks' column among those that a combination reads."""


@dataclass(frozen=True)
class Logistic:
    """A logistic regression on K columns: numbers and members' logits."""

    weight_K: Float64s
    bias: float

    def logits(self, columns_NK: Float64s) -> Float64s:
        """Return the logit of each row, float64 [N]; no value is missing."""
        logit_N: Float64s = columns_NK @ self.weight_K + self.bias
        return logit_N

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The fitted weights, by name."""
        return {"weight_K": torch.from_numpy(self.weight_K), "bias": torch.tensor(self.bias, dtype=torch.float64)}


@dataclass(frozen=True)
class Trees:
    """Boosted trees on the same K columns as :class:`Logistic`."""

    trees: BoostedTrees

    def logits(self, columns_NK: Float64s) -> Float64s:
        """Return the logit of each row, float64 [N]; no value is missing."""
        return self.trees.logits(torch.from_numpy(columns_NK)).astype(np.float64)

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The fitted weights, by name."""
        return {f"trees.{name}": of for name, of in self.trees.weights.items()}


@dataclass(frozen=True)
class PiecewiseLinearCalibrator:
    """An increasing piecewise linear function with B bends, from a model's logits to calibrated ones."""

    intercept: float = 0.0
    slope: float = 1.0
    bends: tuple[float, ...] = ()
    """The change of the slope at each knee."""
    knees: tuple[float, ...] = ()

    def __call__(self, raw_N: Float64s) -> Float64s:
        """Return the calibrated logits, float64 [N]."""
        logit_N: Float64s = self.intercept + self.slope * raw_N
        for bend, knee in zip(self.bends, self.knees, strict=True):
            logit_N = logit_N + bend * np.maximum(raw_N - knee, 0)
        return logit_N

    @property
    def weights(self) -> Tensor:
        """The intercept, the slope, the bends and the knees, float64 [2 + 2B]."""
        return torch.tensor([self.intercept, self.slope, *self.bends, *self.knees], dtype=torch.float64)

    @classmethod
    def made(cls, weights: Tensor) -> Self:
        """Return the function with these :attr:`weights`."""
        intercept, slope, *rest = weights.tolist()
        num_bends = len(rest) // 2
        return cls(intercept, slope, tuple(rest[:num_bends]), tuple(rest[num_bends:]))


@dataclass(frozen=True)
class Combination:
    """A model on the columns ``names``, numbers first; a missing value is replaced by the column's mean in the fit."""

    names: tuple[str, ...]
    mean_K: Float64s
    model: Logistic | Trees
    calibrator: PiecewiseLinearCalibrator = PiecewiseLinearCalibrator()

    def logits(self, columns_NK: Float64s) -> Float64s:
        """Return the logit of each row, float64 [N]; NaN stands for a missing value."""
        return self.calibrator(self.model.logits(self._fill_missing(columns_NK)))

    def parts(self, columns_NK: Float64s) -> Float64s:
        """Return how far each column's value, compared with its mean, shifts each row's logit, float64 [N, K]."""
        filled_NK = self._fill_missing(columns_NK)
        whole_N, parts_NK = self.logits(columns_NK), np.empty(columns_NK.shape)
        for place, mean in enumerate(self.mean_K):
            without_NK = filled_NK.copy()
            without_NK[:, place] = mean
            parts_NK[:, place] = whole_N - self.logits(without_NK)
        return parts_NK

    def _fill_missing(self, columns_NK: Float64s) -> Float64s:
        return np.where(np.isnan(columns_NK), self.mean_K, columns_NK)


class Probes:
    """Linear probes on concatenated states, in the order of ``names``."""

    def __init__(self, names: Sequence[str], weight_MD: Tensor, bias_M: Tensor, centre_D: Tensor) -> None:
        """Take the parts of the logits ``weight_MD @ (row - centre_D) + bias_M``, all in float64."""
        self.names, self.centre_D = tuple(names), centre_D
        self.weights = {"weight_MD": weight_MD, "bias_M": bias_M, "centre_D": centre_D}
        self._folded = FoldedInput(weight_MD, bias_M, centre_D)

    def logits(self, columns: Sequence[Tensor]) -> Float64s:
        """Return the logit of each row by each of M probes, float64 [N, M]; ``columns`` are the rows' states."""
        return self._folded(columns).double().numpy()


class StackedTrust(StateTrust):
    """A fitted stack. The raw score is the logit; trust is its sigmoid."""

    kind = "stacked"

    def __init__(
        self,
        combination: Combination,
        fit: Mapping[str, object],
        *,
        states: Sequence[str] = (),
        probes: Probes | None = None,
        networks: DeepEnsemble | None = None,
        class_probe: ClassProbe | None = None,
    ) -> None:
        self.combination, self.probes, self.networks, self.class_probe = combination, probes, networks, class_probe
        members = [*(() if probes is None else probes.names), *(() if class_probe is None else [CLASS_PROBE])]
        members += [] if networks is None else [NETWORKS]
        self.numbers = tuple(name for name in combination.names if name not in members)
        self.read_by_members = tuple(states) if members else ()
        super().__init__((*self.read_by_members, *self.numbers), fit)
        self._width = 0
        """The number of stored values per row that the members read."""
        if probes is not None:
            self._width = len(probes.centre_D)
        elif networks is not None:
            width, size = (0, 0) if networks.pca is None else networks.pca.shape
            self._width = networks.size - size + width
        self.size = self._width + len(self.numbers)
        parts = {
            "combination": combination.model.weights,
            "probes": {} if probes is None else probes.weights,
            NETWORKS: {} if networks is None else networks.saved_weights(),
            "class_probe": {} if class_probe is None else class_probe.weights,
        }
        first = {"mean_K": torch.from_numpy(combination.mean_K), "bent": combination.calibrator.weights}
        self.weights = first | {f"{part}.{name}": of for part, weights in parts.items() for name, of in weights.items()}
        self.own = {
            "columns": combination.names,
            "read_by_members": self.read_by_members,
            "probes": None if probes is None else probes.names,
            "networks": None if networks is None else networks.description(),
            **({} if class_probe is None else {"class_probe": class_probe.description()}),
        }

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of the inputs, in their order, then the label's column if there is a class probe."""
        return (*super().features, *(() if self.class_probe is None else [LABEL]))

    def logits(self, hidden_ND: Tensor) -> Scores:
        """Return each row's logit from its concatenated inputs, float32 [N], as if its label were no known class."""
        states_ND, numbers_NK = torch.split(hidden_ND, [self._width, len(self.numbers)], dim=1)
        return self.raw_of([states_ND, numbers_NK.double().numpy(), np.full(len(hidden_ND), np.nan)])

    def raw_with(self, hidden_ND: Tensor, numbers_NK: Float64s, names: Sequence[str]) -> Scores:
        """Return the logit of each row of a fit, float32 [N]; the number called ``LABEL`` is its class's index."""
        of_names = [names.index(name) for name in self.numbers]
        class_N = numbers_NK[:, names.index(LABEL)] if LABEL in names else np.full(len(numbers_NK), np.nan)
        return self.raw_of([hidden_ND, numbers_NK[:, of_names], class_N])

    def raw_of(self, columns: Sequence[Any]) -> Scores:
        """Return the logit of each row, float32 [N]; ``columns`` are those of :meth:`_read`."""
        return self.combination.logits(self._join_columns(columns)).astype(np.float32)

    def explained(self, labels: pa.RecordBatch) -> dict[str, Float64s]:
        """Return how far each input's value, compared with its mean, shifts each row's logit, float64 [N] by name."""
        parts_NK = self.combination.parts(self._join_columns(self._read(labels)[0]))
        return {name: parts_NK[:, place] for place, name in enumerate(self.combination.names)}

    def _read(self, labels: pa.RecordBatch) -> tuple[Sequence[Any], Bools]:
        """Return the columns of states, the numbers and each row's class; and which rows lack a state or all numbers.

        The class is its index, float64 [N]; NaN if it is unknown or there is no class probe.
        """
        numbers_NK, class_N = read_numbers(labels, self.numbers), np.full(labels.num_rows, np.nan)
        columns: Sequence[Tensor] = ()
        missing_N: Bools = np.zeros(labels.num_rows, dtype=np.bool_)
        if self.numbers:
            missing_N |= np.isnan(numbers_NK).all(axis=1)
        if self.read_by_members:
            columns, lacking_N = read_states(labels, self.features[: len(self.read_by_members)], self._width)
            missing_N |= lacking_N
        if self.class_probe is not None:
            if LABEL not in labels.schema.names:
                raise SourceError(
                    f"labels: column {LABEL} is missing, whose class the trust function compares; label again"
                )
            class_N = find_value_places(labels.column(LABEL), self.class_probe.classes)
        return (*columns, numbers_NK, class_N), missing_N

    def _join_columns(self, read: Sequence[Any]) -> Float64s:
        """Return the columns that the combination reads, float64 [N, K], from those of :meth:`_read`."""
        *states, numbers_NK, class_N = read
        columns = [numbers_NK]
        if self.probes is not None:
            columns.append(self.probes.logits(states))
        if self.class_probe is not None:
            columns.append(self.class_probe.log_odds(states, class_N)[:, None])
        if self.networks is not None:
            columns.append(self.networks.raw_of(states).astype(np.float64)[:, None])
        return np.concatenate(columns, axis=1)

    def to_trust(self, raw_N: Scores) -> Scores:
        """Return the sigmoid of logits, float32 [N]; NaN for NaN."""
        trust_N: Scores = expit(raw_N.astype(np.float64)).astype(np.float32)
        return trust_N

    @classmethod
    def made(cls, weights: Mapping[str, Tensor], description: JsonView) -> Self:
        """Return the stack with these saved weights and their description."""
        found, columns = select_under(weights, "combination."), tuple(description["columns"])
        model: Logistic | Trees
        if "weight_K" not in found:
            model = Trees(BoostedTrees(select_under(found, "trees."), len(columns), columns, {}))
        else:
            model = Logistic(found["weight_K"].numpy(), float(found["bias"]))
        probes, networks, class_probe = description["probes"], description["networks"], description.get("class_probe")
        return cls(
            Combination(columns, weights["mean_K"].numpy(), model, PiecewiseLinearCalibrator.made(weights["bent"])),
            description["fit"],
            states=description["read_by_members"],
            probes=None if probes is None else Probes(probes, **select_under(weights, "probes.")),
            networks=None if networks is None else DeepEnsemble.loaded(select_under(weights, f"{NETWORKS}."), networks),
            class_probe=class_probe and ClassProbe.made(select_under(weights, "class_probe."), class_probe),
        )


def read_numbers(labels: pa.RecordBatch, names: Sequence[str]) -> Float64s:
    """Return numeric columns of labels as one matrix, float64 [N, K]; NaN for nulls and numbers that are not finite."""
    numbers_NK = np.empty((labels.num_rows, len(names)))
    for place, name in enumerate(names):
        if name not in labels.schema.names:
            raise SourceError(f"labels: column {name} is missing; {describe_mend(name)}")
        column = labels.column(name)
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        numbers_N = pc.fill_null(column.cast(pa.float64()), np.nan).to_numpy(zero_copy_only=False)
        numbers_NK[:, place] = np.where(np.isfinite(numbers_N), numbers_N, np.nan)
    return numbers_NK


def list_stored_numbers(schema: pa.Schema) -> tuple[str, ...]:
    """Return the names of a labels table's columns with numbers that trust functions read (``schemas.is_number``)."""
    return tuple(filter(is_number, schema.names))
