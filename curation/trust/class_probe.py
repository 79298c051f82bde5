"""A probe that predicts a row's class from its prompt's states, and so says how likely the row's label is.

The states of a prompt do not depend on the label, so the predicted class is a second opinion on it, as in confident
learning (Northcutt, Jiang and Chuang 2021, https://doi.org/10.1613/jair.1.12125). ``train.probes`` fits the probe if
labels are a closed set.
"""

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

from curation.arrays import Float64s
from curation.json_types import Json, JsonView
from curation.trust.folded import FoldedInput

CLASS_PROBE = "class probe"
"""The name of the class probe's column among those that a stack's combination reads."""
LABEL = "label"
"""The column with the label whose log-odds the probe gives."""


class ClassProbe:
    """A linear probe of C classes; its scores times ``sharpness`` are the logits of a softmax."""

    def __init__(
        self, classes: Sequence[str], spans: Sequence[tuple[int, int]], weights: Mapping[str, Tensor], sharpness: float
    ) -> None:
        """Take ``spans``: ascending ranges (start, end) of a row's concatenated states that the probe reads.

        ``weights`` holds ``weight_CD``, ``bias_C`` and ``centre_D`` in float64: the scores are ``weight_CD @ (states -
        centre_D) + bias_C``. ``sharpness`` is the inverse temperature.
        """
        self.classes, self.spans, self.weights = tuple(classes), tuple(spans), dict(weights)
        self.sharpness = sharpness
        self._folded = FoldedInput(weights["weight_CD"], weights["bias_C"], weights["centre_D"])

    def log_odds(self, columns: Sequence[Tensor], class_N: Float64s) -> Float64s:
        """Return the log-odds of each row's class from its columns of states, float64 [N]; NaN for a NaN class.

        ``class_N`` is the index of the row's label among the classes, or NaN if it is none of them.
        """
        ends = np.cumsum([column.shape[1] for column in columns]).tolist()
        starts = [0, *ends[:-1]]
        read = [
            column[:, start - first : end - first]
            for start, end in self.spans
            for column, first, last in zip(columns, starts, ends, strict=True)
            if first <= start and end <= last
        ]
        return log_odds(self._folded(read).double().numpy() * self.sharpness, class_N)

    def description(self) -> Json:
        """Return the arguments of :meth:`made` other than the weights, as JSON."""
        return {"classes": self.classes, "spans": self.spans, "sharpness": self.sharpness}

    @classmethod
    def made(cls, weights: Mapping[str, Tensor], description: JsonView) -> Self:
        """Return the probe of these weights and this description."""
        spans = [(start, end) for start, end in description["spans"]]
        return cls(description["classes"], spans, weights, description["sharpness"])


def log_odds(logit_NC: Float64s, class_N: Float64s) -> Float64s:
    """Return the log-odds of the class of each row under a softmax of its logits, float64 [N]; NaN for a NaN class."""
    known_N = ~np.isnan(class_N)
    at_M = (np.arange(int(known_N.sum())), class_N[known_N].astype(np.int64))
    logit_MC = logit_NC[known_N].copy()
    own_M = logit_MC[at_M]
    logit_MC[at_M] = -np.inf
    found_N = np.full(len(class_N), np.nan)
    found_N[known_N] = own_M - np.logaddexp.reduce(logit_MC, axis=1)
    return found_N


def find_value_places(values: pa.Array, classes: Sequence[str]) -> Float64s:
    """Return the index of each value among the classes, float64 [N]; NaN for a null or a value that is none of them."""
    found = pc.index_in(values.cast(pa.string()), value_set=pa.array(classes, pa.string()))
    return np.asarray(found.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
