"""The first shift test of a filter: compares a round's hidden states, or else its questions, with the package's."""

import itertools
from typing import NamedTuple

from curation.domains import get_domain
from curation.filter.package.folder import TrustPackage
from curation.filter.stages.packaged import Packaged
from curation.json_types import Json
from curation.metrics.shift import Shift, compare_samples, compare_with_words
from curation.refs import TableRef
from curation.rundir.graph import Done, InEach
from curation.rundir.run import Task
from curation.stages.gating import GatedStage
from curation.stages.shift import find_gravest_shift, join_states, sample_states, sample_texts
from curation.tables import io


class MeasurePoolShift(GatedStage, Packaged):
    """A stage that tests how a round differs from the package's rows, by hidden states or, without these, by words.

    With a gate, both sides have only the rows that pass it.
    """

    class Made(NamedTuple):
        """The outputs."""

        shift: Json
        """``curation.metrics.shift.Shift`` as JSON."""

    tables: InEach[TableRef]
    """Labels of the round or, to compare words, the rows of the rounds that are pooled, the newest last."""
    seed: int
    revision: int = 2  # it counts foreign rows, too

    def run(self, task: Task) -> Done:
        """Test the round."""
        rows = sum(map(io.count, self.tables.values()))
        return Done(outputs=self.Made(shift=self.measured().to_json()), rows=rows)

    def measured(self) -> Shift:
        """Return the result of the test."""
        package = self.loaded()
        return self._compare_states(package) if package.description.sample.states else self._compare_words(package)

    def _compare_states(self, package: TrustPackage) -> Shift:
        (labels,), states = self.tables.values(), package.description.sample.states
        test = None if self.gate is None else self.gate.load_test()
        reference = package.reference(() if test is None else test.states)
        sides = [reference, sample_states(labels, list(reference), self.seed)]
        hidden = [join_states(side, states) for side in sides]
        if test is not None:
            hidden = [states_ND[test.passes(side)] for states_ND, side in zip(hidden, sides, strict=True)]
        return compare_samples(*hidden, seed=self.seed)

    def _compare_words(self, package: TrustPackage) -> Shift:
        """Test the round alone, and together with earlier ones; return the test that shows the graver difference."""
        domain, words_NW = get_domain(package.description.domain), package.words()
        texts = [sample_texts(ref, domain, self.seed) for ref in self.tables.values()]
        pools = [texts[-1], *([list(itertools.chain.from_iterable(texts))] if len(texts) > 1 else [])]
        return find_gravest_shift(*(compare_with_words(words_NW, pool, seed=self.seed) for pool in pools))
