"""The select stage: makes one selection per arm, all with one budget, writes them as tables and exports them.

Only this stage, and those that find long rows and make rollouts for it, read the audit table and the pool's grades.
They pass on plain numbers: ``selection`` never sees a gold label. Everything that used gold labels is marked
``oracle``. Unparsed rows stay in the paper's uniform draws (they are part of the teacher's output, and count as wrong).
Arms that rank skip them, because an unreadable label cannot be trusted, and so does ``naive_parsed``, the control for
that. All arms skip rows that are too long for the student, so each trains on n rows.
"""

import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curation.arms import ARMS, Arm, Rule
from curation.config import DomainConfig, SelectionConfig
from curation.domains import Domain, Example, attempt, get_domain
from curation.domains.formats import Format
from curation.domains.grading import read_grades
from curation.errors import BudgetError, CurationError
from curation.hashing import Int64s, derive
from curation.refs import ModelRef, TableRef, fingerprint
from curation.registry import code
from curation.selection import Candidates, Cut, Selector
from curation.selection.quotas import strata
from curation.selection.top_n import TopN
from curation.stages.budget import Budget, Scored, batch_of, choosable, resolve, too_long_ids, without
from curation.stages.gold import Gold, GoldTexts, WeakFormat, weak_format
from curation.storage.cache import staged
from curation.storage.paths import Place
from curation.tables import io, schemas
from curation.trust import TrustFunction, get_trust

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
    labels = batch_of(job.labels)
    budget = budget_of(job, labels)
    chooser = Chooser(job, labels, budget.n)
    weak = format_of_pool(job, labels)
    by_gold = job.too_long is not None and io.count(job.too_long, filter="gold AND NOT weak") > 0
    selections = []
    for name in job.selection.arms:
        arm = ARMS[name]
        try:
            cut = chooser.cut(arm)
        except BudgetError as error:
            num = len(chooser.too_long_M)
            longer = f"; {num:,} rows are longer than student.max_length, which can be raised" if num else ""
            raise BudgetError(f"arm {name}: {error}{longer}; or drop the arm") from error
        rows = _rows(job, name, cut.row_ids_n)
        selections.append(
            Selection(
                arm=name,
                table=_write(rows, directory / name),
                parquet=str(directory / f"{name}.parquet"),
                jsonl=str(directory / f"{name}.jsonl"),
                num_rows=rows.num_rows,
                digest=fingerprint(rows.select(["row_id", "completion"]).to_pylist()),
                threshold=cut.threshold if arm.ranked else None,
                oracle=arm.oracle or budget.oracle or by_gold,
                median_characters=_median_characters(rows),
                **_format(job, arm, weak, num_rows=rows.num_rows, n=budget.n),
            )
        )
    return budget, selections


def budget_of(job: SelectJob, labels: pa.RecordBatch) -> Budget:
    """The budget over the pool's ``labels``."""
    return resolve(
        job.selection.budget,
        labels,
        grades=job.grades,
        measured=job.measured,
        calibration=job.calibration,
        too_long_M=too_long_ids(job.too_long),
        num_dropped=io.num_dropped(job.labels),
        seed=derive(job.seed, "risk"),
    )


def format_of_pool(job: SelectJob, labels: pa.RecordBatch) -> WeakFormat:
    """The format of the weak completions among the pool's ``labels``."""
    parsed_N = labels.column("row_id").filter(labels.column("label").is_valid()).to_numpy()
    return weak_format(job.pool, job.labels, parsed_N, job.domain, seed=derive(job.seed, "format"))


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


def _median_characters(rows: pa.Table) -> float | None:
    lengths_N = pc.utf8_length(rows["completion"]).to_numpy()
    return float(np.median(lengths_N)) if len(lengths_N) else None


def adaptation_rows(examples: TableRef, domain_config: DomainConfig, directory: Place) -> TableRef:
    """All healthy rows of a labelled split with their gold labels, written as a selection named ``adapt``.

    Rows that the domain cannot render are skipped.
    """
    domain = get_domain(domain_config)

    def pair(example: Example) -> dict[str, str]:
        return {"prompt": domain.prompt(example), "completion": domain.answer(example["gold"], example)}

    rows = [
        rendered
        | {
            "row_id": example["row_id"],
            "arm": "adapt",
            "rank": rank,
            "label": example["gold"],
            "label_source": "gold",
            "completion_source": "answer",
            "generation": 0,
        }
        for rank, example in enumerate(io.read(examples, filter="error IS NULL").to_pylist())
        if (rendered := attempt(pair, example)[0]) is not None
    ]
    return _write(pa.Table.from_pylist(rows, schema=schemas.SELECTION), directory / "adapt")


