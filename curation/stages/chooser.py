"""Selection of an arm's rows from the labelled pool by the arm's rule, in rank order."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import cache, cached_property, partial
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import pyarrow as pa

from curation.arms import ARMS, TOP, TRUST, Arm
from curation.arrays import Int64s
from curation.config import DomainConfig, SelectionConfig
from curation.domains import attempt, get_domain
from curation.domains.class_counts import SeenLabels, collect_seen_labels
from curation.domains.grading import read_grades
from curation.errors import RunFailedError
from curation.features import features
from curation.hashing import derive
from curation.refs import ModelRef, TableRef
from curation.registry import check_options, load_code
from curation.rundir.graph import In, InEach, Inputs
from curation.selection import Candidates, Cut, Selector
from curation.selection import budget as rules
from curation.selection.capped import Capped
from curation.selection.quotas import assign_bins
from curation.selection.top_n import check_budget
from curation.stages.gold import Gold, GoldTexts
from curation.stages.pool_scores import ComputedBudget, Groups, PoolScores, ScoredSplit
from curation.stages.rows import NO_IDS, PART_ROWS, find_places, read_id_bitmap, read_ids, read_sorted_ids
from curation.stages.signal import LABELLED
from curation.tables import io, scans
from curation.tables.row_ids import find_missing_ids
from curation.tables.schemas import CLUSTER
from curation.trust.parts import find_independent

T = TypeVar("T")
GROUPED = "; one calibration row of a group counts, and groups in proportion to their rows (splits.group)"
"""Text appended to the guarantee of a budget if rows have groups."""


class ChoiceInputs(Inputs):
    """The rows and rules of a selection, shared by all arms of a generation."""

    pool: In[TableRef]
    labels: In[TableRef]
    audit: In[TableRef | None]
    grades: In[TableRef | None]
    too_long: In[TableRef | None] = None  # type: ignore[assignment]
    repeats: In[TableRef | None] = None  # type: ignore[assignment]
    """Pool rows whose question another pool row asks too (schema ``schemas.REPEATS``), or None if there are none; an
    arm selects only the best row of each question."""
    labelled: In[TableRef | None] = None  # type: ignore[assignment]
    """The source split with gold labels; pool labels that it lacks are unseen. If None, no label counts as unseen."""
    measured: ScoredSplit
    """The labelled rows whose purity a ``fit_purity`` budget reads."""
    calibration: ScoredSplit | None
    domain: DomainConfig
    selection: SelectionConfig
    declared: Mapping[str, Any] = field(default_factory=dict)
    """Result of :func:`collect_declared`, so that a changed registry entry makes a new selection."""
    divided: Mapping[str, Inputs] = field(default_factory=dict)
    left_out: InEach[TableRef] = field(default_factory=dict)  # type: ignore[arg-type]
    """Tables of rows (schema ``schemas.LEFT_OUT``), by feature: arms ranked like the reference arm leave them out."""
    seed: int


def collect_declared(selection: SelectionConfig) -> dict[str, Any]:
    """Return the registry entries of the arms and the budget, without their descriptions."""
    arms = {name: replace(ARMS[name], words="") for name in selection.used}
    trusts = {arm.trust: replace(TRUST[arm.trust], words="") for arm in arms.values()}
    return {"arms": arms, "trust": trusts, "budget": selection.budget.declared}


def is_ranked_as_reference(arm: Arm, selection: SelectionConfig) -> bool:
    """Return whether an arm ranks as the reference arm does, so that it selects no row of ``left_out``."""
    return arm.ranked and arm.trust == ARMS[selection.budget.reference].trust


def require_measurable(choice: ChoiceInputs) -> None:
    """Raise ``RunFailedError`` if an arm is ranked by a signal that has no readable value in any row."""
    names, count = io.open_table(choice.labels).schema.names, cache(partial(io.count, choice.labels))
    for name in dict.fromkeys(choice.selection.used):
        signal = ARMS[name].signal
        if signal is None or signal.column not in names or count(f"`{signal.column}` IS NOT NULL"):
            continue
        if num_rows := count(LABELLED):
            raise RunFailedError(
                f"the arm {name} cannot be measured: none of {num_rows:,} rows gave a value that can be read; look at "
                "the model and its answers, or take the arm out of selection.arms (and selection.budget.reference): "
                "the labels stay, and the same command goes on"
            )


class SelectJob(ChoiceInputs):
    """A selection, with the source of the completions that students train on, and their provenance."""

    texts: GoldTexts
    teacher: ModelRef | None
    generation: int

    @cached_property
    def divisions(self) -> "Mapping[str, RowDivision[Any]]":
        """The divisions of an arm's rows, by feature."""
        paths = {name: feature.division for name, feature in features().items()}
        return {name: load_code(path)(self) for name, path in paths.items() if path is not None}

    @cached_property
    def seen(self) -> SeenLabels | None:
        """The labels of the ``labelled`` rows, which rank first, or None if no label counts as unseen."""
        return None if self.labelled is None else collect_seen_labels(self.labelled, self.domain)

    @property
    def gold(self) -> Gold:
        """Gold labels and completions that gold arms train on; requires an audit table."""
        assert self.audit is not None, "RunConfig refuses gold arms without an audit set"
        return Gold(self.texts, audit=self.audit, labels=self.labels, grades=self.grades)


