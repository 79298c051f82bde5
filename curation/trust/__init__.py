"""Trust functions, which estimate how likely each weak label is right without its gold label.

Each is an entry of ``curation.arms.TRUST``. Heuristics read one column of the labels table. Fitted functions are fitted
on the source split (``train.trust``), loaded from a ``TrustRef`` to score the labels, and from then on read from the
columns that hold their scores (``curation.trust.column``).
"""

from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.arms import TRUST, Column, Draw, Signal
from curation.errors import ModelError
from curation.refs import TrustRef
from curation.registry import load_code
from curation.storage.cache import fetch_folder
from curation.storage.json_files import read_json
from curation.storage.paths import to_place

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
        ...

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of the labels table that the function reads."""
        ...

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        """Return the score that ranks rows, on any scale that grows with trust, float32 [N]."""
        ...

    def score(self, labels: pa.RecordBatch) -> Scores:
        """Return the trust in [0, 1] of each row, float32 [N]."""
        ...


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
    from curation.trust.column import ColumnTrust, Naive

    trust = TRUST[name]
    if isinstance(trust, Draw):
        return Naive(seed)
    if isinstance(trust, Column | Signal):
        last = unread_last and isinstance(trust, Signal)
        return ColumnTrust(name=name, column=trust.column, trust=trust.unit, unread_last=last)
    return ColumnTrust.fitted(name)
