"""Gradient-boosted trees on principal components of the teacher's hidden states (ours; the paper has none).

Trees split one number at a time, and no single one of a hidden state's means much: so they get its principal
components, the most of its variance in few numbers. The fit is scikit-learn's histogram gradient boosting (after
LightGBM: Ke et al. 2017). What is saved are the nodes as arrays, and they are evaluated here: no pickle, and no
scikit-learn where rows are scored.

The fit's bins are made here, by weighted quantiles of each component: scikit-learn 1.9 sorts a component again for each
of its 254 edges where rows have weights, which takes ten times as long as all trees.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from curation.config import TrustConfig
from curation.errors import ConfigError
from curation.trust import Scores
from curation.trust.calibration import Calibration
from curation.trust.states import StateTrust, class_weights

COMPONENTS = 64
BINS = 255
"""Of each component; scikit-learn's most."""
NODES = ("feature", "threshold", "left", "right", "value", "is_leaf")
"""What is saved of each node, all trees one after the other; children by their places in these arrays."""


class BoostedTrees(StateTrust):
    """Fitted trees. The raw score is the logit, trust its calibrated sigmoid."""

    kind = "boosted_trees"

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        inputs: Sequence[str],
        fit: Mapping[str, Any],
        calibration: Calibration | None = None,
    ) -> None:
        super().__init__(inputs, fit, calibration)
        self._weights = dict(weights)
        self._node = {name: self._weights[name].numpy() for name in NODES}
        self._roots_T = self._weights["roots_T"].numpy()
        self._baseline = float(self._weights["baseline"])

    @property
    def size(self) -> int:
        """The numbers of a row before their projection."""
        return len(self._weights["mean_D"])

    def logits(self, hidden_ND: Tensor) -> Scores:
        """The logit of each row, float32 [N]: the baseline and a leaf's value of each tree, added in their order."""
        projected_NK = _projected(hidden_ND, self._weights["mean_D"], self._weights["components_DK"])
        rows_N, node = np.arange(len(projected_NK)), self._node
        logit_N = np.full(len(projected_NK), self._baseline)
        for root in self._roots_T:
            at_N = np.full(len(projected_NK), root)
            while not (end_N := node["is_leaf"][at_N]).all():
                goes_left_N = projected_NK[rows_N, node["feature"][at_N]] <= node["threshold"][at_N]
                next_N = np.where(goes_left_N, node["left"][at_N], node["right"][at_N])
                at_N = np.where(end_N, at_N, next_N)
            logit_N += node["value"][at_N]
        return logit_N.astype(np.float32)

    @classmethod
    def fitted(
        cls,
        hidden_ND: npt.NDArray[np.floating[Any]],
        correct_N: npt.NDArray[np.bool_],
        config: TrustConfig,
        origin: Mapping[str, Any],
        *,
        pca: int | None = None,
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
            pca: the number of principal components; unset ``COMPONENTS``, or as many as there are.
            num_trees: boosting steps, a tree each.
            learning_rate: what every tree's values are multiplied by.
            max_leaves: of a tree.
            min_rows: of a leaf.
            l2: the penalty on the leaves' values.

        Raises:
            DegenerateSourceError: all labels are right, or all are wrong.
            ConfigError: more components than numbers a row or rows.
        """
        from sklearn.ensemble import HistGradientBoostingClassifier

        weights = class_weights(correct_N, config.class_weight, "boosted trees")
        most = min(hidden_ND.shape[1], len(hidden_ND) - 1)
        if pca is None:
            pca = min(COMPONENTS, most)
        if not 0 < pca <= most:
            raise ConfigError(
                f"trust.options.boosted_trees.pca: {pca} components of {len(hidden_ND):,} rows with "
                f"{hidden_ND.shape[1]:,} numbers each; give fewer components or more source rows"
            )
        mean_D, components_DK, kept = _components(hidden_ND, pca)
        weight_N = None if weights[0] == weights[1] else np.where(correct_N, weights[1], weights[0])
        bins_NK, edges = _binned(_projected(torch.from_numpy(hidden_ND), mean_D, components_DK), weight_N)
        model = HistGradientBoostingClassifier(
            max_iter=num_trees,
            learning_rate=learning_rate,
            max_leaf_nodes=max_leaves,
            min_samples_leaf=min_rows,
            l2_regularization=l2,
            early_stopping=False,
            random_state=0,  # draws rows to find the bins' edges on, which are there already
        ).fit(bins_NK, correct_N.astype(np.int64), sample_weight=weight_N)
        record = {
            "num_fit": len(correct_N),
            "share_right_fit": float(correct_N.mean()),
            "variance_kept": kept,
        }
        arrays = {"mean_D": mean_D, "components_DK": components_DK, **_nodes(model, edges)}
        return cls(arrays, config.inputs, {**origin, **record})

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The projection and the nodes."""
        return self._weights

    @classmethod
    def made(cls, weights: Mapping[str, Tensor], description: Mapping[str, Any]) -> Self:
        """The trees."""
        return cls(weights, description["inputs"], description["fit"], Calibration(**description["calibration"]))


def _components(hidden_ND: npt.NDArray[np.floating[Any]], size: int) -> tuple[Tensor, Tensor, float]:
    """Mean and principal components of the rows, float64, and the share of the variance that they keep."""
    from sklearn.decomposition import PCA

    pca = PCA(size, svd_solver="covariance_eigh").fit(hidden_ND.astype(np.float64))
    kept = float(pca.explained_variance_ratio_.sum())
    return torch.from_numpy(pca.mean_), torch.from_numpy(np.ascontiguousarray(pca.components_.T)), kept


def _projected(hidden_ND: Tensor, mean_D: Tensor, components_DK: Tensor) -> npt.NDArray[np.float64]:
    projected_NK: npt.NDArray[np.float64] = ((hidden_ND.double() - mean_D) @ components_DK).numpy()
    return projected_NK


def _binned(
    projected_NK: npt.NDArray[np.float64], weight_N: npt.NDArray[np.float64] | None
) -> tuple[npt.NDArray[np.float64], list[npt.NDArray[np.float64]]]:
    """The number of each value's bin, and the upper edges of each component's bins but the last, ascending.

    Bins hold about the same weight; where there are few values, one each, and the edges lie between them.
    """
    bins_NK, edges = np.empty_like(projected_NK), []
    ranks = np.linspace(0, 100, BINS + 1)[1:-1]
    method: Any = "averaged_inverted_cdf" if weight_N is None else "inverted_cdf"  # NumPy has no weighted average
    for k, column_N in enumerate(projected_NK.T):
        values = np.unique(column_N)
        if len(values) <= BINS:
            edges.append((values[1:] + values[:-1]) / 2)
        else:
            edges.append(np.unique(np.percentile(column_N, ranks, weights=weight_N, method=method)))
        bins_NK[:, k] = np.searchsorted(edges[k], column_N)
    return bins_NK, edges


def _nodes(model: Any, edges: Sequence[npt.NDArray[np.float64]]) -> dict[str, Tensor]:
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
