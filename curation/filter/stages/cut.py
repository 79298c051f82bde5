"""The cut of a filter: which rows pass, as a condition on each row alone, so that later rows pass the same cut.

The scores are read in streams, those of a large table by Ray tasks; no list of rows is kept. A rule that is calibrated
(``certified``) takes its candidate cuts from a seeded sample of at most ``SAMPLE_ROWS`` pool rows: any candidates that
do not depend on the calibration rows are valid (:mod:`curation.selection.risk`), and up to that number the sample is
the pool.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from curation.arrays import Bools, Float32s
from curation.config.base import rows_in
from curation.config.filter import CertifiedConfig, KeepConfig
from curation.domains.class_counts import places
from curation.errors import BudgetError
from curation.filter.package import TrustPackage
from curation.filter.package.tables import floats_of
from curation.filter.stages.certifying import CertifyingRows, certifying_rows
from curation.filter.stages.packaged import Packaged
from curation.hashing import derive, hash_unit
from curation.json_types import Json
from curation.refs import TableRef, fingerprint
from curation.rundir.graph import Done, InEach, Stage, setting
from curation.rundir.run import Task
from curation.selection.bound import Bound, CountingPass, PassCounts, exact_bound, merged, tally
from curation.selection.budget import GradedScores
from curation.selection.class_shares import ClassScores
from curation.selection.risk import calibrate
from curation.selection.risk.by_class import calibrate_classes
from curation.stages.pool_scores import SAMPLE_ROWS, Batch, PoolScores
from curation.tables import io, schemas

ALL_TIES = 2**64 - 1
"""The ``tie`` of a bound that every row with exactly its score passes."""
_READ = ("row_id", "label", "error")


@dataclass(frozen=True, kw_only=True)
class ThresholdCut:
    """A cut that is made: a column of the labels table, and the bound that its values must pass."""

    column: str
    bound: Bound
    """With cuts by label the lowest of these."""
    by_label: Mapping[str, float] | None = None
    """The lowest value that passes of rows with each label, and none of others; None: of whatever label."""

    @property
    def columns(self) -> list[str]:
        """Columns that :meth:`passes` reads."""
        return [*_READ, self.column]

    @property
    def near(self) -> str:
        """An SQL filter that leaves out most rows that do not pass, and none that does."""
        return f"{self.column} >= CAST({self.bound.score!r} AS FLOAT) AND label IS NOT NULL AND error IS NULL"

    def passes(self, labels: pa.RecordBatch) -> Bools:
        """Which rows pass, bool [N]; never one without a label."""
        score_N = _scores(labels, self.column)
        passes_N: Bools = np.asarray(self.bound.passes(labels.column("row_id").to_numpy(), score_N))
        if self.by_label is None:
            return passes_N
        least_T = np.append([*self.by_label.values()], np.inf)
        return passes_N & (score_N >= least_T[places(labels.column("label"), [*self.by_label])])

    def to_json(self) -> Json:
        """The threshold as a JSON object."""
        by_label = {} if self.by_label is None else {"by_label": dict(self.by_label)}
        return {"column": self.column, "bound": asdict(self.bound), **by_label}

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """The inverse of :meth:`to_json`."""
        return cls(column=value["column"], bound=Bound(**value["bound"]), by_label=value.get("by_label"))


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A threshold, and what it was made from."""

    threshold: ThresholdCut
    num_labelled: int
    """Rows labelled without error that no first cut dropped."""
    num_dropped: int
    """Rows that a first cut dropped: they count in a share of the pool."""
    num_short: int
    """Rows that were to pass, and are not there since a first cut dropped too many."""
    num_scored: int
    """Rows among these with a label and a score: only they can pass."""
    lowest_trust: float
    """The lowest trust that passes, among the rows of which the cut was made."""
    risk: Json | None
    """The settings and the result of a calibration (``curation.selection.risk.RiskCut``)."""


