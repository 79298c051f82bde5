"""The shift stage: tests whether the teacher's hidden states of the pool differ from those of another split."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.metrics.shift import CLEAR_AUC, Floats, sampled, two_sample
from curation.refs import TableRef
from curation.rundir.graph import Done, In, InEach, Stage
from curation.rundir.run import Task
from curation.stages.first_cut import passing
from curation.stages.packaged import Packaged
from curation.tables import io
from curation.tables.schemas import input_column

States = Mapping[str, npt.NDArray[np.floating[Any]]]
"""Hidden states of the same rows, [N, D] by name."""


class MeasureShift(Stage):
    """Tests how the teacher's hidden states of the pool differ from those of other splits."""

    class Made(NamedTuple):
        """The outputs."""

        shift: dict[str, Any]
        """:func:`measure_shift` by split."""

    pool: In[TableRef]
    compared: InEach[TableRef]
    """The other splits' labels."""
    states: list[str]
    seed: int

    def run(self, task: Task) -> Done:
        """Test each split against the pool."""
        found = {
            split: measure_shift(ref, self.pool, self.states, seed=self.seed) for split, ref in self.compared.items()
        }
        return Done(outputs=self.Made(shift=found), rows=io.count(self.pool))


class MeasurePoolShift(Stage, Packaged):
    """Tests how a round's hidden states differ from the package's; with a first cut, those of rows that pass it."""

    class Made(NamedTuple):
        """The outputs."""

        shift: dict[str, Any]
        """:func:`measure_against`."""

    labels: In[TableRef]
    seed: int
    first_cut: dict[str, float] | None = None

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments on which the test depends; without a first cut, that is none of them."""
        return {name: value for name, value in super().inputs.items() if name != "first_cut" or value is not None}

    def run(self, task: Task) -> Done:
        """Test the round."""
        return Done(outputs=self.Made(shift=self.measured()), rows=io.count(self.labels))

    def measured(self) -> dict[str, Any]:
        """The test as JSON."""
        package = self.loaded()
        if self.first_cut is None:
            return measure_against(package.reference(), self.labels, seed=self.seed)
        assert package.first is not None, "settle refuses a package without"
        passes, states = passing(package.first, self.first_cut["threshold"]), package.description.sample.states
        reference = package.reference(passes.states)
        return measure_against(reference, self.labels, seed=self.seed, states=states, passes=passes)


def measure_shift(split: TableRef, pool: TableRef, states: Sequence[str], *, seed: int) -> dict[str, Any]:
    """The two-sample test of ``curation.metrics.shift`` on a seeded sample of rows labelled without error, as JSON."""
    sides = [np.concatenate(list(sample_states(ref, states, seed).values()), axis=1) for ref in (split, pool)]
    return two_sample(*sides, seed=seed).to_json()


def measure_against(
    reference: States,
    pool: TableRef,
    *,
    seed: int,
    states: Sequence[str] | None = None,
    passes: Callable[[States], npt.NDArray[np.bool_]] | None = None,
) -> dict[str, Any]:
    """The same test against states that are kept elsewhere, [N, D] by state; ``alarm``: the pool differs clearly.

    An alarm takes an AUC whose whole interval is above ``CLEAR_AUC``: tests that are repeated for each delivery of rows
    would otherwise raise one in twenty by chance.

    Args:
        reference: the states of the other rows.
        pool: a labels table.
        seed: of the sample and the test.
        states: those to compare; unset, all of ``reference``.
        passes: which rows of each side are compared, where a first cut has left out the others of the pool.
    """
    sides: list[States] = [reference, sample_states(pool, list(reference), seed)]
    compared = list(reference if states is None else states)
    hidden = [np.concatenate([side[name] for name in compared], axis=1) for side in sides]
    if passes is not None:
        hidden = [hidden_ND[passes(side)] for hidden_ND, side in zip(hidden, sides, strict=True)]
    found = two_sample(*hidden, seed=seed)
    return {**found.to_json(), "alarm": bool(found.differs and found.auc.low > CLEAR_AUC)}


def sample_states(ref: TableRef, states: Sequence[str], seed: int) -> dict[str, Floats]:
    """The states of the sampled rows that have all of them, by name, each float32 [N, D], ascending by row id."""
    columns = {state: input_column(state) for state in states}
    table = io.open_table(ref)
    num_rows, start = table.count_rows(), 0
    offsets, ids = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for batch in table.scanner(columns=["row_id"], scan_in_order=True).to_batches():
        ids_N = batch.column("row_id").to_numpy()
        taken_M = np.flatnonzero(sampled(ids_N, num_rows, seed))
        offsets.append(start + taken_M)
        ids.append(ids_N[taken_M])
        start += batch.num_rows
    order_M = np.argsort(np.concatenate(ids))  # a table's rows stand in the order in which they were labelled
    taken = table.take(np.concatenate(offsets)[order_M], columns=list(columns.values())).drop_null()
    return {state: _matrix(taken[column].combine_chunks()) for state, column in columns.items()}


def _matrix(states: pa.Array) -> Floats:
    """Lists of one size, fixed or not, or numbers, as float32 [N, D]."""
    if not pa.types.is_nested(states.type):
        numbers_N1: Floats = states.to_numpy(zero_copy_only=False).astype(np.float32)[:, None]
        return numbers_N1
    size = len(states[0]) if len(states) else 1
    values = states.flatten().to_numpy(zero_copy_only=False)
    hidden_ND: Floats = values.astype(np.float32).reshape(-1, size)
    return hidden_ND
