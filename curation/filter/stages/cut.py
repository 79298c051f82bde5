"""The cut of a filter: a condition on each row alone, which also applies to later rows; scores are streamed."""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curation.arrays import Bools
from curation.config.base import count_share
from curation.config.filter import CertifiedConfig, KeepConfig
from curation.errors import BudgetError, SourceError
from curation.filter.package.folder import CALIBRATED, TrustPackage, load, to_floats, to_graded
from curation.hashing import derive
from curation.json_types import Json
from curation.refs import TableRef, fingerprint
from curation.rundir.graph import Done, InEach, Inputs, Stage, setting
from curation.rundir.run import Task
from curation.selection.bound import Bound
from curation.selection.budget import GradedScores, Pool
from curation.selection.risk import Certified
from curation.sources.paths import get_filesystem
from curation.stages.pool_scores import Batch, PoolScores
from curation.tables import io, schemas

ALL_TIES = 2**64 - 1
"""Value of a bound's ``tie`` with which every row of exactly the bound's score passes."""
BATCH_ROWS = 8192


@dataclass(frozen=True, kw_only=True)
class ThresholdCut:
    """A threshold of a cut: a column of the labels table, and the bound that its values must pass."""

    column: str
    bound: Bound

    def iter_passing(
        self, labels: TableRef, columns: Sequence[str], fragment: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that pass with these columns, of a fragment or of all, in the table's order, in batches."""
        dataset = io.open_table(labels)
        fragments = [part for part in dataset.get_fragments() if fragment is None or fragment == part.fragment_id]
        scanner = dataset.scanner(
            columns=list(dict.fromkeys(["row_id", "label", "error", self.column, *columns])),
            # drops most rows that do not pass, and no row that passes
            filter=f"{self.column} >= CAST({self.bound.score!r} AS FLOAT) AND label IS NOT NULL AND error IS NULL",
            fragments=fragments,
            batch_size=BATCH_ROWS,
            scan_in_order=True,
        )
        for batch in scanner.to_batches():
            yield batch.filter(pa.array(self.passes(batch)))

    def passes(self, labels: pa.RecordBatch) -> Bools:
        """Return which rows pass, bool [N]; rows without a label never do."""
        usable_N = labels.column("label").is_valid().to_numpy(zero_copy_only=False)
        usable_N &= labels.column("error").is_null().to_numpy(zero_copy_only=False)
        score_N = np.where(usable_N, to_floats(labels.column(self.column)), np.float32(np.nan))
        return np.asarray(self.bound.passes(labels.column("row_id").to_numpy(), score_N))

    def to_json(self) -> Json:
        """Return the threshold as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """Return the inverse of :meth:`to_json`."""
        return cls(**{**value, "bound": Bound(**value["bound"])})


class CertifyingRows(NamedTuple):
    """The rows that certify a cut."""

    rows: GradedScores
    floor: float | None
    """Least raw score of the rows from which they were drawn, or None if from all rows."""


def read_certifying_rows(config: CertifiedConfig, package: TrustPackage) -> CertifyingRows:
    """Return the rows that certify a cut, fresh or else the package's."""
    given = config.calibration
    return CertifyingRows(package.calibration(), None) if given is None else read_calibration(given)


def read_calibration(path: str) -> CertifyingRows:
    """Return the calibration rows in a Parquet file with the columns ``CALIBRATED``; refuse any other file."""
    try:
        opened, inner = get_filesystem(path)
        schema = pq.read_schema(inner, filesystem=opened)
        if "correct" in schema.names and not pa.types.is_boolean(kind := schema.field("correct").type):
            raise SourceError(  # cast to bool, a grade of 0.4 or of 3 would count as a correct label
                f"keep.certified.calibration: {path}: column 'correct' is {kind}; give it as true or false"
            )
        table = pq.read_table(inner, filesystem=opened, schema=CALIBRATED)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"keep.certified.calibration: {path}: cannot be read as Parquet: {error}") from error
    for name in CALIBRATED.names:
        if nulls := table[name].null_count:
            raise SourceError(
                f"keep.certified.calibration: {path}: column {name!r} is missing, or has no value in {nulls:,} rows; "
                "give raw and trust as numbers and correct as true or false, and leave other rows out"
            )
    floor = (schema.metadata or {}).get(b"floor")
    return CertifyingRows(to_graded(table), None if floor is None else float(floor))


