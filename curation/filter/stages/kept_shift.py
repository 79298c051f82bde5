"""The shift tests of a filter: they compare a round's rows, and those that pass the cut, with the package's rows.

Foreign rows with high trust fill a selection: 10 % of the pool may be a quarter of the rows that are kept. So the
second test makes three comparisons: of the rows that pass, by their distance to the source; of their trust; and of all
rows of the newest rounds, up to ``MAX_ROWS`` rows, so that small deliveries add up.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import scipy

from curation.arrays import Bools, Float32s, Floats
from curation.domains import get_domain
from curation.filter.package.folder import TrustPackage
from curation.filter.stages.cut import Packaged, ThresholdCut
from curation.json_types import Json
from curation.metrics.foreign import ALARM_P, MIN_PASSING, Foreign, compute_distances, count_passing
from curation.metrics.shift import Shift, compare_samples, compare_with_words, describe_passing
from curation.refs import TableRef
from curation.rundir.graph import Done, In, InEach
from curation.rundir.run import Task
from curation.stages.asking import GatedStage, PassingTest
from curation.stages.shift import (
    find_gravest_shift,
    get_scores,
    get_states,
    join_states,
    sample_rows,
    sample_texts,
)
from curation.tables import io
from curation.tables.schemas import trust_column

CLEAR_DISTANCE = 0.2
"""Minimum Kolmogorov-Smirnov distance of two distributions of trust for an alarm."""
TOLERANCE = 0.1
"""Tolerated difference of scores, in standard deviations: labelled rows' scores come from folds, and so differ a little
from the pool's. If scores have few values, nearly equal ones would otherwise seem as far apart as any others."""


@dataclass(frozen=True, kw_only=True)
class KeptShift:
    """The comparisons of rows that pass a cut with labelled rows; ``None`` means not tested."""

    rounds: tuple[str, ...]
    everything: Shift | None
    passing: Foreign | None
    distance: float | None
    """Kolmogorov-Smirnov distance between the trust of rows that pass and that of calibration rows that pass."""
    p_value: float | None
    """P-value of the distance, if both distributions of trust are equal."""

    @property
    def alarms(self) -> list[str]:
        """The clear differences that the three comparisons show, in words."""
        found = [describe_passing(self.passing)] if self.passing is not None and self.passing.alarm else []
        if self.p_value is not None and self.p_value < ALARM_P and (self.distance or 0.0) >= CLEAR_DISTANCE:
            found.append(
                f"the trust of rows that pass the cut is distributed otherwise than that of calibration rows that pass "
                f"it (Kolmogorov-Smirnov distance {self.distance:.2f})"
            )
        if self.everything is not None and self.everything.alarm:
            of = f"rounds {self.rounds[0]} to {self.rounds[-1]} together: " if len(self.rounds) > 1 else ""
            found.append(f"{of}{self.everything.in_words()}")
        return found

    @property
    def warning(self) -> str | None:
        """A warning for the report, or ``None`` without an alarm."""
        if not self.alarms:
            return None
        return (
            f"Rows are kept that are not like those that trust was fitted on: {'; '.join(self.alarms)}. The purity of "
            "what is kept may be far below what trust and a certified cut say; label some of these rows and fit again, "
            "or take the foreign rows out of the pool."
        )

    def to_json(self) -> Json:
        """Return the comparison as a JSON object."""
        return {
            "rounds": list(self.rounds),
            "everything": None if self.everything is None else self.everything.to_json(),
            "passing": None if self.passing is None else self.passing.to_json(),
            "trust": None if self.p_value is None else {"distance": self.distance, "p_value": self.p_value},
            "alarm": bool(self.alarms),
            "warning": self.warning,
        }


class MeasureKept(GatedStage, Packaged):
    """A stage that compares the newest rounds' rows that pass cut and gate with the package's that pass both."""

    class Made(NamedTuple):
        kept: Json

    tables: InEach[TableRef]
    """Labels of the rounds that are pooled, the newest last."""
    threshold: In[Json]
    function: str
    seed: int
    revision: int = 2  # scores may differ by a little

    def run(self, task: Task) -> Done:
        """Test the rows."""
        package, threshold = self.loaded(), ThresholdCut.from_json(self.threshold)
        test = None if self.gate is None else self.gate.load_test()
        found = compare_kept(package, threshold, self.tables, self.function, seed=self.seed, test=test)
        return Done(outputs=self.Made(kept=found.to_json()), rows=sum(map(io.count, self.tables.values())))