class MakeCut(Stage, Packaged):
    """Decides which rows of the labelled rounds pass.

    Raises:
        BudgetError: as for :func:`decide`.
    """

    class Made(NamedTuple):
        """The outputs: those of a :class:`Decision`, and what it was made by."""

        id: str
        threshold: Json
        rule: Json
        rounds: list[str]
        num_labelled: int
        num_dropped: int
        num_short: int
        num_scored: int
        lowest_trust: float
        risk: Json | None

    tables: InEach[TableRef]
    """The labels, by round."""
    rule: Json
    """``keep`` as JSON, with a digest of fresh calibration rows in place of their path."""
    function: str
    """The trust function."""
    seed: int
    keep: KeepConfig = setting()
    revision: int = 3  # its threshold has another name

    @property
    def inputs(self) -> Json:
        """The arguments on which the cut depends."""
        return {**super().inputs, "tables": list(self.tables.values()), "rounds": list(self.tables)}

    def run(self, task: Task) -> Done:
        """Decide, and say how."""
        keep, given = self.keep, CertifyingRows(None, None)
        if keep.certified is not None:
            given = certifying_rows(keep.certified, self.loaded())
        found = decide(list(self.tables.values()), self.function, keep, *given, seed=self.seed)
        by_class = "" if found.threshold.by_label is None else ", by class from there on"
        task.say(f"{keep.words}: rows with a trust of {found.lowest_trust:.4f} and more pass{by_class}")
        if found.num_short:
            left = "the first cut left no more with a readable label"
            task.say(f"{found.num_short:,} rows fewer than asked for: {left}")
        threshold = found.threshold.to_json()
        made = self.Made(
            id=fingerprint([threshold, self.rule])[:8],
            rule=self.rule,
            rounds=list(self.tables),
            **{**vars(found), "threshold": threshold},
        )
        return Done(outputs=made, rows=found.num_labelled)


def check_keep(keep: KeepConfig, package: TrustPackage, num_rows: int) -> None:
    """Refuse, before anything is labelled, a rule by which no cut can be made over ``num_rows`` rows.

    Raises:
        BudgetError: they are fewer than are to be kept, or the share of them is less than one row.
        UserError: calibration rows are not there, or cannot be read.
    """
    if keep.certified is not None:
        certifying_rows(keep.certified, package)
    elif keep.threshold is None:
        _number(keep, num_rows, num_rows, of=f"the pool's {num_rows:,} rows")


def decide(
    tables: Sequence[TableRef],
    function: str,
    keep: KeepConfig,
    calibration: GradedScores | None,
    floor: float | None = None,
    classes: Sequence[str] = (),
    *,
    seed: int,
) -> Decision:
    """Make the cut over labels tables, by the scores of the trust ``function``.

    ``floor`` and ``classes`` are those of ``calibration`` (:class:`CertifyingRows`).

    Raises:
        BudgetError: no row would pass, or fewer rows have a score than are to be kept.
        UserError: the calibration rows cannot be used.
    """
    raw, trust = schemas.raw_column(function), schemas.trust_column(function)
    pools = [PoolScores(labels=ref, trust=function) for ref in tables]
    labelled, dropped = sum(pool.num_rows for pool in pools), sum(map(io.num_dropped, tables))
    found = [part for pool in pools for part in pool.mapped(_counted, trust=True)]
    scored, best = sum(number for number, _ in found), max((highest for _, highest in found), default=-np.inf)
    if not scored:
        raise BudgetError(f"keep: nothing is written: none of {labelled:,} labelled rows has a label that can be read")
    risk, short = None, 0
    if keep.threshold is not None:
        score = float(np.float32(keep.threshold))  # trust is float32: 0.9 passes a threshold of 0.9
        if best < score:
            raise BudgetError(
                f"keep.threshold: nothing is written: no row has a trust of at least {keep.threshold}, the highest of "
                f"{scored:,} is {best:.4f}; lower the threshold (the labels are kept)"
            )
        threshold = ThresholdCut(column=trust, bound=Bound(score=score, tie=ALL_TIES, seed=0, num_selected=0))
    elif keep.certified is not None:
        assert calibration is not None, "the caller reads it"
        rows = CertifyingRows(calibration, floor, classes)
        risk, lowest_raw, by_label = _certified(pools, keep.certified, rows, num_rows=labelled, seed=seed)
        bound = Bound(score=lowest_raw, tie=ALL_TIES, seed=0, num_selected=0)
        threshold = ThresholdCut(column=raw, bound=bound, by_label=by_label)
    else:
        wanted = _number(keep, labelled + dropped, scored + dropped)
        short = max(0, wanted - scored)
        threshold = ThresholdCut(column=raw, bound=_top(pools, wanted - short, seed))
    lowest = min(_trusts_that_pass(tables, threshold, trust), default=float("nan"))
    return Decision(
        threshold=threshold,
        num_labelled=labelled,
        num_dropped=dropped,
        num_short=short,
        num_scored=scored,
        lowest_trust=lowest,
        risk=risk,
    )


