"""The shift stages, which test whether inputs of trust (hidden states, numbers) differ between pool and other splits.

All rows are compared first; after selection, the rows that pass the cut: foreign rows that trust scores high can fill a
selection, so that 2 % of the pool may become 8 % of the selected rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from curation.arms import ARMS
from curation.arrays import Bools, Float32s, Floats
from curation.config import DomainConfig
from curation.domains import Domain, attempt, get_domain
from curation.json_types import Json
from curation.metrics.foreign import Foreign, compute_distances, count_passing
from curation.metrics.shift import Shift, compare_samples, compare_texts, describe_passing, mark_sampled
from curation.refs import TableRef
from curation.rundir.graph import Done, In, InEach, Stage
from curation.rundir.run import Task
from curation.stages.rows import NO_IDS, read_ids
from curation.stopping import iter_checked
from curation.tables import io
from curation.tables.schemas import get_input_column
from curation.trust import get_trust


class MeasureShift(Stage):
    """A stage that tests whether the teacher's hidden states of the pool differ from those of other splits."""

    class Made(NamedTuple):
        shift: Json
        """Results of :func:`compare` by split, as JSON."""

    pool: In[TableRef]
    compared: InEach[TableRef]
    states: list[str]
    seed: int
    revision: int = 2  # it counts foreign rows, too

    def run(self, task: Task) -> Done:
        """Test each split against the pool."""
        found = {
            split: compare(ref, self.pool, self.states, seed=self.seed).to_json()
            for split, ref in self.compared.items()
        }
        return Done(outputs=self.Made(shift=found), rows=io.count(self.pool))


class MeasureTextShift(MeasureShift):
    """A stage that tests whether numbers and the words of questions differ between the pool and other splits."""

    examples: InEach[TableRef]
    domain: DomainConfig
    revision: int = 3  # it counts foreign texts, too

    def run(self, task: Task) -> Done:
        """Test each split against the pool by numbers and by words, and record the graver test."""
        domain, found = get_domain(self.domain), {}
        of_pool = sample_texts(self.examples["pool"], domain, self.seed)
        for split, ref in self.compared.items():
            numbers = compare(ref, self.pool, self.states, seed=self.seed)
            words = compare_texts(sample_texts(self.examples[split], domain, self.seed), of_pool, seed=self.seed)
            found[split] = find_gravest_shift(numbers, words).to_json()
        return Done(outputs=self.Made(shift=found), rows=io.count(self.pool))


class MeasureSelectedShift(Stage):
    """A stage that counts the foreign rows among the pool rows that pass an arm's cut."""

    class Made(NamedTuple):
        foreign: dict[str, Json]
        """Results of :func:`describe_foreign` by arm, for arms with a cut and enough labelled rows with a score."""

    source: In[TableRef]
    pool: In[TableRef]
    thresholds: InEach[float | None]
    states: list[str]
    seed: int

    def run(self, task: Task) -> Done:
        """Count the foreign rows among the sampled rows that have states."""
        of_source = io.open_table(self.source).schema.names  # without signals that only other splits have
        columns = {arm: get_trust(ARMS[arm].trust, self.seed).features[0] for arm in self.thresholds}  # the raw score
        columns = {arm: column for arm, column in columns.items() if column in of_source}
        further = ["label", *columns.values()]
        source, pool = (sample_rows(ref, self.states, self.seed, further) for ref in (self.source, self.pool))
        sides = [join_states(get_states(rows, self.states), self.states) for rows in (source, pool)]
        finite_N, finite_M = (np.isfinite(side).all(axis=1) for side in sides)
        rng = np.random.default_rng(self.seed)
        distances, found = compute_distances(sides[0][finite_N], sides[1][finite_M], rng), {}
        for arm, column in columns.items():
            if (least := self.thresholds[arm]) is None:
                continue
            score_N, score_M = (get_scores(rows, column) for rows in (source, pool))
            foreign = count_passing(distances, score_N[finite_N], score_M[finite_M], np.float32(least))
            if foreign is not None:
                found[arm] = describe_foreign(foreign)
        return Done(outputs=self.Made(foreign=found), rows=io.count(self.pool))


