"""A linear probe: logistic regression on the teacher's hidden states (ours; the paper has none)."""

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from curation.arrays import Bools, Floats
from curation.config import TrustConfig
from curation.json_types import JsonView
from curation.trust import Scores
from curation.trust.states import StateTrust, compute_class_weights

MAX_ITERATIONS = 1000


class LinearProbe(StateTrust):
    """A fitted linear probe. The raw score is the logit; trust is its calibrated sigmoid."""

    kind = "linear_probe"

    def __init__(self, weight_D: Tensor, bias: Tensor, inputs: Sequence[str], fit: Mapping[str, object]) -> None:
        super().__init__(inputs, fit)
        self.weight_D, self.bias = weight_D.double(), bias.double()
        self.size, self.weights = len(weight_D), {"weight_D": self.weight_D, "bias": self.bias}

    def logits(self, hidden_ND: Tensor) -> Scores:
        """Return the logit of each row, float32 [N]."""
        return (hidden_ND.double() @ self.weight_D + self.bias).float().numpy()

    def raw_of(self, columns: Sequence[Tensor]) -> Scores:
        """Return the logit of each row, float32 [N]; a projection is folded into the weights."""
        if self._folded is None:
            weight_D, bias = self.weight_D, self.bias
            if self.pca is not None:
                weight_1D, bias_1, centre_D = self.pca.fold(weight_D[None], bias[None], torch.zeros_like(weight_D))
                weight_D, bias = weight_1D[0], bias_1[0] - weight_1D[0] @ centre_D
            self._folded = weight_D, bias
        weight_D, bias = self._folded
        parts = weight_D.split([column.shape[1] for column in columns])
        sum_N = sum(column_ND.double() @ part_D for column_ND, part_D in zip(columns, parts, strict=True))
        logit_N: Scores = (bias + sum_N).float().numpy()
        return logit_N

    @classmethod
    def fitted(cls, hidden_ND: Floats, correct_N: Bools, config: TrustConfig, origin: Mapping[str, object]) -> Self:
        """Fit a probe that predicts from concatenated states (``config.inputs``) whether a row's weak label is right.

        The fit standardises the inputs (and folds this into the weights afterwards) and shrinks the weights by
        scikit-learn's default penalty. It is deterministic. ``config`` gives the inputs' names and ``class_weight``,
        ``origin`` is the rows'.

        Raises:
            DegenerateSourceError: all labels are right, or all are wrong.
        """
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        weights = compute_class_weights(correct_N, config.class_weight, "linear probe")
        scaler = StandardScaler()
        scaled_ND = scaler.fit_transform(hidden_ND.astype(np.float32))
        model = LogisticRegression(class_weight=weights, max_iter=MAX_ITERATIONS)
        model.fit(scaled_ND, correct_N.astype(np.int64))
        weight_D = model.coef_[0].astype(np.float64) / scaler.scale_
        bias = float(model.intercept_[0]) - float(weight_D @ scaler.mean_)
        record = {
            "num_fit": len(correct_N),
            "share_right_fit": float(correct_N.mean()),
            "num_iterations": int(model.n_iter_[0]),
        }
        return cls(torch.from_numpy(weight_D), torch.tensor(bias), config.inputs, {**origin, **record})

    @classmethod
    def made(cls, weights: Mapping[str, Tensor], description: JsonView) -> Self:
        """Return the linear probe."""
        return cls(weights["weight_D"], weights["bias"], description["inputs"], description["fit"])
