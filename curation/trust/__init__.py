"""Trust functions, which estimate how likely each weak label is right without its gold label.

Each is an entry of ``curation.arms.TRUST``. Heuristics read one column of the labels table. Fitted functions are fitted
on the source split (``train.trust``), loaded from a ``TrustRef`` to score the labels, and from then on read from the
columns that hold their scores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.arms import TRUST, Column, Draw, Signal, Unit
from curation.errors import ModelError, SourceError
from curation.hashing import hash_unit
from curation.refs import TrustRef
from curation.registry import load_code
from curation.storage.cache import fetch_folder
from curation.storage.json_files import read_json
from curation.storage.paths import to_place
from curation.tables.schemas import get_raw_column, trust_column

if TYPE_CHECKING:
    from curation.trust.states import StateTrust

Scores = npt.NDArray[np.float32]


class TrustFunction(Protocol):
    """A trust function tau (paper, section "Trust Functions"); a larger score means a more reliable label.

    The caller handles rows with ``error`` set or an unparsed label. A row whose features are null scores NaN.
    """

    @property
    def name(self) -> str:
        """The function's name in ``curation.arms``."""

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of the labels table that the function reads."""

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """Return the score that ranks rows, on any scale that grows with trust, float32 [N]."""

    def score(self, labels: pa.RecordBatch) -> Scores:
        """Return the trust in [0, 1] of each row, float32 [N]."""


def load_fitted(ref: TrustRef) -> "StateTrust":
    """Load a fitted trust function of any kind, ready to score labels that hold its states.

    Raises:
        ModelError: the directory lacks a file, changed since it was pinned, or holds something else.
    """
    import safetensors.torch
    from safetensors import SafetensorError

    from curation.trust import saved

    if (found := saved.pin(to_place(ref.uri)).digest) != ref.digest:
        raise ModelError(f"{ref.uri}: digest {found}, pinned was {ref.digest}; fit it again")
    directory = fetch_folder(ref.uri)
    try:
        weights = safetensors.torch.load_file(directory / saved.WEIGHTS)
        description = read_json(directory / saved.DESCRIPTION)
        return cast("StateTrust", load_code(description["made_by"]).loaded(weights, description))
    except (ArithmeticError, AttributeError, ImportError, LookupError, MemoryError, OSError, RuntimeError, TypeError,
            ValueError, SafetensorError) as error:  # fmt: skip
        raise ModelError(f"{ref.uri}: was not saved by this version ({error})") from error


def get_trust(name: str, seed: int, *, unread_last: bool = False) -> TrustFunction:
    """Return the trust function called ``name``, which reads scored labels; ``seed`` is the seed of a uniform draw.

    With ``unread_last``, rows whose signal could not be read have the lowest score instead of NaN.
    """
    trust = TRUST[name]
    if isinstance(trust, Draw):
        return Naive(seed)
    if isinstance(trust, Column | Signal):
        last = unread_last and isinstance(trust, Signal)
        return ColumnTrust(name=name, column=trust.column, trust=trust.unit, unread_last=last)
    return ColumnTrust(name=name, column=get_raw_column(name), trust=None)


UNREAD = np.finfo(np.float32).min
"""The raw score that ranks a row without a value last; finite, because such a row may be selected."""


@dataclass(frozen=True, kw_only=True)
class ColumnTrust:
    """A trust function that reads a column of the labels table as raw score.

    Trust is a non-decreasing function of it (a heuristic: the paper's App. "Baseline Details", or ours) or, if the
    function is fitted, a column. The pass or the signal that fills a column documents the column.
    """

    name: str
    column: str
    trust: Unit | None
    """The scale of the column; ``None`` for a fitted function, whose trust is in the column ``trust_column(name)``."""
    unread_last: bool = False
    """Whether rows without a value rank last, with a trust of 0, instead of being left out."""

    @property
    def features(self) -> tuple[str, ...]:
        """The column of the raw score and, for a fitted function, the column of its trust."""
        return (self.column,) if self.trust is not None else (self.column, trust_column(self.name))

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """Return the column's values, float32 [N]; a null becomes ``UNREAD`` with ``unread_last``, else NaN."""
        values_N = self._read(labels, self.column)
        return np.where(np.isnan(values_N), UNREAD, values_N) if self.unread_last else values_N

    def score(self, labels: pa.RecordBatch) -> Scores:
        """Return the trust in [0, 1] of each row, float32 [N]; a null becomes 0 with ``unread_last``, else NaN."""
        if self.trust is None:
            return self._read(labels, trust_column(self.name))
        with np.errstate(over="ignore"):
            return TO_UNIT[self.trust](self.raw_score(labels))

    def _read(self, labels: pa.RecordBatch, column: str) -> Scores:
        """Return a column's values; raise ``SourceError`` if it is missing."""
        if column not in labels.schema.names:
            raise SourceError(f"labels: column {column} is missing; label with the arm {self.name} selected")
        values_N: Scores = labels.column(column).to_numpy(zero_copy_only=False).astype(np.float32)
        return values_N


TO_UNIT: dict[Unit, Callable[[Scores], Scores]] = {
    # rounding may put shares outside [0, 1], and log-probabilities above 0
    "share": lambda raw_N: np.clip(raw_N, np.float32(0), np.float32(1)),
    "logprob": lambda raw_N: np.exp(np.minimum(raw_N, np.float32(0))),
    "logit": lambda raw_N: np.reciprocal(1 + np.exp(-raw_N)),
    # one over the number of equally likely words or options that would be as unsure
    "negentropy": lambda raw_N: np.exp(np.minimum(raw_N, np.float32(0))),
}
"""Functions that convert a column's values to trust, by the column's scale."""


class Naive:
    """A uniform draw, by row id alone: trust is a seeded hash in [0, 1], so that ranking by it selects at random."""

    name = "naive"
    features = ("row_id",)

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """Return the draw of each row, float32 [N]."""
        return hash_unit(labels.column("row_id").to_numpy(), self.seed).astype(np.float32)

    def score(self, labels: pa.RecordBatch) -> Scores:
        """Return the draw of each row, float32 [N]."""
        return self.raw_score(labels)
