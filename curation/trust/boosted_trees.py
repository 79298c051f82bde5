"""Gradient-boosted trees on principal components of the teacher's hidden states (ours; the paper has none).

Trees split one number at a time, and no single one of a hidden state's means much: so where ``trust.pca`` is unset they
get its first principal components, the most of its variance in few numbers. The fit is scikit-learn's histogram
gradient boosting (after LightGBM: Ke et al. 2017). What is saved are the nodes as arrays, and they are evaluated here:
no pickle, and no scikit-learn where rows are scored.

The fit's bins are made here, by weighted quantiles of each column: scikit-learn 1.9 sorts a column again for each of
its 254 edges where rows have weights, which takes ten times as long as all trees.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from curation.arrays import Bools, Float64s, Floats
from curation.config import TrustConfig
from curation.json_types import Json, JsonView
from curation.trust import Scores
from curation.trust.states import StateTrust, class_weights

BINS = 255
"""Bins of each number; scikit-learn's most."""
NODES = ("feature", "threshold", "left", "right", "value", "is_leaf")
"""Fields that are saved of each node, all trees one after the other; children by their places in these arrays."""

WORD = 16
"""Leaves whose bits are in one number."""
FIRST_CLEAR = np.log2(~np.arange(2**WORD) & np.arange(2**WORD) + 1).astype(np.uint8)
"""The place of the first bit that is not set, of each number of so many bits; ``WORD`` where all are."""