def apply_budget_rule(job: SelectJob) -> ComputedBudget:
    """Compute the number of rows to select from the pool, by the budget's rule; gold labels are read only as counts.

    Rows of ``too_long`` are never selected, so rules that count rows (right weak labels, rows above a threshold) skip
    them; all rules count a question in ``repeats`` once. Rows whose label is unseen rank last. A ``share`` is that of
    all labelled rows, including those that a gate dropped.

    Raises:
        BudgetError: the budget is 0.
        ConfigError: the calibration cannot be used.
    """
    config, seed = job.selection.budget, derive(job.seed, "risk")
    scores = PoolScores(
        labels=job.labels,
        trust=ARMS[config.reference].trust,
        seed=seed,
        too_long=job.too_long,
        repeats=job.repeats,
        seen=None if job.seen is None else job.seen.labels,
    )
    reads, num_right = config.declared.reads, None
    made_by = load_code(config.declared.counted_by)
    check_options(f"selection.budget.{config.rule}", made_by, config.options)
    rule: rules.BudgetRule = made_by(**config.options)
    if "right" in reads:
        assert job.grades is not None, "RunConfig refuses an oracle budget without an audit set"
        num_right = 0
        out_M = np.union1d(read_sorted_ids(job.too_long), scores.copies_M)
        for batch in io.open_table(job.grades).to_batches(columns=["row_id"], filter="correct = true"):
            num_right += int((~np.isin(batch.column("row_id").to_numpy(), out_M)).sum())
    calibration = job.calibration
    count = rule.count(
        rules.Pool(
            num_rows=scores.num_rows + io.count_dropped(job.labels) - len(scores.copies_M),
            num_right=num_right,
            scores=scores if "scores" in reads else None,
            measured=_collect_graded(scores, job.measured) if "measured" in reads else None,
            calibration=_collect_graded(scores, calibration, distinct=True) if "calibration" in reads else None,
            classes=get_domain(job.domain).closed_labels(),
            seed=seed,
        )
    )
    graded = None if calibration is None else calibration.grades
    if count.risk is not None and graded is not None and CLUSTER.name in io.open_table(graded).schema.names:
        count.risk["guarantee"] += GROUPED
    return ComputedBudget(**count._asdict(), rule=config.rule, reference=config.reference, oracle=config.needs_gold)


def _collect_graded(pool: PoolScores, scored: ScoredSplit | None, *, distinct: bool = False) -> rules.GradedScores:
    """Return the graded rows of a labelled split, with NaN as the score of rows that cannot be selected.

    ``distinct`` keeps only rows that count as independent draws (``curation.trust.parts.find_independent``).
    """
    assert scored is not None and scored.grades is not None, "splits that a budget reads are labelled and graded"
    scores = replace(pool, labels=scored.labels, too_long=scored.too_long, repeats=None, seen=None)
    candidates, trust_N, graded = scores.candidates(), scores.trust_of_all(), read_grades(scored.grades)
    place_M = find_places(candidates.row_ids_N, graded.row_ids_N)
    raw_M = candidates.raw_score_N[place_M].astype(np.float32, copy=False)
    found = rules.GradedScores(raw_M, trust_N[place_M], graded.correct_N)
    if not distinct:
        return found
    label_M = io.take(scored.labels, graded.row_ids_N, ["label"])["label"].to_numpy()
    independent = find_independent(graded.question_N, graded.row_ids_N, graded.cluster_N)
    return found._replace(label_M=label_M).subset(independent)