def _number(keep: KeepConfig, labelled: int, scored: int, of: str | None = None) -> int:
    """How many rows ``keep.n`` or ``keep.share`` asks for; both numbers with dropped rows, ``of`` says of what."""
    wanted = keep.n or rows_in(keep.share or 0.0, labelled)
    if wanted < 1:
        raise BudgetError(
            f"keep.share: nothing is written: {keep.share} of {of or f'{labelled:,} labelled rows'} is less than one; "
            "give a larger share"
        )
    if wanted > scored:
        raise BudgetError(
            f"keep.{keep.rule}: {wanted:,} rows are more than "
            f"{of or f'the {scored:,} of {labelled:,} labelled rows that have a label that can be read'}; keep fewer"
        )
    return wanted


def _certified(
    pools: Sequence[PoolScores], config: CertifiedConfig, calibration: CertifyingRows, *, num_rows: int, seed: int
) -> tuple[Json, float, Mapping[str, float] | None]:
    """Evidence for a cut, as JSON with the number of pool rows that gave its candidates; the cut, and by label."""
    rows, draws = calibration.rows, derive(seed, "candidates")
    assert rows is not None, "the caller reads them"
    known_M = np.where(np.isnan(rows.raw_M), -np.inf, rows.raw_M)
    settings = config.model_dump(exclude={"calibration"})
    given = {name: value for name, value in settings.items() if name != "per"}
    given |= {"seed": derive(seed, "risk"), "floor": calibration.floor}
    by_label, lowest = None, None
    if config.per == "label":
        parts = [pool.sample_of(calibration.classes, draws, num_rows) for pool in pools]
        sample = ClassScores.joined(parts)
        found = ClassScores(score_N=known_M, class_N=rows.places(calibration.classes))
        cuts = calibrate_classes(found, rows.correct_M, sample, calibration.classes, **given)
        made, num_drawn, by_label = cuts.to_json(), len(sample.score_N), cuts.thresholds
        lowest = min(by_label.values(), default=None)
    else:
        drawn = partial(_drawn, num_rows=num_rows, seed=draws)
        pool_N = np.concatenate([part for pool in pools for part in pool.mapped(drawn)])
        cut = calibrate(known_M, rows.correct_M, pool_N, **given)
        made, num_drawn, lowest = asdict(cut), len(pool_N), cut.threshold
    if lowest is None:
        needed = made["needed"]
        by = f" ({made['guarantee'].removeprefix('none: ')})" if config.per == "label" else ""
        more = "" if needed is None else f" (about {needed:,} would have sufficed: {made['needed_basis']})"
        raise BudgetError(
            f"keep.certified: nothing is written: {made['num_calibration']:,} calibration rows certify no cut at alpha "
            f"{config.alpha:g}{more}{by}; give more of them, or raise alpha (the labels are kept)"
        )
    return {**settings, **made, "num_candidates_from": num_drawn}, lowest, by_label


def _counted(batches: Iterable[Batch]) -> tuple[int, float]:
    """How many rows have a score, and the highest."""
    number, highest = 0, -np.inf
    for _, score_N in batches:
        known_N = score_N[~np.isnan(score_N)]
        number, highest = number + len(known_N), max(highest, float(known_N.max(initial=-np.inf)))
    return number, highest


def _drawn(batches: Iterable[Batch], *, num_rows: int, seed: int) -> Float32s:
    """The scores of about ``SAMPLE_ROWS`` of ``num_rows`` rows, of each row by a hash of its id."""
    parts = [score_N[hash_unit(ids_N, seed) * num_rows < SAMPLE_ROWS] for ids_N, score_N in batches]
    return np.concatenate([np.zeros(0, dtype=np.float32), *parts])


def _top(pools: Sequence[PoolScores], n: int, seed: int) -> Bound:
    """The bound of the n highest raw scores of all tables together."""

    def counted(asked: CountingPass) -> PassCounts:
        return merged(part for pool in pools for part in pool.mapped(partial(tally, asked)))

    return exact_bound(counted, n, seed)


def _trusts_that_pass(tables: Sequence[TableRef], threshold: ThresholdCut, trust: str) -> Iterator[float]:
    for ref in tables:
        columns = list(dict.fromkeys([*threshold.columns, trust]))
        for batch in io.open_table(ref).scanner(columns=columns, filter=threshold.near).to_batches():
            passing_N = floats_of(batch.column(trust))[threshold.passes(batch)]
            if len(passing_N):
                yield float(passing_N.min())


def _scores(labels: pa.RecordBatch, column: str) -> Float32s:
    """A column of scores, float32 [N]; NaN where it is null, or the row has no label."""
    usable_N = labels.column("label").is_valid().to_numpy(zero_copy_only=False)
    usable_N &= labels.column("error").is_null().to_numpy(zero_copy_only=False)
    return np.where(usable_N, floats_of(labels.column(column)), np.float32(np.nan))
