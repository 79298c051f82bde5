"""Principal components of the hidden states, to store instead of the states (``teacher.store_states: {pca: k}``)."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Self

import pyarrow as pa
import torch
from torch import Tensor

from curation.refs import ProjectionRef
from curation.storage.paths import Place
from curation.tables.schemas import get_state_column
from curation.trust import saved
from curation.trust.components import compute_principal_components
from curation.trust.states import SCORE_ROWS, States, read_states


class Projection:
    """A fitted projection of hidden states [N, D] to [N, K]."""

    def __init__(self, mean_D: Tensor, components_DK: Tensor, states: Sequence[str], fit: Mapping[str, object]) -> None:
        self.mean_D, self.components_DK = mean_D.float(), components_DK.float()
        self.states = tuple(states)
        self.fit = fit
        """The data of the fit and the share of the variance that the projection keeps, as JSON."""

    @property
    def size(self) -> int:
        """The number of components."""
        return int(self.components_DK.shape[1])

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of the states, in the order in which they form the input."""
        return tuple(get_state_column(state) for state in self.states)

    def project(self, labels: pa.RecordBatch) -> pa.FixedSizeListArray:
        """Return each row's projection in its states' type; null if a state is null or the type's range is exceeded."""
        states = read_states(labels, self.features)
        dtype = states.columns[0].dtype
        projected_NK = torch.empty(labels.num_rows, self.size, dtype=dtype)
        with torch.inference_mode():
            for start in range(0, labels.num_rows, SCORE_ROWS):
                rows = slice(start, start + SCORE_ROWS)
                hidden_BD = torch.cat([column[rows] for column in states.columns], dim=1).float()
                projected_NK[rows] = ((hidden_BD - self.mean_D) @ self.components_DK).to(dtype)
        null_N = states.missing_N | ~projected_NK.isfinite().all(dim=1).numpy()
        values = pa.array(projected_NK.numpy().reshape(-1))
        return pa.FixedSizeListArray.from_arrays(values, self.size, mask=pa.array(null_N))

    def save(self, directory: Place) -> ProjectionRef:
        """Write weights and description into ``directory``; make the directory if it is missing."""
        weights = {"mean_D": self.mean_D, "components_DK": self.components_DK}
        return saved.save(directory, ProjectionRef, weights, {"states": self.states, "fit": self.fit})

    @classmethod
    def load(cls, ref: ProjectionRef) -> Self:
        """Return the projection that ``ref`` pins, or raise as :func:`curation.trust.saved.load` does."""
        return saved.load(ref, lambda weights, about: cls(**weights, states=about["states"], fit=about["fit"]))


@lru_cache(maxsize=4)
def load_projection(ref: ProjectionRef) -> Projection:
    """Load a projection once per worker process, not once per batch."""
    return Projection.load(ref)


def fit_projection(
    batches: Iterable[States], *, size: int, states: Sequence[str], origin: Mapping[str, object]
) -> Projection:
    """Return the first ``size`` principal components of the rows that have every state, in one pass over batches."""
    complete = (torch.cat(batch.columns, dim=1)[torch.from_numpy(~batch.missing_N)] for batch in batches)
    found = compute_principal_components(complete, size=size, key="teacher.store_states.pca")
    fit = {**origin, "num_rows": found.num_rows, "variance_kept": found.variance_kept}
    return Projection(found.mean_D, found.components_DK, states, fit)