class BoostedTrees(StateTrust):
    """Fitted trees. The raw score is the logit, trust its calibrated sigmoid."""

    kind = "boosted_trees"
    default_pca = 64

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        size: int,
        inputs: Sequence[str],
        fit: Mapping[str, object],
    ) -> None:
        super().__init__(inputs, fit)
        self._size = size
        self._weights = dict(weights)
        node = {name: self._weights[name].numpy() for name in NODES}
        _check_nodes(node, size)
        left = set(range(len(node["is_leaf"])))
        self._trees = [_Tree.at(node, int(root), left) for root in self._weights["roots_T"]]
        self._baseline = float(self._weights["baseline"])

    @property
    def size(self) -> int:
        """The numbers among which the trees' splits choose."""
        return self._size

    def logits(self, hidden_ND: Tensor) -> Scores:
        """The logit of each row, float32 [N]: the baseline and a leaf's value of each tree, added in their order."""
        columns_DN = np.ascontiguousarray(hidden_ND.double().numpy().T)
        logit_N = np.full(columns_DN.shape[1], self._baseline)
        for tree in self._trees:
            logit_N += tree.values(columns_DN)
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
        """Fit on states side by side and whether each row's weak label is right.

        Args:
            hidden_ND: the states.
            correct_N: the target.
            config: gives the inputs' names and ``class_weight``.
            origin: where the rows come from, as JSON for the record.
            num_trees: boosting steps, a tree each.
            learning_rate: what every tree's values are multiplied by.
            max_leaves: of a tree.
            min_rows: of a leaf.
            l2: the penalty on the leaves' values.

        Raises:
            DegenerateSourceError: all labels are right, or all are wrong.
        """
        from sklearn.ensemble import HistGradientBoostingClassifier

        weights = class_weights(correct_N, config.class_weight, "boosted trees")
        weight_N = None if weights[0] == weights[1] else np.where(correct_N, weights[1], weights[0])
        bins_ND, edges = _binned(hidden_ND.astype(np.float64), weight_N)
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
        return cls(_nodes(model, edges), hidden_ND.shape[1], config.inputs, {**origin, **record})

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The nodes."""
        return self._weights

    def description(self) -> Json:
        """Adds the numbers of a row."""
        return {**super().description(), "size": self._size}

    @classmethod
    def made(cls, weights: Mapping[str, Tensor], description: JsonView) -> Self:
        """The trees."""
        return cls(weights, description["size"], description["inputs"], description["fit"])


def _check_nodes(node: Mapping[str, npt.NDArray[Any]], size: int) -> None:
    """Refuse nodes whose arrays differ in length, or that compare a column which no row has.

    Raises:
        ValueError: as above.
    """
    lengths = {name: of.shape for name, of in node.items()}
    if len(set(lengths.values())) != 1 or len(next(iter(lengths.values()))) != 1:
        raise ValueError(f"its nodes have the shapes {lengths}")
    inner = ~node["is_leaf"].astype(np.bool_)
    if len(odd := node["feature"][inner & ((node["feature"] < 0) | (node["feature"] >= size))]):
        raise ValueError(f"a node compares the number {odd[0]} of a row, which has {size}")


class _Tree:
    """A tree by the leaves that each inner node rules out, in words of ``WORD`` leaves from left to right.

    A row is at the leftmost leaf that no node rules out; where it goes right, that node rules out the leaves on its
    left. So each node is one comparison of a column, in any order (QuickScorer: Lucchese et al. 2015,
    https://doi.org/10.1145/2766462.2767733).
    """

    def __init__(self, tests: Sequence[tuple[int, float]], left_IL: Bools, value_L: Float64s) -> None:
        """``tests``: column and threshold of each inner node; ``left_IL``: which leaves are on its left."""
        self._tests, self._value_L = tests, value_L
        padded_IL = np.pad(left_IL, ((0, 0), (0, -left_IL.shape[1] % WORD)))
        powers = (1 << np.arange(WORD)).astype(np.uint16)
        self._left_WI = (
            (padded_IL.reshape(len(tests), padded_IL.shape[1] // WORD, WORD) * powers).sum(axis=2, dtype=np.uint16).T
        )

    @classmethod
    def at(cls, node: Mapping[str, npt.NDArray[Any]], root: int, left: set[int]) -> Self:
        """The tree whose root is the node ``root``, of the nodes' arrays; its nodes are removed from ``left``.

        Raises:
            ValueError: a node is reached twice, or is none. Such nodes are no trees, and walking them might never end.
        """
        tests: list[tuple[int, float]] = []
        spans: list[tuple[int, int]] = []
        values: list[float] = []

        def walk(at: int) -> None:
            if at not in left:
                raise ValueError(f"the node {at} is reached twice, or is none")
            left.remove(at)
            if node["is_leaf"][at]:
                values.append(float(node["value"][at]))
                return
            tests.append((int(node["feature"][at]), float(node["threshold"][at])))
            place, first = len(spans), len(values)
            spans.append((first, first))
            walk(node["left"][at])
            spans[place] = (first, len(values))
            walk(node["right"][at])

        walk(root)
        left_IL = np.zeros((len(spans), len(values)), dtype=np.bool_)
        for place, (first, stop) in enumerate(spans):
            left_IL[place, first:stop] = True
        return cls(tests, left_IL, np.array(values))

    def values(self, columns_DN: Float64s) -> Float64s:
        """The value of each row's leaf, float64 [N]."""
        ruled_out_WN = np.zeros((len(self._left_WI), columns_DN.shape[1]), dtype=np.uint16)
        for place, (feature, threshold) in enumerate(self._tests):
            right_N = ~(columns_DN[feature] <= threshold)  # NaN goes right
            for ruled_out_N, left_I in zip(ruled_out_WN, self._left_WI, strict=True):
                if left_I[place]:
                    ruled_out_N |= right_N * left_I[place]
        leaf_N = FIRST_CLEAR[ruled_out_WN[0]].astype(np.intp)
        for word, ruled_out_N in enumerate(ruled_out_WN[1:], start=1):
            is_further_N = leaf_N == WORD * word
            leaf_N[is_further_N] += FIRST_CLEAR[ruled_out_N[is_further_N]]
        value_N: Float64s = self._value_L[leaf_N]
        return value_N


def _binned(wide_ND: Float64s, weight_N: Float64s | None) -> tuple[Float64s, list[Float64s]]:
    """The number of each value's bin, and the upper edges of each column's bins but the last, ascending.

    Bins hold about the same weight; where there are few values, one each, and the edges lie between them.
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


def _nodes(model: Any, edges: Sequence[Float64s]) -> dict[str, Tensor]:
    """The nodes of a ``HistGradientBoostingClassifier``, which keeps them in private attributes.

    It was fitted on numbers of bins, and its thresholds lie between these; ours are the bins' edges.
    """
    trees = [predictor.nodes for (predictor,) in model._predictors]
    roots_T = np.cumsum([0, *(len(nodes) for nodes in trees[:-1])])
    nodes = np.concatenate(trees)
    if nodes["is_categorical"].any():
        raise ValueError("a split by categories, of numbers alone")
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
