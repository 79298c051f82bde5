"""The select stage: makes one selection per arm, all with one budget, writes them as tables and exports them.

Only this stage, and those that find long rows and make rollouts for it, read the audit table and the pool's grades.
They pass on plain numbers: ``selection`` never sees a gold label. Everything that used gold labels is marked
``oracle``. Unparsed rows stay in the paper's uniform draws (they are part of the teacher's output, and count as wrong).
Arms that rank skip them, because an unreadable label cannot be trusted, and so does ``naive_parsed``, the control for
that. All arms skip rows that are too long for the student, so each trains on n rows.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation import memory
from curation.arms import ARMS, TOP, Arm, Rule
from curation.config import DomainConfig, SelectionConfig
from curation.domains import Example, attempt, get_domain
from curation.domains.formats import Format
from curation.domains.grading import read_grades
from curation.errors import BudgetError
from curation.hashing import Int64s, derive
from curation.refs import ModelRef, TableRef
from curation.registry import code
from curation.selection import Candidates, Cut, Selector
from curation.selection.quotas import strata
from curation.stages.budget import Budget, Scored, resolve
from curation.stages.gold import Gold, GoldTexts, WeakFormat, weak_format
from curation.stages.pool_scores import PoolScores, too_long_ids
from curation.stages.selected import PART_ROWS, SelectedRows, write_rows
from curation.storage.paths import Place
from curation.tables import io, scans, schemas
from curation.tables.row_ids import missing
from curation.trust import get_trust

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SelectJob:
    """The inputs that all arms of a generation share."""

    pool: TableRef
    labels: TableRef
    """The pool's labels, with the scores and signals that the arms need."""
    audit: TableRef | None
    grades: TableRef | None
    """The grades of the pool's labels, if there is an audit table."""
    texts: GoldTexts
    """The source of gold arms' completions."""
    too_long: TableRef | None = None
    """Pool rows that are too long for the student (schema ``schemas.TOO_LONG``); None: there are none."""
    measured: Scored
    """The labelled rows for the purity of a ``fit_purity`` budget."""
    calibration: Scored | None
    domain: DomainConfig
    selection: SelectionConfig
    teacher: ModelRef | None
    generation: int
    seed: int

    @property
    def gold(self) -> Gold:
        """What gold arms train on; only for runs with an audit table."""
        assert self.audit is not None, "RunConfig refuses gold arms without an audit set"
        return Gold(self.texts, audit=self.audit, labels=self.labels, grades=self.grades)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The selection of one arm."""

    arm: str
    table: TableRef
    parquet: str
    jsonl: str
    num_rows: int
    digest: str
    """A digest of row ids and completions: equal selections train equal students."""
    threshold: float | None
    """The lowest raw score selected; none for uniform arms."""
    oracle: bool
    """Whether the pool's gold labels were used: as labels, for quotas or for the budget."""
    format: Format
    """The format of its completions; for weak arms the pool's."""
    completion_source: str
    """``weak``, or what gold arms train on (``curation.domains.formats.GoldSource``)."""
    median_characters: float | None
    """The median length of its completions."""
    format_note: str | None
    """Other differences of its rows from those of the other arms."""

    @property
    def words(self) -> str:
        """Label source, format, completion source and length in words, for a list of arms."""
        length = "" if self.median_characters is None else f", median {self.median_characters:,.0f} characters"
        label = "gold" if ARMS[self.arm].gold else "weak"
        if self.format == "label":
            return f"{self.arm}: {label} labels, of which students learn without completions"
        note = "" if self.format_note is None else f"; {self.format_note}"
        return f"{self.arm}: {label} labels, {self.format}s from {self.completion_source}{length}{note}"


def select(job: SelectJob, directory: Place) -> tuple[Budget, list[Selection]]:
    """The budget and the selection of every arm, written to ``directory`` as ``<arm>.{lance,parquet,jsonl}``.

    Raises:
        BudgetError: an arm has fewer candidates than the budget.
    """
    budget = budget_of(job)
    chooser = Chooser(job, budget.n)
    weak = format_of_pool(job)
    by_gold = job.too_long is not None and io.count(job.too_long, filter="gold AND NOT weak") > 0
    selections = []
    for name in job.selection.arms:
        arm = ARMS[name]
        try:
            taken = chooser.taken(arm)
        except BudgetError as error:
            num = len(too_long_ids(job.too_long))
            longer = f"; {num:,} rows are longer than student.max_length, which can be raised" if num else ""
            raise BudgetError(f"arm {name}: {error}{longer}; or drop the arm") from error
        memory.trim()
        written = write_rows(_rows(job, name, taken.row_ids).parts(), directory / name)
        selections.append(
            Selection(
                arm=name,
                **vars(written),
                threshold=taken.threshold if arm.ranked else None,
                oracle=arm.oracle or budget.oracle or by_gold,
                **_format(job, arm, weak, num_rows=written.num_rows, n=budget.n),
            )
        )
    return budget, selections


