"""Trust functions: how likely each weak label is right, judged without gold labels.

Each is one line of ``curation.arms.TRUST``. Heuristics read one column of the labels table. Fitted ones are fitted on
the source split (``train.trust``), loaded from a ``TrustRef`` to score the labels, and from then on read from the
columns that the scores went to (``curation.trust.column``).
"""

from collections.abc import Mapping
from typing import Any, Protocol, Self, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.arms import TRUST, Column, Draw, Signal
from curation.json_types import JsonView
from curation.refs import TrustRef
from curation.registry import code
from curation.storage.paths import Place

Scores = npt.NDArray[np.float32]


class TrustFunction(Protocol):
    """A trust function tau (paper, section "Trust Functions"); a larger score means a more reliable label.

    The caller handles rows with ``error`` set or an unparsed label. A row whose features are null scores NaN.
    """

    @property
    def name(self) -> str:
        """The function's name in ``curation.arms``."""
        ...

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of the labels table that it reads."""
        ...

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """The score that ranks rows, on any scale that grows with trust, float32 [N]."""
        ...

    def score(self, labels: pa.RecordBatch) -> Scores:
        """Trust in [0, 1] of each row, float32 [N]."""
        ...


class FittedTrust(Protocol):
    """A trust function whose parameters were fitted and saved; it reads hidden states.

    ``curation.trust.states.StateTrust`` has all but what makes one differ from another.
    """

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of the labels table that it reads."""
        ...

    @property
    def fit(self) -> JsonView:
        """The data and the course of the fit, as JSON."""
        ...

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """The score that ranks rows, float32 [N]."""
        ...

    def source_score(self, labels: pa.RecordBatch) -> Scores:
        """The same of labels of the source split: rows that it was fitted on have a held-out score, or NaN."""
        ...

    def to_trust(self, raw_N: Scores) -> Scores:
        """Trust in [0, 1] of raw scores, float32 [N]."""
        ...

    def noted(self, **notes: object) -> Self:
        """This trust function, with notes on its fit added to ``fit``."""
        ...

    def save(self, directory: Place) -> TrustRef:
        """Write weights and description into ``directory``; make the directory if it is missing."""
        ...

    @classmethod
    def loaded(cls, weights: Mapping[str, object], description: Mapping[str, object]) -> Self:
        """Build the trust function from saved weights and their description."""
        ...


def load_fitted(ref: TrustRef) -> FittedTrust:
    """Load a fitted trust function of any kind, ready to score labels that hold its states.

    Raises:
        ModelError: the directory lacks a file, changed since it was pinned, or holds something else.
    """
    from curation.trust import saved

    def make(weights: Mapping[str, Any], description: Mapping[str, Any]) -> FittedTrust:
        try:
            loaded = code(description["made_by"]).loaded
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{description['made_by']}: {error}") from error
        return cast(FittedTrust, loaded(weights, description))

    return saved.load(ref, make)


def get_trust(name: str, seed: int, *, unread_last: bool = False) -> TrustFunction:
    """The trust function of that name over scored labels; ``seed`` is that of a draw.

    ``unread_last``: rows of which a signal could not be read have its lowest score, and not NaN.
    """
    from curation.trust.column import ColumnTrust, FittedColumns
    from curation.trust.naive import Naive

    trust = TRUST[name]
    if isinstance(trust, Draw):
        return Naive(seed)
    if isinstance(trust, Column | Signal):
        last = unread_last and isinstance(trust, Signal)
        return ColumnTrust(name=name, column=trust.column, unit=trust.unit, unread_last=last)
    return FittedColumns(name=name)