class Chooser:
    """Cuts the labelled pool by an arm's rule; computes values that several arms share once, when needed."""

    def __init__(self, job: SelectJob, labels: pa.RecordBatch, n: int) -> None:
        self._job, self._labels, self._n = job, labels, n
        self.too_long_M = too_long_ids(job.too_long)
        self._row_ids_N: Int64s = labels.column("row_id").to_numpy()
        self._bin_N: Int64s | None = None

    def cut(self, arm: Arm) -> Cut:
        """The rows of an arm, in rank order."""
        if not self._n:
            return Cut(row_ids_n=np.zeros(0, dtype=np.int64), threshold=None)
        seed = derive(self._job.seed, "ties")
        if arm.gold:
            return self._cut_gold(arm, seed)
        rule: Selector = code(arm.rule.made_by)()
        return rule.cut(self.candidates(arm), self._n, seed)

    @property
    def bin_N(self) -> Int64s:
        """The difficulty bin of each labelled row."""
        if self._bin_N is None:
            domain = get_domain(self._job.domain)
            examples = io.Lookup(self._job.pool).take(self._row_ids_N, ["row_id", *domain.columns.names])
            self._bin_N = strata(_difficulties(examples, domain), self._job.selection.difficulty_bins)
        return self._bin_N

    def candidates(self, arm: Arm) -> Candidates:
        """The rows that an arm may take, with what its rule reads; of gold arms those with a gold label."""
        trust = _trust_of(arm, self._job.seed)
        left_out = choosable if arm.parsed else without
        raw_N = left_out(trust.raw_score(self._labels), self._labels, self.too_long_M)
        if arm.gold:
            raw_N = np.where(np.isin(self._row_ids_N, self._gold.labelled_M), raw_N, np.float32(np.nan))
        return Candidates(row_ids_N=self._row_ids_N, raw_score_N=raw_N, **self._read_by(arm.rule))

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
        candidates = self.candidates(arm)
        if arm.ranked or self._job.texts.source in ("answer", "label"):
            cut = TopN().cut(candidates, self._n, seed)
            return replace(cut, row_ids_n=cut.row_ids_n[self._gold.can_teach(cut.row_ids_n)])
        raw_N = np.where(self._gold.can_teach(self._row_ids_N), candidates.raw_score_N, np.float32(np.nan))
        num_taught = int(np.isfinite(raw_N).sum())
        if not num_taught:
            return Cut(row_ids_n=np.zeros(0, dtype=np.int64), threshold=None)
        return TopN().cut(replace(candidates, raw_score_N=raw_N), min(self._n, num_taught), seed)

    def _accuracy_of_bins(self, num_strata: int) -> Floats:
        """The share of right labels in each bin: the weights of the paper's distribution-aware draw."""
        assert self._job.grades is not None, "RunConfig refuses an oracle without an audit set"
        graded = read_grades(self._job.grades)
        order_N = np.argsort(self._row_ids_N)
        place_M = order_N[np.searchsorted(self._row_ids_N, graded.row_ids_N, sorter=order_N)]
        right_S = np.bincount(self.bin_N[place_M], graded.correct_N, minlength=num_strata)
        return np.asarray(right_S / np.maximum(np.bincount(self.bin_N[place_M], minlength=num_strata), 1))


def _trust_of(arm: Arm, seed: int) -> TrustFunction:
    # All uniform arms share one draw: they differ only in whose label is used, or in their quotas.
    return get_trust(arm.trust, derive(seed, "draw"))


def _difficulties(examples: pa.Table, domain: Domain) -> Floats:
    values = [attempt(domain.difficulty, example)[0] for example in examples.to_pylist()]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _rows(job: SelectJob, name: str, row_ids_n: Int64s) -> pa.Table:
    """The rows of an arm in rank order (schema ``schemas.SELECTION``)."""
    if not len(row_ids_n):
        return schemas.SELECTION.empty_table()
    arm, domain = ARMS[name], get_domain(job.domain)
    lineage = {
        "arm": name,
        "label_source": "gold" if arm.gold else "weak",
        "teacher": None if job.teacher is None else json.dumps(asdict(job.teacher)),
        "generation": job.generation,
    }
    trust = _trust_of(arm, job.seed)
    examples = io.take(job.pool, row_ids_n).to_pylist()
    columns = list(dict.fromkeys(["row_id", "completion", "label", *trust.features]))
    weak = io.take(job.labels, row_ids_n, columns).combine_chunks()
    gold = job.gold.taught(row_ids_n, examples, domain) if arm.gold else [None] * len(examples)
    trust_n = trust.score(weak.to_batches()[0])
    if not ((trust_n >= 0) & (trust_n <= 1)).all():
        raise CurationError(f"arm {name}: trust ranges from {trust_n.min()} to {trust_n.max()}, not within [0, 1]")
    rows = [
        lineage
        | {
            "row_id": example["row_id"],
            "rank": rank,
            "trust": float(trust),
            "prompt": domain.prompt(example),
            "completion": label["completion"] if right is None else right.completion,
            "label": label["label"] if right is None else right.label,
            "completion_source": "weak" if right is None else right.source,
        }
        for rank, (example, label, trust, right) in enumerate(
            zip(examples, weak.to_pylist(), trust_n, gold, strict=True)
        )
    ]
    return pa.Table.from_pylist(rows, schema=schemas.SELECTION)


def _write(rows: pa.Table, stem: Place) -> TableRef:
    """Write a selection as a Lance table, Parquet and JSONL; replaces what an interrupted run left there."""
    with staged(stem.with_suffix(".parquet")) as path:
        pq.write_table(rows, path)
    with staged(stem.with_suffix(".jsonl")) as path, path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows.to_pylist())
    return io.write(rows, str(stem.with_suffix(".lance")))
