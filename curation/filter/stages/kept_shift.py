"""The shift tests of a filter: they compare a round's rows, and those that pass the cut, with the package's rows.

Foreign rows with high trust fill a selection: 10 % of the pool may be a quarter of the rows that are kept. So the
second test makes three comparisons: of the rows that pass, by their distance to the source; of their trust; and of all
rows of the newest rounds, up to ``MAX_ROWS`` rows, so that small deliveries add up.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import scipy

from curation.arrays import Float32s, Floats
from curation.domains import get_domain
from curation.filter.package.folder import TrustPackage
from curation.filter.stages.cut import Packaged, ThresholdCut
from curation.json_types import Json
from curation.metrics.foreign import ALARM_P, MIN_PASSING, compute_distances, count_passing
from curation.metrics.shift import Shift, compare_samples, compare_with_words, describe_passing
from curation.refs import TableRef
from curation.rundir.graph import Done, In, InEach
from curation.rundir.run import Task
from curation.stages import shift
from curation.stages.asking import GatedStage, GateRule
from curation.tables import io
from curation.tables.schemas import trust_column

CLEAR_DISTANCE = 0.2
"""Minimum Kolmogorov-Smirnov distance of two distributions of trust for an alarm."""
TOLERANCE = 0.1
"""Tolerated difference of scores, in standard deviations: labelled rows' scores come from folds, and so differ a little
from the pool's. If scores have few values, nearly equal ones would otherwise seem as far apart as any others."""


class Rows(NamedTuple):
    """The rows of one side of a comparison."""

    states_ND: Floats | None
    score_N: Float32s | None
    """Scores to which the cut applies, NaN for rows without a label, or None if there are no scores."""


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
        threshold = ThresholdCut.from_json(self.threshold)
        found = compare_kept(self.loaded(), threshold, self.tables, self.function, seed=self.seed, gate=self.gate)
        return Done(outputs=self.Made(kept=found), rows=sum(map(io.count, self.tables.values())))


def compare_kept(
    package: TrustPackage,
    threshold: ThresholdCut,
    tables: Mapping[str, TableRef],
    function: str,
    *,
    seed: int,
    gate: GateRule | None = None,
) -> Json:
    """Compare the rows of labels tables, by round, that pass a threshold with the package's rows that pass it.

    On both sides, the lowest of thresholds by label is used, and ties at the threshold pass. With a ``gate`` both
    sides have only the rows that pass it.
    """
    which = "trust" if threshold.column == trust_column(function) else "raw"
    further = ["label", threshold.column]
    hidden, (of_source, of_pool), rows = _read_sides(package, [*tables.values()], gate, seed, further)
    scores = package.reference_score(which)
    source = Rows(hidden[0], None if scores is None else scores[of_source])
    pool = Rows(hidden[1], shift.get_scores(rows, threshold.column)[of_pool])
    known_K = None
    if package.description.calibration is not None:
        known = package.calibration()
        known_K = known.trust_M if which == "trust" else known.raw_M
    return compare(source, pool, known_K, np.float32(threshold.bound.score), tuple(tables), seed=seed)


def _read_sides(
    package: TrustPackage, tables: Sequence[TableRef], gate: GateRule | None, seed: int, further: Sequence[str] = ()
) -> tuple[list[Floats | None], list[Any], pa.Table]:
    """Return the states [N, D], if any, of labelled rows and a sample, which of them pass the gate, and the sample."""
    names, test = package.description.sample.states, None if gate is None else gate.load_test()
    reference = package.reference(() if test is None else test.states)
    rows = pa.concat_tables([shift.sample_rows(ref, list(reference), seed, further) for ref in tables])
    sides = [reference, shift.get_states(rows, list(reference))]
    passing = [slice(None) if test is None else test.passes(side) for side in sides]
    states = [shift.join_states(side, names)[of] if names else None for side, of in zip(sides, passing, strict=True)]
    return states, passing, rows


