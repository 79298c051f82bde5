"""The shift stages of a filter: do a round's hidden states, or else its questions, differ from the package's sample?"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from curation.arrays import Bools, Floats
from curation.domains import get_domain
from curation.filter.stages.packaged import Packaged
from curation.json_types import Json
from curation.metrics.shift import two_sample
from curation.metrics.text_shift import compare_with_words
from curation.refs import TableRef
from curation.rundir.graph import Done, In, InEach, Stage
from curation.rundir.run import Task
from curation.stages.first_cut import passing
from curation.stages.shift import gravest, sample_states, sampled_texts
from curation.tables import io

States = Mapping[str, Floats]
"""Hidden states of the same rows, [N, D] by name."""


class MeasurePoolShift(Stage, Packaged):
    """Tests how a round's hidden states differ from the package's; with a first cut, those of rows that pass it."""

    class Made(NamedTuple):
        """The outputs."""

        shift: Json
        """:func:`measure_against`."""

    labels: In[TableRef]
    seed: int
    first_cut: dict[str, float] | None = None
    revision: int = 2  # it counts foreign rows, too

    @property
    def inputs(self) -> Json:
        """The arguments on which the test depends; without a first cut, that is none of them."""
        return {name: value for name, value in super().inputs.items() if name != "first_cut" or value is not None}

    def run(self, task: Task) -> Done:
        """Test the round."""
        return Done(outputs=self.Made(shift=self.measured()), rows=io.count(self.labels))

    def measured(self) -> Json:
        """The test as JSON."""
        package = self.loaded()
        if self.first_cut is None:
            return measure_against(package.reference(), self.labels, seed=self.seed)
        assert package.first is not None, "settle refuses a package without"
        passes, states = passing(package.first, self.first_cut["threshold"]), package.description.sample.states
        reference = package.reference(passes.states)
        return measure_against(reference, self.labels, seed=self.seed, states=states, passes=passes)


class MeasurePoolTextShift(Stage, Packaged):
    """Tests how the words of a round's questions differ from the package's, alone and with the rounds before it."""

    Made = MeasurePoolShift.Made

    examples: InEach[TableRef]
    """The rows of the rounds that are pooled, the newest last."""
    seed: int
    revision: int = 2  # it counts foreign texts, too

    def run(self, task: Task) -> Done:
        """Test the rounds; of both tests the one that differs more stands for the round."""
        package = self.loaded()
        domain, words_NW = get_domain(package.description.domain), package.words()
        texts = [sampled_texts(ref, domain, self.seed) for ref in self.examples.values()]
        pools = [texts[-1], *([list(itertools.chain.from_iterable(texts))] if len(texts) > 1 else [])]
        found = gravest(*(compare_with_words(words_NW, pool, seed=self.seed) for pool in pools))
        rows = sum(map(io.count, self.examples.values()))
        return Done(outputs=self.Made(shift=found.to_json()), rows=rows)


def measure_against(
    reference: States,
    pool: TableRef,
    *,
    seed: int,
    states: Sequence[str] | None = None,
    passes: Callable[[States], Bools] | None = None,
) -> Json:
    """Test labels against states that are kept elsewhere, [N, D] by state; ``curation.metrics.shift.Shift`` as JSON.

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
    return two_sample(*hidden, seed=seed).to_json()
