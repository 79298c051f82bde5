"""Gradient-boosted trees on principal components of the teacher's hidden states (ours; the paper has none).

A tree splits one number at a time, and no single number of a hidden state means much. So if ``trust.pca`` is unset, the
trees read the first principal components, which hold most of the variance in few numbers. The fit is scikit-learn's
histogram gradient boosting (after LightGBM: Ke et al. 2017). The nodes are saved as arrays and evaluated here, so that
scoring needs neither a pickle nor scikit-learn.

This module also bins the values, by weighted quantiles of each column: if rows have weights, scikit-learn 1.9 sorts a
column again for each of its 254 edges, which takes ten times as long as fitting all trees.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from curation.arrays import Bools, Float64s, Floats, Int64s
from curation.config import TrustConfig
from curation.json_types import JsonView
from curation.trust import Scores
from curation.trust.states import SCORE_ROWS, StateTrust, compute_class_weights

BINS = 255
"""Maximum number of bins per column, the most that scikit-learn allows."""
NODES = ("feature", "threshold", "left", "right", "value", "is_leaf")
"""Saved fields of the nodes: arrays over all trees in turn; ``left`` and ``right`` are indices into these arrays."""
DEEPEST = 1_000
"""Maximum depth of a tree; each level costs a step for every row."""


class BoostedTrees(StateTrust):
    """Fitted trees. The raw score is the logit; trust is its calibrated sigmoid."""

    kind = "boosted_trees"
    default_pca = 64

    def __init__(
        self, weights: Mapping[str, Tensor], size: int, inputs: Sequence[str], fit: Mapping[str, object]
    ) -> None:
        """Take the arrays ``NODES``, the trees' roots and the baseline; rows have ``size`` numbers.

        Raise ``ValueError`` if the arrays differ in length, a node compares a column that no row has, or a node
        precedes its parent, does not exist or is reached twice, so that a walk might never end.
        """
        super().__init__(inputs, fit)
        self.size, self.weights, self.own = size, dict(weights), {"size": size}
        node = {name: tensor.numpy() for name, tensor in weights.items()}
        lengths = {name: node[name].shape for name in NODES}
        if len(set(lengths.values())) != 1 or len(node["value"].shape) != 1:
            raise ValueError(f"its nodes have the shapes {lengths}")
        is_inner_I, (num,) = ~node["is_leaf"].astype(np.bool_), node["value"].shape
        self._root_T, feature_I = node["roots_T"].astype(np.int64), node["feature"].astype(np.int64)
        if len(odd := feature_I[is_inner_I & ((feature_I < 0) | (feature_I >= size))]):
            raise ValueError(f"a node compares the number {odd[0]} of a row, which has {size}")
        place_I = np.arange(num)
        child_I2 = np.stack([node["left"], node["right"]], axis=1).astype(np.int64)
        reached = np.concatenate([self._root_T, child_I2[is_inner_I].ravel()])
        after = np.concatenate([np.zeros_like(self._root_T), np.repeat(place_I[is_inner_I] + 1, 2)])
        bad = (reached < after) | (reached >= num)  # children come after their node, so that no walk returns
        bad[np.setdiff1d(np.arange(len(reached)), np.unique(reached, return_index=True)[1])] = True
        if bad.any():
            raise ValueError(f"the node {reached[bad][0]} is reached twice, or is none")
        child_I2 = np.where(is_inner_I[:, None], child_I2, place_I[:, None])  # a leaf is its own child
        self._depth, level = 0, self._root_T[is_inner_I[self._root_T]]
        while len(level):
            if self._depth == DEEPEST:
                raise ValueError(f"a tree is more than {DEEPEST:,} nodes deep")
            below = child_I2[level].ravel()
            self._depth, level = self._depth + 1, below[is_inner_I[below]]
        self._feature_I, self._child_J = np.where(is_inner_I, feature_I, 0), child_I2.ravel()
        self._threshold_I, self._value_I = node["threshold"].astype(float), node["value"].astype(float)
        self._baseline = float(weights["baseline"])

    def logits(self, hidden_ND: Tensor) -> Scores:
        """Return the logit of each row, float32 [N]: the baseline plus each tree's leaf value, added in order."""
        logit_N = np.full(len(hidden_ND), self._baseline)
        for start in range(0, len(hidden_ND), SCORE_ROWS):
            rows = slice(start, start + SCORE_ROWS)
            wide_BD = hidden_ND[rows].double().numpy()
            begin_B1 = np.arange(len(wide_BD))[:, None] * wide_BD.shape[1]
            at_BT: Int64s = np.broadcast_to(self._root_T, (len(wide_BD), len(self._root_T)))
            for _ in range(self._depth):
                number_BT = wide_BD.take(begin_B1 + self._feature_I.take(at_BT))
                goes_right_BT = ~(number_BT <= self._threshold_I.take(at_BT))  # NaN goes right
                at_BT = self._child_J.take(2 * at_BT + goes_right_BT)
            for value_B in self._value_I.take(at_BT).T:
                logit_N[rows] += value_B
        return logit_N.astype(np.float32)

    @classmethod
    def fitted(
        cls,
        hidden_ND: Floats,
        correct_N: Bools,
        config: TrustConfig,
        origin: Mapping[str, object],
        *,
        num_trees: int = 100,
        learning_rate: float = 0.1,
        max_leaves: int = 31,
        min_rows: int = 20,
        l2: float = 0.0,
    ) -> Self:
        """Fit trees that predict from concatenated states whether a row's weak label is right.

        There are ``num_trees`` trees of at most ``max_leaves`` leaves of at least ``min_rows`` rows; all values are
        multiplied by ``learning_rate``, and ``l2`` is the penalty on the leaves' values. ``config`` gives the inputs'
        names and ``class_weight``, ``origin`` the rows' origin for the record.

        Raises:
            DegenerateSourceError: all labels are right, or all are wrong.
        """
        from sklearn.ensemble import HistGradientBoostingClassifier

        weights = compute_class_weights(correct_N, config.class_weight, "boosted trees")
        weight_N = None if weights[0] == weights[1] else np.where(correct_N, weights[1], weights[0])
        bins_ND, edges = _bin_values(hidden_ND.astype(np.float64), weight_N)
        model = HistGradientBoostingClassifier(
            max_iter=num_trees,
            learning_rate=learning_rate,
            max_leaf_nodes=max_leaves,
            min_samples_leaf=min_rows,
            l2_regularization=l2,
            early_stopping=False,
            random_state=0,  # draws rows to find the bins' edges on, which are there already
        ).fit(bins_ND, correct_N.astype(np.int64), sample_weight=weight_N)
        record = {"num_fit": len(correct_N), "share_right_fit": float(correct_N.mean())}
        return cls(_collect_nodes(model, edges), hidden_ND.shape[1], config.inputs, {**origin, **record})

    @classmethod
    def made(cls, weights: Mapping[str, Tensor], description: JsonView) -> Self:
        """Return the trees of these weights and this description."""
        return cls(weights, description["size"], description["inputs"], description["fit"])