def compute_calibration_digest(path: str) -> str:
    """Return a digest of the file's content."""
    try:
        opened, inner = get_filesystem(path)
        with opened.open_input_stream(inner) as file:
            return hashlib.sha256(file.read()).hexdigest()[:16]
    except OSError as error:
        raise SourceError(f"keep.certified.calibration: {path}: cannot be read: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A threshold, as JSON, and the facts about its rows; with its rule and the rounds from which it was made."""

    threshold: Json
    num_labelled: int
    """Number of rows labelled without error and not dropped by a gate."""
    num_dropped: int
    num_short: int
    """Number of requested rows that are missing because a gate dropped too many."""
    num_scored: int
    """Number of labelled rows with a label and a score; only these can pass."""
    lowest_trust: float
    """Lowest trust that passes, among the rows from which the cut was made."""
    risk: Json | None
    """Settings and result of a calibration (``curation.selection.risk.RiskCut``), or None without one."""
    id: str = ""
    """A digest of threshold and rule."""
    rule: Json = field(default_factory=dict)
    rounds: list[str] = field(default_factory=list)


class Packaged(Inputs):
    """The package of a stage; its digest is part of the cache key, its place is not."""

    package: str
    uri: str = setting()
    allow_code: Collection[str] = setting()

    def loaded(self) -> TrustPackage:
        """Read and return the package."""
        return load(self.uri, allow_code=self.allow_code)


class MakeCut(Stage, Packaged):
    """A stage that decides which rows of the labelled rounds pass (:func:`decide`)."""

    Made = Decision

    tables: InEach[TableRef]
    rule: Json
    """``keep`` as JSON, with a digest of fresh calibration rows in place of their path."""
    function: str
    seed: int
    keep: KeepConfig = setting()
    revision: int = 3  # its threshold has another name

    @property
    def inputs(self) -> Json:
        """The arguments on which the cut depends."""
        return {**super().inputs, "tables": list(self.tables.values()), "rounds": list(self.tables)}

    def run(self, task: Task) -> Done:
        """Make the cut, and report it."""
        keep = self.keep
        given = None if keep.certified is None else read_certifying_rows(keep.certified, self.loaded())
        found = decide([*self.tables.values()], self.function, keep, given, seed=self.seed)
        task.say(f"{keep.words}: rows with a trust of {found.lowest_trust:.4f} and more pass")
        if found.num_short:
            task.say(f"{found.num_short:,} rows fewer than asked for: the first cut left no more with a readable label")
        name = fingerprint([found.threshold, self.rule])[:8]
        made = replace(found, id=name, rule=self.rule, rounds=list(self.tables))
        return Done(outputs=made, rows=found.num_labelled)


def check_keep(keep: KeepConfig, package: TrustPackage, num_rows: int) -> None:
    """Refuse, before labelling, a rule that cannot make a cut over ``num_rows`` rows, by a ``UserError``."""
    if keep.certified is not None:
        read_certifying_rows(keep.certified, package)
    elif keep.threshold is None:
        _count_requested(keep, num_rows, num_rows)


def decide(
    tables: Sequence[TableRef], function: str, keep: KeepConfig, given: CertifyingRows | None = None, *, seed: int
) -> Decision:
    """Make the cut over labels tables, by the scores of the trust ``function``; ``given`` rows certify it.

    Raises:
        BudgetError: no row would pass, or fewer rows have a score than are to be kept.
        UserError: the calibration rows cannot be used.
    """
    raw, trust = schemas.get_raw_column(function), schemas.trust_column(function)
    pool = PoolScores(labels=tables[0], further=tuple(tables[1:]), trust=function)
    labelled, dropped = pool.num_rows, sum(map(io.count_dropped, tables))
    found = [*pool.map_batches(_count_scored, trust=True)]
    scored, best = sum(number for number, _ in found), max((highest for _, highest in found), default=-np.inf)
    if not scored:
        raise BudgetError(f"keep: nothing is written: none of {labelled:,} labelled rows has a label that can be read")
    column, short, lowest = raw, 0, float("nan")
    bound: Bound | None = None
    risk: Json | None = None
    if keep.threshold is not None:
        column, lowest = trust, float(np.float32(keep.threshold))  # trust is float32: 0.9 passes a threshold of 0.9
        if best < lowest:
            raise BudgetError(
                f"keep.threshold: nothing is written: no row has a trust of at least {keep.threshold}, the highest of "
                f"{scored:,} is {best:.4f}; lower the threshold (the labels are kept)"
            )
    elif keep.certified is not None:
        assert given is not None, "the caller reads them"
        graded: Any = {"calibration": given.rows, "floor": given.floor}
        counted = Pool(num_rows=labelled, scores=pool, seed=derive(seed, "risk"), **graded)
        risk, lowest = _compute_certified(keep.certified, counted)
    else:
        requested = _count_requested(keep, labelled + dropped, scored + dropped)
        short = max(0, requested - scored)
        bound = pool.bound(requested - short, seed)
    bound = bound or Bound(score=lowest, tie=ALL_TIES, seed=0, num_selected=0)
    threshold = ThresholdCut(column=column, bound=bound)
    passing = (to_floats(batch.column(trust)) for ref in tables for batch in threshold.iter_passing(ref, [trust]))
    return Decision(
        threshold=threshold.to_json(),
        num_labelled=labelled,
        num_dropped=dropped,
        num_short=short,
        num_scored=scored,
        lowest_trust=min((float(trust_B.min()) for trust_B in passing if len(trust_B)), default=float("nan")),
        risk=risk,
    )


def _count_requested(keep: KeepConfig, labelled: int, scored: int) -> int:
    """Return how many rows ``keep`` requests of those that are or may be labelled; both counts include dropped rows."""
    requested = keep.n or count_share(keep.share or 0.0, labelled)
    if requested < 1:
        raise BudgetError(
            f"keep.share: nothing is written: {keep.share} of {labelled:,} rows is less than one; give a larger share"
        )
    if requested > scored:
        raise BudgetError(
            f"keep.{keep.rule}: {requested:,} rows are more than the {scored:,} of {labelled:,} that can have a "
            "readable label; keep fewer"
        )
    return requested


def _compute_certified(config: CertifiedConfig, pool: Pool) -> tuple[Json, float]:
    """Return a certified cut's evidence, by the budget rule of runs, and its lowest raw score."""
    found = Certified(**config.model_dump(exclude={"calibration"})).count(pool)
    risk = found.risk
    assert risk is not None, "the rule records its evidence"
    if not found.n:
        more = ""
        if risk["needed"] is not None:
            more = f" (about {risk['needed']:,} would have sufficed: {risk['needed_basis']})"
        raise BudgetError(
            f"keep.certified: nothing is written: {risk['num_calibration']:,} calibration rows certify no cut at alpha "
            f"{config.alpha:g}{more}; give more of them, or raise alpha (the labels are kept)"
        )
    assert found.threshold is not None, "rows pass"
    return risk, found.threshold


def _count_scored(batches: Iterable[Batch]) -> tuple[int, float]:
    """Return how many rows have a score, and the highest score."""
    number, highest = 0, -np.inf
    for _, score_N in batches:
        known_N = score_N[~np.isnan(score_N)]
        number, highest = number + len(known_N), max(highest, float(known_N.max(initial=-np.inf)))
    return number, highest