def budget_of(job: SelectJob) -> Budget:
    """The budget over the pool's labels."""
    return resolve(
        job.selection.budget,
        job.labels,
        grades=job.grades,
        measured=job.measured,
        calibration=job.calibration,
        too_long=job.too_long,
        seed=derive(job.seed, "risk"),
    )


def format_of_pool(job: SelectJob) -> WeakFormat:
    """The format of the pool's weak completions."""
    return weak_format(job.pool, job.labels, job.domain, seed=derive(job.seed, "format"))


def _format(job: SelectJob, arm: Arm, weak: WeakFormat, *, num_rows: int, n: int) -> dict[str, Any]:
    """The fields of an arm's ``Selection`` about its format."""
    source = job.texts.source
    if source == "label":
        return {"format": "label", "completion_source": "label", "format_note": None}
    if not arm.gold:
        return {"format": weak.format, "completion_source": "weak", "format_note": None}
    notes = []
    if source == "answer" and weak.format == "rollout":
        notes.append("bare answers, where the weak arms train on rollouts (selection.gold_rollouts.source)")
    if num_rows < n:
        without = "that gold grades right" if source == "sample" else "in the dataset"
        notes.append(f"{n - num_rows:,} of {n:,} rows have no rollout {without}")
    return {
        "format": "answer" if source == "answer" else "rollout",
        "completion_source": source,
        "format_note": "; ".join(notes) or None,
    }


class Adaptation(NamedTuple):
    """The rows of a labelled split to adapt a teacher on."""

    table: TableRef
    """All healthy ones with their gold labels, as a selection named ``adapt``."""
    left_out: dict[int, str]
    """Of the others the error, ``kind: detail``, by row id."""


def adaptation_rows(examples: TableRef, domain_config: DomainConfig, directory: Place) -> Adaptation:
    """Write the rows to adapt a teacher on; error rows and rows that the domain cannot render are left out."""
    domain = get_domain(domain_config)
    errors = io.read(examples, columns=["row_id", "error"], filter="error IS NOT NULL")
    left_out = dict(zip(errors["row_id"].to_pylist(), errors["error"].to_pylist(), strict=True))

    def pair(example: Example) -> dict[str, str]:
        return {"prompt": domain.prompt(example), "completion": domain.answer(example["gold"], example)}

    rows = []
    for rank, example in enumerate(io.read(examples, filter="error IS NULL").to_pylist()):
        rendered, error = attempt(pair, example)
        if rendered is None:
            left_out[example["row_id"]] = str(error)
            continue
        told = {"arm": "adapt", "label_source": "gold", "completion_source": "answer", "generation": 0}
        rows.append({**rendered, **told, "row_id": example["row_id"], "rank": rank, "label": example["gold"]})
    table = write_rows([pa.Table.from_pylist(rows, schema=schemas.SELECTION)], directory / "adapt").table
    return Adaptation(table, left_out)


@dataclass(frozen=True, kw_only=True, eq=False)
class Taken:
    """The rows of an arm; ``threshold`` is the raw score of the last of them."""

    row_ids: Iterable[Int64s]
    """Best first, in parts; read once."""
    threshold: float | None