def _bin_values(wide_ND: Float64s, weight_N: Float64s | None) -> tuple[Float64s, list[Float64s]]:
    """Return each value's bin number, and the ascending upper edges of all bins but the last of each column.

    Bins hold about the same weight. A column of at most ``BINS`` distinct values has one bin for each value.
    """
    bins_ND, edges = np.empty_like(wide_ND), []
    ranks = np.linspace(0, 100, BINS + 1)[1:-1]
    method: Any = "averaged_inverted_cdf" if weight_N is None else "inverted_cdf"  # NumPy has no weighted average
    for d, column_N in enumerate(wide_ND.T):
        values = np.unique(column_N)
        if len(values) <= BINS:
            edges.append((values[1:] + values[:-1]) / 2)
        else:
            edges.append(np.unique(np.percentile(column_N, ranks, weights=weight_N, method=method)))
        bins_ND[:, d] = np.searchsorted(edges[d], column_N)
    return bins_ND, edges


def _collect_nodes(model: Any, edges: Sequence[Float64s]) -> dict[str, Tensor]:
    """Return the nodes of a ``HistGradientBoostingClassifier``, which keeps them in private attributes.

    The model was fitted on bin numbers, so its thresholds are replaced by the bins' edges.
    """
    trees = [predictor.nodes for (predictor,) in model._predictors]
    roots_T = np.cumsum([0, *(len(nodes) for nodes in trees[:-1])])
    nodes = np.concatenate(trees)
    if nodes["is_categorical"].any():
        raise ValueError("a tree splits by categories, though all columns are numbers")
    start = np.repeat(roots_T, [len(tree) for tree in trees])
    inner = ~nodes["is_leaf"].astype(np.bool_)
    threshold = np.zeros(len(nodes))
    of_inner = zip(nodes["feature_idx"][inner], nodes["num_threshold"][inner].astype(np.int64), strict=True)
    threshold[inner] = [edges[feature][number] for feature, number in of_inner]
    found = {
        "feature": nodes["feature_idx"].astype(np.int64),
        "threshold": threshold,
        "left": nodes["left"] + start,
        "right": nodes["right"] + start,
        "value": nodes["value"].astype(np.float64),
        "is_leaf": nodes["is_leaf"].astype(np.bool_),
        "roots_T": roots_T,
        "baseline": np.asarray(model._baseline_prediction, dtype=np.float64).reshape(()),
    }
    return {name: torch.from_numpy(np.array(values)) for name, values in found.items()}
