"""The shift test of a filter: it compares a round's rows, and those that pass the cut, with the package's rows.

Foreign rows with high trust fill a selection: 10 % of the pool may be a quarter of the rows that are kept. So the rows
that pass are compared by themselves, with labelled rows that pass, by their distance to the source.
"""

from typing import Any, NamedTuple

import numpy as np

from curation.arrays import Float32s, Floats
from curation.domains import get_domain
from curation.filter.stages.cut import Packaged, ThresholdCut
from curation.json_types import Json
from curation.metrics.foreign import Foreign, compute_distances, count_passing
from curation.metrics.shift import Shift, compare_samples, compare_with_words, describe_passing
from curation.refs import TableRef
from curation.rundir.graph import Done, In
from curation.rundir.run import Task
from curation.stages import shift
from curation.stages.asking import GatedStage
from curation.tables import io
from curation.tables.schemas import trust_column


class Rows(NamedTuple):
    """The rows of one side of a comparison."""

    states_ND: Floats
    score_N: Float32s | None
    """Scores to which the cut applies, NaN for rows without a label, or None if there are no scores."""


class ComparePool(GatedStage, Packaged):
    """A stage that compares a round's rows with the package's, by states or else by the words of questions.

    By states, both sides have only the rows that pass the gate.
    """

    class Made(NamedTuple):
        shift: Json

    labels: In[TableRef]
    examples: In[TableRef]
    threshold: In[Json]
    function: str
    seed: int

    def run(self, task: Task) -> Done:
        """Test the round."""
        return Done(outputs=self.Made(shift=self.measure()), rows=io.count(self.labels))

    def measure(self) -> Json:
        """Return the test's result (:func:`describe`)."""
        package, threshold = self.loaded(), ThresholdCut.from_json(self.threshold)
        names, domain = package.description.sample.states, get_domain(package.description.domain)
        if not names:
            texts = shift.sample_texts(self.examples, domain, self.seed)
            return describe(compare_with_words(package.words(), texts, seed=self.seed), None)
        test = None if self.gate is None else self.gate.load_test()
        reference = package.reference(() if test is None else test.states)
        rows = shift.sample_rows(self.labels, list(reference), self.seed, ["label", threshold.column])
        sides: list[Rows] = []
        scores = package.reference_score("trust" if threshold.column == trust_column(self.function) else "raw")
        of_pool = shift.get_states(rows, list(reference)), shift.get_scores(rows, threshold.column)
        for states, score_N in ((reference, scores), of_pool):
            passing: Any = slice(None) if test is None else test.passes(states)
            states_ND = shift.join_states(states, names)[passing]
            sides.append(Rows(states_ND, None if score_N is None else score_N[passing]))
        source, pool = sides
        return compare(source, pool, np.float32(threshold.bound.score), seed=self.seed)


def compare(source: Rows, pool: Rows, least: np.float32, *, seed: int) -> Json:
    """Compare rows of a pool with labelled rows: all of them, and those with a score of at least ``least``."""
    passing = None
    if source.score_N is not None and pool.score_N is not None:
        finite_N, finite_M = (np.isfinite(side.states_ND).all(axis=1) for side in (source, pool))
        rng = np.random.default_rng(seed)
        distances = compute_distances(source.states_ND[finite_N], pool.states_ND[finite_M], rng)
        passing = count_passing(distances, source.score_N[finite_N], pool.score_N[finite_M], least)
    return describe(compare_samples(source.states_ND, pool.states_ND, seed=seed), passing)


def describe(everything: Shift, passing: Foreign | None) -> Json:
    """Return the comparison of all rows as JSON, with that of rows that pass as ``passing``, and one alarm of both."""
    found, warnings = everything.to_json(), [everything.warning()]
    if passing is not None and passing.alarm:
        found["alarm"] = True
        warnings.append(
            f"Rows are kept that are not like those that trust was fitted on: {describe_passing(passing)}. The purity "
            "of what is kept may be far below what trust and a certified cut say; label some of these rows and fit "
            "again, or take the foreign rows out of the pool."
        )
    warning = " ".join(words for words in warnings if words) or None
    return {**found, "passing": None if passing is None else passing.to_json(), "warning": warning}