class Chooser:
    """Cuts the labelled pool by an arm's rule; computes values that several arms share once, when needed.

    An arm that takes the top of its scores reads them in streams; of gold arms the ids are held, 8 bytes a selected
    row. The other rules need all rows at once: 12 bytes a row of the pool, 20 with its bins.
    """

    def __init__(self, job: SelectJob, n: int) -> None:
        self._job, self._n = job, n
        self._bin_N: Int64s | None = None

    def taken(self, arm: Arm) -> Taken:
        """The rows of an arm, best first: of one that takes the top of its scores without ever holding them."""
        if self._n and arm.rule == TOP and not arm.gold:
            scores = self.scores(arm)
            bound = scores.bound(self._n, derive(self._job.seed, "ties"))
            return Taken(row_ids=scores.ranked(bound), threshold=bound.score)
        cut = self.cut(arm)
        return Taken(row_ids=[cut.row_ids_n], threshold=cut.threshold)

    def cut(self, arm: Arm) -> Cut:
        """The rows of an arm, in rank order."""
        if not self._n:
            return Cut(row_ids_n=np.zeros(0, dtype=np.int64), threshold=None)
        seed = derive(self._job.seed, "ties")
        if arm.gold:
            return self._cut_gold(arm, seed)
        if arm.rule == TOP:
            return self.scores(arm).top(self._n, seed)
        rule: Selector = code(arm.rule.made_by)()
        return rule.cut(self.candidates(arm), self._n, seed)

    def scores(self, arm: Arm) -> PoolScores:
        """What ranks the rows that an arm may take."""
        # All uniform arms share one draw: they differ only in whose label is used, or in their quotas.
        seed = derive(self._job.seed, "draw")
        return PoolScores(
            labels=self._job.labels,
            trust=arm.trust,
            seed=seed,
            parsed=arm.parsed,
            too_long=self._job.too_long,
            only=self._gold.labelled if arm.gold else None,
        )

    @property
    def bin_N(self) -> Int64s:
        """The difficulty bin of each labelled row."""
        if self._bin_N is None:
            self._bin_N = strata(_difficulties(self._job, self._row_ids_N), self._job.selection.difficulty_bins)
        return self._bin_N

    def candidates(self, arm: Arm) -> Candidates:
        """The rows that an arm may take, with what its rule reads; of gold arms those with a gold label."""
        return replace(self.scores(arm).candidates(), **self._read_by(arm.rule))

    @cached_property
    def _row_ids_N(self) -> Int64s:
        """The ids of the labelled rows, in the order of all candidates."""
        labels = self._job.labels
        ids_N: Int64s = io.read(labels, columns=["row_id"], filter=io.answered(labels))["row_id"].to_numpy()
        return ids_N

    def _read_by(self, rule: Rule) -> dict[str, Any]:
        """The further fields of a rule's candidates."""
        read: dict[str, Any] = {}
        num_strata = self._job.selection.difficulty_bins + 1
        if "stratum" in rule.reads:
            read |= {"stratum_N": self.bin_N, "num_strata": num_strata}
        if "accuracy" in rule.reads:
            read["accuracy_S"] = self._accuracy_of_bins(num_strata)
        if "reference" in rule.reads:
            read["reference_M"] = self.cut(ARMS[self._job.selection.budget.reference]).row_ids_n
        return read

    @cached_property
    def _gold(self) -> Gold:
        return self._job.gold

    def _cut_gold(self, arm: Arm, seed: int) -> Cut:
        """A gold arm's rows: fewer than the budget if too few can be taught.

        An arm that draws takes the first rows of the draw that can be taught. An arm that ranks takes the rows of its
        weak twin, without those that cannot be taught; replacing them would make a different selection.
        """
        scores = self.scores(arm)
        if arm.ranked or self._job.texts.source in ("answer", "label"):
            cut = scores.top(self._n, seed)
            return replace(cut, row_ids_n=cut.row_ids_n[~missing(cut.row_ids_n, self._gold.teachable)])
        scores = replace(scores, only=self._gold.labelled & self._gold.teachable)
        num_taught = scores.num_scored
        if not num_taught:
            return Cut(row_ids_n=np.zeros(0, dtype=np.int64), threshold=None)
        return scores.top(min(self._n, num_taught), seed)

    def _accuracy_of_bins(self, num_strata: int) -> Floats:
        """The share of right labels in each bin: the weights of the paper's distribution-aware draw."""
        assert self._job.grades is not None, "RunConfig refuses an oracle without an audit set"
        graded = read_grades(self._job.grades)
        order_N = np.argsort(self._row_ids_N)
        place_M = order_N[np.searchsorted(self._row_ids_N, graded.row_ids_N, sorter=order_N)]
        right_S = np.bincount(self.bin_N[place_M], graded.correct_N, minlength=num_strata)
        return np.asarray(right_S / np.maximum(np.bincount(self.bin_N[place_M], minlength=num_strata), 1))


def _difficulties(job: SelectJob, row_ids_N: Int64s) -> Floats:
    """The difficulty of each row, NaN if it is unknown, float64 [N]."""
    domain = get_domain(job.domain)
    found_N = np.full(len(row_ids_N), np.nan)
    order_N = np.argsort(row_ids_N)
    sorted_N = row_ids_N[order_N]
    columns = {name: f"`{name}`" for name in ("row_id", *domain.columns.names)}
    for batch in scans.batches(job.pool, columns, None, num_rows=PART_ROWS):
        ids_B = batch.column("row_id").to_numpy()
        place_B = np.searchsorted(sorted_N, ids_B)
        known_B = np.searchsorted(sorted_N, ids_B, side="right") > place_B
        examples = batch.filter(pa.array(known_B)).to_pylist()
        values = [attempt(domain.difficulty, example)[0] for example in examples]
        found_N[order_N[place_B[known_B]]] = [np.nan if value is None else value for value in values]
    return found_N


def _rows(job: SelectJob, name: str, row_ids: Iterable[Int64s]) -> SelectedRows:
    arm = ARMS[name]
    return SelectedRows(
        name,
        row_ids,
        pool=job.pool,
        labels=job.labels,
        gold=job.gold if arm.gold else None,
        domain=get_domain(job.domain),
        trust=get_trust(arm.trust, derive(job.seed, "draw")),
        lineage={
            "arm": name,
            "label_source": "gold" if arm.gold else "weak",
            "teacher": None if job.teacher is None else json.dumps(asdict(job.teacher)),
            "generation": job.generation,
        },
    )