class RowDivision(ABC, Generic[T]):
    """A feature's limit on how many rows of each group an arm takes: those that it ranks highest."""

    leaves_fewer: ClassVar[bool] = False
    """Whether an arm may have fewer rows left than the budget's n, which is then lowered to what every arm has."""

    def __init__(self, job: SelectJob) -> None:
        self.job = job

    @abstractmethod
    def set(self, budget: ComputedBudget) -> T | None:
        """Return the value to record in a budget of at least one row, such as a number, or None to divide nothing."""

    @abstractmethod
    def group(self, arm: Arm, scores: PoolScores, n: int, value: T, before: Groups | None) -> Groups | None:
        """Return the groups of the rows from which an arm takes n, by the ``value`` that was set.

        They replace the groups ``before``, of other divisions; return these for an arm that this rule does not divide.
        """

    @abstractmethod
    def describe(self, budget: ComputedBudget, value: T | None) -> Iterator[str]:
        """Yield lines for the log."""


class Chooser:
    """A selector of each arm's rows; values that several arms share are computed once, when needed.

    An arm that takes its top rows reads scores in streams; for gold arms the ids are held, 8 bytes per selected row.
    The other rules need all rows at once: 12 bytes per row of the pool, 20 with its bins.

    Divided top rows are found in one pass and held, 32 bytes per selected row (:mod:`curation.selection.capped`); the
    other rules choose among the rows that the divisions leave, which takes 32 more bytes per row of the pool.
    """

    def __init__(self, job: SelectJob, budget: ComputedBudget) -> None:
        self._job, self._n = job, budget.n
        self._divisions = [(job.divisions[name], value) for name, value in budget.divided.items()]
        self._ties = derive(job.seed, "ties")

    def take_rows(self, arm: Arm) -> tuple[Iterable[Int64s], float | None]:
        """Return the row ids of an arm, best first, in parts that can be read only once, and the last row's raw score.

        An arm that takes its top rows streams their ids without holding them.
        """
        if self._n and arm.rule == TOP and not arm.gold:
            return self._stream_top(arm)
        cut = self.cut(arm)
        return [cut.row_ids_n], cut.threshold

    def _stream_top(self, arm: Arm) -> tuple[Iterable[Int64s], float | None]:
        if (left := self._divide(arm, self._n)) is not None:
            return [left.row_ids_n], float(left.score_n[-1])
        scores = self.scores(arm)
        bound = scores.bound(self._n, self._ties)
        return scores.ranked(bound), bound.score

    def cut(self, arm: Arm) -> Cut:
        """Return the rows of an arm, in rank order; of a gold arm fewer than the budget if too few can be taught.

        A gold arm that draws takes the first rows of the draw that can be taught. One that ranks takes the rows of its
        weak twin, without those that cannot be taught; replacing them would make a different selection.
        """
        nothing = Cut(row_ids_n=NO_IDS, threshold=None)
        if not self._n:
            return nothing
        if not arm.gold or arm.ranked or self._job.texts.source in ("answer", "label"):
            found = self.top(arm) if arm.rule == TOP else self._apply_rule(arm, self.candidates(arm), self._n)
            return replace(found, row_ids_n=self._keep_teachable(found.row_ids_n)) if arm.gold else found
        if arm.rule != TOP:
            candidates = self.candidates(arm)
            unteachable_N = find_missing_ids(candidates.row_ids_N, self._gold.teachable)
            raw_score_N = np.where(unteachable_N, np.nan, candidates.raw_score_N)
            num = min(self._n, int(np.isfinite(raw_score_N).sum()))
            return self._apply_rule(arm, replace(candidates, raw_score_N=raw_score_N), num) if num else nothing
        scores = self.scores(arm)
        if (left := self._divide(arm, scores.num_rows)) is not None:
            return Cut(row_ids_n=self._keep_teachable(left.row_ids_n)[: self._n], threshold=None)
        scores = replace(scores, only=self._gold.labelled & self._gold.teachable)
        num_taught = scores.num_scored
        return scores.top(min(self._n, num_taught), self._ties) if num_taught else nothing

    def _keep_teachable(self, row_ids_n: Int64s) -> Int64s:
        return row_ids_n[~find_missing_ids(row_ids_n, self._gold.teachable)]

    def _apply_rule(self, arm: Arm, candidates: Candidates, num: int) -> Cut:
        rule: Selector = load_code(arm.rule.made_by)()
        return rule.cut(candidates, num, self._ties)

    def scores(self, arm: Arm) -> PoolScores:
        """Return the scores that rank the rows which an arm may take."""
        job = self._job
        return PoolScores(
            labels=job.labels,
            trust=arm.trust,
            # All uniform arms share one draw: they differ only in whose label is used, or in the bins' sizes.
            seed=derive(job.seed, "draw"),
            parsed=arm.parsed,
            too_long=job.too_long,
            repeats=job.repeats,
            left_out=tuple(job.left_out.values()) if is_ranked_as_reference(arm, job.selection) else (),
            only=self._gold.labelled if arm.gold else None,
            unread_last=True,
            seen=job.seen.labels if arm.ranked and job.seen is not None else None,
        )

    def num_unread(self, arm: Arm, selected: TableRef) -> int:
        """Return how many ``selected`` rows of an arm rank last because its signal could not be read."""
        if arm.signal is None:
            return 0
        unread_ids = read_id_bitmap(self._job.labels, f"`{arm.signal.column}` IS NULL")
        parts = io.open_table(selected).to_batches(columns=["row_id"])
        return sum(int((~find_missing_ids(part.column("row_id").to_numpy(), unread_ids)).sum()) for part in parts)

    @cached_property
    def bin_N(self) -> Int64s:
        """The difficulty bin of each labelled row."""
        domain, row_ids_N = get_domain(self._job.domain), self._row_ids_N
        difficulty_N = np.full(len(row_ids_N), np.nan)
        order_N = np.argsort(row_ids_N)
        sorted_N = row_ids_N[order_N]
        columns = {name: f"`{name}`" for name in ("row_id", *domain.columns.names)}
        for batch in scans.iter_table_batches(self._job.pool, columns, None, num_rows=PART_ROWS):
            ids_B = batch.column("row_id").to_numpy()
            place_B = np.searchsorted(sorted_N, ids_B)
            known_B = np.searchsorted(sorted_N, ids_B, side="right") > place_B
            examples = batch.filter(pa.array(known_B)).to_pylist()
            values = [attempt(domain.difficulty, example)[0] for example in examples]
            difficulty_N[order_N[place_B[known_B]]] = [np.nan if value is None else value for value in values]
        return assign_bins(difficulty_N, self._job.selection.difficulty_bins)

    def candidates(self, arm: Arm) -> Candidates:
        """Return the rows that an arm may take, with the fields that its rule reads; gold arms need a gold label."""
        candidates = self.scores(arm).candidates()
        if (left := self._divide(arm, len(candidates.row_ids_N))) is not None:
            left_N = np.isin(candidates.row_ids_N, left.row_ids_n)
            candidates = replace(candidates, raw_score_N=np.where(left_N, candidates.raw_score_N, np.nan))
        read: dict[str, Any] = {}
        num_strata = self._job.selection.difficulty_bins + 1
        if "stratum" in arm.rule.reads:
            read |= {"stratum_N": self.bin_N, "num_strata": num_strata}
        if "accuracy" in arm.rule.reads:
            # The share of right labels in each bin: the weights of the paper's distribution-aware draw.
            assert self._job.grades is not None, "RunConfig refuses an oracle without an audit set"
            graded = read_grades(self._job.grades)
            bin_M = self.bin_N[find_places(self._row_ids_N, graded.row_ids_N)]
            right_S = np.bincount(bin_M, graded.correct_N, minlength=num_strata)
            read["accuracy_S"] = np.asarray(right_S / np.maximum(np.bincount(bin_M, minlength=num_strata), 1))
        if "reference" in arm.rule.reads:
            read["reference_M"] = self.cut(ARMS[self._job.selection.budget.reference]).row_ids_n
        return replace(candidates, **read)

    def num_left(self, arm: Arm, *, of_top: bool = False) -> int:
        """Return how many rows, at most n, the divisions leave an arm or, if ``of_top``, how many of its n best rows.

        ``BudgetError``: n rows have no score.
        """
        if (found := self._divide(arm, self._n)) is None:
            return self._n
        if not of_top:
            check_budget(self._n, found.num_scored, found.num_rows)
            return len(found)
        bound = self.scores(arm).bound(self._n, self._ties)
        return int(bound.passes(found.row_ids_n, found.score_n.astype(np.float32)).sum())

    @cached_property
    def _row_ids_N(self) -> Int64s:
        """The ids of the labelled rows, in the order of the candidates."""
        return read_ids(self._job.labels, io.make_answered_filter(self._job.labels))

    @cached_property
    def _gold(self) -> Gold:
        return self._job.gold

    def top(self, arm: Arm) -> Cut:
        """Return the best rows of an arm."""
        parts, threshold = self._stream_top(arm)
        return Cut(row_ids_n=np.concatenate([*parts]), threshold=threshold)

    def _divide(self, arm: Arm, n: int) -> Capped | None:
        """Return the n best rows of an arm that its divisions leave, or fewer; None if nothing divides its rows."""
        if not self._divisions:
            return None
        scores, groups = self.scores(arm), None
        for division, value in self._divisions:
            groups = division.group(arm, scores, n, value, groups)
        return None if groups is None else scores.grouped(groups, n, self._ties)