def compare(
    source: Rows, pool: Rows, calibration_K: Float32s | None, least: np.float32, rounds: tuple[str, ...], *, seed: int
) -> Json:
    """Compare rows of a pool with labelled rows: all of them, and those with a score of at least ``least``.

    ``calibration_K`` has the scores of calibration rows, or is ``None``. All rows are compared only if there are
    several ``rounds``, because a single round was compared by the first test. Return the three comparisons as JSON,
    each ``None`` if not tested, and the ``warning`` of an alarm: ``everything``, all rows; ``passing``, the rows that
    pass, by distance to the source; ``trust``, the Kolmogorov-Smirnov distance between the trust of rows and of
    calibration rows that pass, with its p-value if both distributions are equal.
    """
    assert pool.score_N is not None, "labels have scores"
    everything = passing = trust = None
    if source.states_ND is not None and pool.states_ND is not None:
        if len(rounds) > 1:
            everything = compare_samples(source.states_ND, pool.states_ND, seed=seed)
        if source.score_N is not None:
            finite_N, finite_M = (np.isfinite(states).all(axis=1) for states in (source.states_ND, pool.states_ND))
            rng = np.random.default_rng(seed)
            distances = compute_distances(source.states_ND[finite_N], pool.states_ND[finite_M], rng)
            passing = count_passing(distances, source.score_N[finite_N], pool.score_N[finite_M], least)
    alarms = [describe_passing(passing)] if passing is not None and passing.alarm else []
    score_P = pool.score_N[pool.score_N >= least]
    known_Q = score_P[:0] if calibration_K is None else calibration_K[calibration_K >= least]
    if calibration_K is not None and min(len(known_Q), len(score_P)) >= MIN_PASSING:
        tolerance = TOLERANCE * np.nanstd(calibration_K)  # one side is shifted towards the other by it
        lower = scipy.stats.ks_2samp(score_P, known_Q - tolerance, alternative="greater")
        higher = scipy.stats.ks_2samp(score_P, known_Q + tolerance, alternative="less")
        distance = float(max(lower.statistic, higher.statistic))
        trust = {"distance": distance, "p_value": min(1.0, 2 * float(min(lower.pvalue, higher.pvalue)))}
        if trust["p_value"] < ALARM_P and distance >= CLEAR_DISTANCE:
            alarms.append(
                f"the trust of rows that pass the cut is distributed otherwise than that of calibration rows that pass "
                f"it (Kolmogorov-Smirnov distance {distance:.2f})"
            )
    if everything is not None and everything.alarm:
        alarms.append(f"rounds {rounds[0]} to {rounds[-1]} together: {everything.in_words()}")
    return {
        "rounds": list(rounds),
        "everything": None if everything is None else everything.to_json(),
        "passing": None if passing is None else passing.to_json(),
        "trust": trust,
        "alarm": bool(alarms),
        "warning": (
            f"Rows are kept that are not like those that trust was fitted on: {'; '.join(alarms)}. The purity of "
            "what is kept may be far below what trust and a certified cut say; label some of these rows and fit again, "
            "or take the foreign rows out of the pool."
        )
        if alarms
        else None,
    }


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
        """Return the test; of words, the graver difference counts, of the round alone or together with earlier ones."""
        package, tables = self.loaded(), [*self.tables.values()]
        if not package.description.sample.states:
            domain, words_NW = get_domain(package.description.domain), package.words()
            texts = [shift.sample_texts(ref, domain, self.seed) for ref in tables]
            pools = [texts[-1], *([list(itertools.chain.from_iterable(texts))] if len(texts) > 1 else [])]
            return shift.find_gravest_shift(*(compare_with_words(words_NW, pool, seed=self.seed) for pool in pools))
        (source_ND, pool_ND), _, _ = _read_sides(package, tables, self.gate, self.seed)
        assert source_ND is not None and pool_ND is not None, "the package has states"
        return compare_samples(source_ND, pool_ND, seed=self.seed)
