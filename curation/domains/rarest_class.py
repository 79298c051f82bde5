"""Strata of sets of classes: a row counts by the rarest class that its set holds, and one without classes by itself.

So rows whose sets are many fall into one stratum for each class, and one for the empty set. A class that few rows have
has its rows nearly all in its own stratum; a frequent one shares them with the rarer classes beside it.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from curation.arrays import Int64s
from curation.domains.label_sets import LabelSets
from curation.domains.set_counts import held
from curation.refs import TableRef
from curation.tables import io


@dataclass(frozen=True, kw_only=True)
class RarestClass:
    """The strata, by name in the order of the classes, with the empty set as the last."""

    sets: LabelSets
    by_rarity: tuple[int, ...]
    """The places of the strata, the rarest class first, the empty set last."""

    @classmethod
    def of(cls, sets: LabelSets, examples: TableRef) -> "RarestClass":
        """Classes that fewer of the ``examples``' gold sets hold are rarer; of equally rare ones the first is."""
        num_C = held(io.read(examples, ["gold"])["gold"].combine_chunks(), sets).held_NC[:, :-1].sum(axis=0)
        return cls(sets=sets, by_rarity=(*np.argsort(num_C, kind="stable").tolist(), len(num_C)))

    @property
    def names(self) -> tuple[str, ...]:
        """The classes, then the word for the empty set."""
        return (*self.sets.classes, self.sets.empty)

    def __len__(self) -> int:
        return len(self.by_rarity)

    def places(self, labels: pa.Array) -> Int64s:
        """The stratum of each label, int64 [N]; the number of strata for one that is no set of the classes."""
        found = held(labels, self.sets)
        order_C = np.array(self.by_rarity, dtype=np.int64)
        place_N: Int64s = order_C[found.held_NC[:, order_C].argmax(axis=1)]
        return np.where(found.is_known_N, place_N, len(order_C))