def describe_foreign(foreign: Foreign) -> Json:
    """Return the counts of foreign rows that pass a cut, with a ``warning`` if shown (``Foreign.is_shown``)."""
    return {**foreign.to_json(), "warning": describe_passing(foreign) if foreign.is_shown else None}


def find_gravest_shift(*found: Shift) -> Shift:
    """Return the gravest test: first by alarm, then by foreign rows, then by p-value, which is Bonferroni-corrected."""
    least = min(found, key=lambda shift: (not shift.alarm, not shift.has_minority, shift.p_value))
    return replace(least, p_value=min(1.0, len(found) * least.p_value))


def sample_texts(examples: TableRef, domain: Domain, seed: int) -> list[str]:
    """Return the identities, as texts, of about ``MAX_ROWS`` questions sampled by a hash of the row id."""
    ids_N = np.sort(read_ids(examples, "error IS NULL"))
    rows = io.take(examples, ids_N[mark_sampled(ids_N, len(ids_N), seed)], domain.columns.names).to_pylist()
    found = (attempt(domain.identity, row)[0] for row in rows)
    return ["\n".join((one[0], *one[1])) for one in found if one is not None]


def compare(split: TableRef, pool: TableRef, states: Sequence[str], *, seed: int) -> Shift:
    """Return the two-sample test of ``curation.metrics.shift`` on a seeded sample of rows labelled without error."""
    sides = [join_states(get_states(sample_rows(ref, states, seed), states), states) for ref in (split, pool)]
    schema = io.open_table(pool).schema
    numbers = [state for state in states if not pa.types.is_nested(schema.field(get_input_column(state)).type)]
    inputs = f"numbers that came with the labels ({', '.join(numbers)})" if numbers else "hidden states"
    return replace(compare_samples(*sides, seed=seed), inputs=inputs)


def sample_rows(ref: TableRef, states: Sequence[str], seed: int, further: Sequence[str] = ()) -> pa.Table:
    """Return the sampled rows that have all these states, ascending by row id: their states and ``further`` columns."""
    columns = [get_input_column(state) for state in states]
    table = io.open_table(ref)
    num_rows, start = table.count_rows(), 0
    offsets, ids = [NO_IDS], [NO_IDS]
    for batch in iter_checked(table.scanner(columns=["row_id"], scan_in_order=True).to_batches()):
        ids_N = batch.column("row_id").to_numpy()
        taken_M = np.flatnonzero(mark_sampled(ids_N, num_rows, seed))
        offsets.append(start + taken_M)
        ids.append(ids_N[taken_M])
        start += batch.num_rows
    order_M = np.argsort(np.concatenate(ids))  # a table's rows stand in the order in which they were labelled
    taken = table.take(np.concatenate(offsets)[order_M], columns=list(dict.fromkeys([*columns, *further])))
    for column in columns:
        taken = taken.filter(taken[column].is_valid())
    return taken


def get_states(rows: pa.Table, states: Sequence[str]) -> dict[str, Float32s]:
    """Return the states of rows, by name, each float32 [N, D]; D is 1 for numbers, else the equal size of the lists."""
    found: dict[str, Float32s] = {}
    for state in states:
        column, size = rows[get_input_column(state)].combine_chunks(), 1
        if pa.types.is_nested(column.type):
            size, column = len(column[0]) if len(column) else 1, column.flatten()
        found[state] = column.to_numpy(zero_copy_only=False).astype(np.float32).reshape(-1, size)
    return found


def join_states(states: Mapping[str, Floats], names: Sequence[str]) -> Floats:
    """Return states side by side, [N, D]."""
    return np.concatenate([states[name] for name in names], axis=1)


def get_scores(rows: pa.Table, column: str) -> Float32s:
    """Return the scores of rows, float32 [N], with NaN for rows without a score or a label."""
    labelled_N: Bools = rows["label"].is_valid().to_numpy()
    return np.where(labelled_N, rows[column].to_numpy().astype(np.float32), np.float32(np.nan))
