"""The shift stages of a filter: do a round's hidden states, or else its questions, differ from the package's sample?"""

import itertools
from typing import NamedTuple

from curation.domains import get_domain
from curation.filter.stages.packaged import Packaged
from curation.json_types import Json
from curation.metrics.shift import two_sample
from curation.metrics.text_shift import compare_with_words
from curation.refs import TableRef
from curation.rundir.graph import Done, In, InEach, Stage
from curation.rundir.run import Task
from curation.stages.first_cut import FirstCutRule, passing
from curation.stages.shift import gravest, joined, sample_states, sampled_texts
from curation.tables import io


class MeasurePoolShift(Stage, Packaged):
    """Tests how a round's hidden states differ from the package's; with a first cut, those of rows that pass it."""

    class Made(NamedTuple):
        """The outputs."""

        shift: Json
        """``curation.metrics.shift.Shift`` as JSON."""

    labels: In[TableRef]
    seed: int
    first_cut: FirstCutRule | None = None
    revision: int = 2  # it counts foreign rows, too

    def run(self, task: Task) -> Done:
        """Test the round."""
        return Done(outputs=self.Made(shift=self.measured()), rows=io.count(self.labels))

    def measured(self) -> Json:
        """The test as JSON."""
        package = self.loaded()
        states, passes = package.description.sample.states, passing(self.first_cut)
        reference = package.reference(() if passes is None else passes.states)
        sides = [reference, sample_states(self.labels, list(reference), self.seed)]
        hidden = [joined(side, states) if passes is None else joined(side, states)[passes(side)] for side in sides]
        return two_sample(*hidden, seed=self.seed).to_json()


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
