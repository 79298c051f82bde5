"""Watches a stream of rows for a shift of the teacher's states away from those that trust was fitted on.

The newest rows of the stream are compared with the package's sample by the two-sample test of
``curation.metrics.shift``. Tests are repeated without end, so one p-value below 5 % means little. An alarm should use
lower bounds: of the AUC's interval (above 0.6 a classifier clearly tells the two sets apart), and of the share of
foreign rows. On an alarm, trust measured on labelled rows, and certified cuts, may not hold (docs/operations.md).
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.arrays import Floats
from curation.metrics.shift import MIN_ROWS, Shift, compare_samples
from curation.stages.shift import get_states, join_states

Arrays = Mapping[str, Floats]


class ShiftWatch:
    """A watch that tests the newest rows of a stream against a sample of labelled rows.

    Args:
        reference: the sample's states by name, [N, D] (``TrustPackage.reference``).
        window: the number of newest rows to compare. A repeated row counts once: equal rows in both halves of the test
            would look like a difference.
        every: the number of new rows between two tests.
        seed: the seed of the test's draws.

    Raises:
        ValueError: there are no states to compare, or the numbers are too small for a test.
    """

    def __init__(self, reference: Arrays, *, window: int = 2000, every: int = 500, seed: int = 0) -> None:
        if not reference:
            raise ValueError("the trust function reads no hidden states, so there is nothing to watch")
        if window < MIN_ROWS or every < 1:
            raise ValueError(f"window {window}, every {every}: a test needs {MIN_ROWS} rows, and every is at least 1")
        self._states = list(reference)
        self._reference_ND = join_states(reference, self._states)
        self._window, self._every, self._seed = window, every, seed
        self._rows: OrderedDict[int, npt.NDArray[Any]] = OrderedDict()
        self._num_new = 0
        self.last: Shift | None = None
        """Latest test, or ``None`` before the first."""

    def add(self, answers: pa.Table) -> Shift | None:
        """Add the teacher's answers to some rows, a labels table, and return a test if one is due, or else ``None``."""
        healthy = answers.filter(answers["error"].is_null())
        states_ND = join_states(get_states(healthy, self._states), self._states)
        for row_id, state_D in zip(healthy["row_id"].to_pylist(), states_ND, strict=True):
            if row_id in self._rows:
                self._rows.move_to_end(row_id)
                continue
            self._rows[row_id] = state_D
            self._num_new += 1
            if len(self._rows) > self._window:
                self._rows.popitem(last=False)
        if self._num_new < self._every or len(self._rows) < MIN_ROWS:
            return None
        self._num_new = 0
        self.last = compare_samples(self._reference_ND, np.stack(list(self._rows.values())), seed=self._seed)
        return self.last

    @property
    def alarm(self) -> str | None:
        """The latest test's warning, by the documented rule of an alarm, or None without an alarm."""
        return self.last.warning() if self.last is not None and self.last.alarm else None