def compare_kept(
    package: TrustPackage,
    threshold: ThresholdCut,
    tables: Mapping[str, TableRef],
    function: str,
    *,
    seed: int,
    test: PassingTest | None = None,
) -> KeptShift:
    """Compare the rows of labels tables, by round, that pass a threshold with the package's rows that pass it.

    On both sides, the lowest of thresholds by label is used, and ties at the threshold pass. With a ``test`` both
    sides have only the rows that pass it.
    """
    names = list(package.description.sample.states)
    which = "trust" if threshold.column == trust_column(function) else "raw"
    reference = package.reference(() if test is None else test.states)
    parts = [sample_rows(ref, list(reference), seed, ["label", threshold.column]) for ref in tables.values()]
    rows = pa.concat_tables(parts)
    found = get_states(rows, list(reference))
    source_ND, pool_MD = (join_states(side, names) if names else None for side in (reference, found))
    source = Rows(source_ND, package.reference_score(which))
    pool = Rows(pool_MD, get_scores(rows, threshold.column))
    if test is not None:
        source, pool = source.only(test.passes(reference)), pool.only(test.passes(found))
    known_K = None
    if package.description.calibration is not None:
        known = package.calibration()
        known_K = known.trust_M if which == "trust" else known.raw_M
    return compare(source, pool, known_K, np.float32(threshold.bound.score), tuple(tables), seed=seed)


class Rows(NamedTuple):
    """The rows of one side of a comparison."""

    states_ND: Floats | None
    score_N: Float32s | None
    """Scores to which the cut applies, NaN for rows without a label, or None if there are no scores."""

    def only(self, kept_N: Bools) -> "Rows":
        """Return the rows that ``kept_N`` marks."""
        return Rows(*(None if part is None else part[kept_N] for part in self))


def compare(
    source: Rows, pool: Rows, calibration_K: Float32s | None, least: np.float32, rounds: tuple[str, ...], *, seed: int
) -> KeptShift:
    """Compare rows of a pool with labelled rows: all of them, and those with a score of at least ``least``.

    ``calibration_K`` has the scores of calibration rows, or is ``None``. All rows are compared only if there are
    several ``rounds``, because a single round was compared by the first test.
    """
    assert pool.score_N is not None, "labels have scores"
    everything = passes = None
    if source.states_ND is not None and pool.states_ND is not None:
        if len(rounds) > 1:
            everything = compare_samples(source.states_ND, pool.states_ND, seed=seed)
        if source.score_N is not None:
            finite_N, finite_M = (np.isfinite(states).all(axis=1) for states in (source.states_ND, pool.states_ND))
            rng = np.random.default_rng(seed)
            distances = compute_distances(source.states_ND[finite_N], pool.states_ND[finite_M], rng)
            passes = count_passing(distances, source.score_N[finite_N], pool.score_N[finite_M], least)
    distance = p_value = None
    score_P = pool.score_N[pool.score_N >= least]
    known_Q = score_P[:0] if calibration_K is None else calibration_K[calibration_K >= least]
    if calibration_K is not None and min(len(known_Q), len(score_P)) >= MIN_PASSING:
        tolerance = TOLERANCE * np.nanstd(calibration_K)  # one side is shifted towards the other by it
        lower = scipy.stats.ks_2samp(score_P, known_Q - tolerance, alternative="greater")
        higher = scipy.stats.ks_2samp(score_P, known_Q + tolerance, alternative="less")
        distance = float(max(lower.statistic, higher.statistic))
        p_value = min(1.0, 2 * float(min(lower.pvalue, higher.pvalue)))
    return KeptShift(rounds=rounds, everything=everything, passing=passes, distance=distance, p_value=p_value)


class MeasurePoolShift(GatedStage, Packaged):
    """A stage that tests how a round's rows that pass the gate differ from the package's, by states or by words."""

    class Made(NamedTuple):
        shift: Json

    tables: InEach[TableRef]
    """Labels of the round or, to compare words, the rows of the rounds that are pooled, the newest last."""
    seed: int
    revision: int = 2  # it counts foreign rows, too

    def run(self, task: Task) -> Done:
        """Test the round."""
        rows = sum(map(io.count, self.tables.values()))
        return Done(outputs=self.Made(shift=self.measured().to_json()), rows=rows)

    def measured(self) -> Shift:
        """Return the result of the test.

        Words are compared of the round alone, and together with earlier ones; the graver difference counts.
        """
        package, tables = self.loaded(), [*self.tables.values()]
        states = package.description.sample.states
        if not states:
            domain, words_NW = get_domain(package.description.domain), package.words()
            texts = [sample_texts(ref, domain, self.seed) for ref in tables]
            pools = [texts[-1], *([list(itertools.chain.from_iterable(texts))] if len(texts) > 1 else [])]
            return find_gravest_shift(*(compare_with_words(words_NW, pool, seed=self.seed) for pool in pools))
        (labels,) = tables
        test = None if self.gate is None else self.gate.load_test()
        reference = package.reference(() if test is None else test.states)
        sides = [reference, get_states(sample_rows(labels, list(reference), self.seed), list(reference))]
        hidden = [join_states(side, states) for side in sides]
        if test is not None:
            hidden = [states_ND[test.passes(side)] for states_ND, side in zip(hidden, sides, strict=True)]
        return compare_samples(*hidden, seed=self.seed)
