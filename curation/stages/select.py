"""The select stage, which selects each arm's rows, all by one budget, and writes each selection as a table.

Only this stage, and the stages that find long rows and draw rollouts for it, read the audit table and the pool's
grades. They pass on plain numbers: ``selection`` never sees a gold label. Selections that used gold labels are marked
``oracle``. Unparsed rows stay in the paper's uniform draws (they are part of the teacher's output, and count as wrong).
Arms that rank skip them, because an unreadable label cannot be trusted; ``naive_parsed``, the control for this, skips
them too. All arms skip rows that are too long for the student, so each trains on n rows.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation import memory
from curation.arms import ARMS
from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.domains import Example, get_domain, get_preference_function
from curation.domains.class_counts import UnseenLabels, count_unseen
from curation.domains.given import Format
from curation.errors import BudgetError, CurationError
from curation.hashing import derive
from curation.json_types import Json
from curation.refs import ListDigest, ModelRef, TableRef
from curation.rundir.graph import Done, In, InEach, Stage
from curation.rundir.run import Task
from curation.stages.chooser import ChoiceInputs, Chooser, SelectJob, apply_budget_rule, require_measurable
from curation.stages.gold import GoldTexts, measure_weak_format
from curation.stages.pool_scores import LAST, ComputedBudget
from curation.stages.rows import PART_ROWS, read_sorted_ids
from curation.storage.paths import Place
from curation.tables import io, schemas
from curation.trust import get_trust

BLOCK_ROWS, BLOCK_BYTES = PART_ROWS << 3, 16 << 20
"""Maximum number of rows, and of their bytes (roughly), to read together; larger reads skip fewer bytes."""


@dataclass(frozen=True, kw_only=True)
class WrittenRows:
    """A table of selected rows."""

    table: TableRef
    num_rows: int
    digest: str
    """A digest of row ids and of the texts to train on: equal rows train equal students."""


@dataclass(frozen=True, kw_only=True)
class Selection(WrittenRows):
    """The selection of one arm."""

    arm: str
    threshold: float | None
    """The lowest raw score selected; None for uniform arms, and if rows without a score are selected."""
    oracle: bool
    """Whether the pool's gold labels were used: as labels, for the places of difficulty bins, or for the budget."""
    format: Format
    """The format of the arm's completions; for weak arms that of the pool."""
    completion_source: str
    """``weak``, or the source for gold arms (``curation.domains.given.GoldSource``)."""
    format_note: str | None
    median_characters: float | None
    """The median length of the completions, or None without a completion."""

    @property
    def words(self) -> str:
        """Description of label source, format, completion source and length, for a list of arms."""
        length = "" if self.median_characters is None else f", median {self.median_characters:,.0f} characters"
        label = "gold" if ARMS[self.arm].gold else "weak"
        if self.format == "label":
            return f"{self.arm}: {label} labels, of which students learn without completions"
        note = "" if self.format_note is None else f"; {self.format_note}"
        return f"{self.arm}: {label} labels, {self.format}s from {self.completion_source}{length}{note}"


class Select(Stage):
    """A stage that selects rows of the pool for every arm by one budget, and writes each selection."""

    class Made(NamedTuple):
        budget: Json
        arms: dict[str, Selection]
        rows_of: dict[str, TableRef | None]
        """The tables by arm, None for an arm that selected nothing and thus has no student."""
        unseen: UnseenLabels | None = None
        """Labels of the pool that no labelled row has, or None if all are seen, or labels are an open set."""

    choice: ChoiceInputs
    texts: In[dict[str, Any] | None]
    """The :class:`curation.stages.gold.GoldTexts` of gold arms as JSON, or None for bare answers."""
    teacher: In[ModelRef | None]
    generation: int
    revision: int = 3  # a certified cut counts questions

    def run(self, task: Task) -> Done:
        """Select each arm's rows, and report the selections."""
        texts = GoldTexts.from_json(self.texts)
        require_measurable(self.choice)
        job = SelectJob(**vars(self.choice), texts=texts, teacher=self.teacher, generation=self.generation)
        unseen = None if job.seen is None else count_unseen(job.labels, job.seen)
        unseen = unseen if unseen is not None and unseen.num_rows else None
        if unseen is not None:
            task.say(
                f"{unseen.num_rows:,} of {unseen.num_read:,} rows have a label that no labelled row has "
                f"({unseen.words}): arms that rank take them last"
            )
        budget, selections = select(job, task.directory)
        for selection in selections:
            task.say(selection.words)
        for name, division in job.divisions.items():
            for line in division.describe(budget, budget.divided.get(name)):
                task.say(line)
        if not budget.n:
            task.say(f"NOTHING IS SELECTED: {(budget.risk or {})['guarantee']}")
        made = self.Made(
            budget=budget.to_json(),
            arms={selection.arm: selection for selection in selections},
            rows_of={selection.arm: selection.table if selection.num_rows else None for selection in selections},
            unseen=unseen,
        )
        return Done(outputs=made, rows=sum(selection.num_rows for selection in selections))


def select(job: SelectJob, directory: Place) -> tuple[ComputedBudget, list[Selection]]:
    """Return the budget and each arm's selection, written to ``directory`` as ``<arm>.lance``."""
    budget = compute_budget(job)
    chooser, n = Chooser(job, budget), budget.n
    weak = measure_weak_format(job.pool, job.labels, job.domain, seed=derive(job.seed, "format"))
    by_gold = job.too_long is not None and io.count(job.too_long, filter="gold AND NOT weak") > 0
    selections = []
    for name in job.selection.arms:
        arm = ARMS[name]
        with _naming_arm(name, job):
            row_ids, threshold = chooser.take_rows(arm)
        memory.trim()
        rows, target = iter_rows(job, name, row_ids), directory / f"{name}.lance"
        written = write_rows(rows, schemas.SELECTION, target, ("completion", "row_id"))
        num_unread = chooser.num_unread(arm, written.table)
        source, num_rows = job.texts.source, written.num_rows
        notes = [] if not num_unread else [f"of {num_unread:,} of {n:,} rows no value could be read: they rank last"]
        form: Format = "label" if source == "label" else weak.format
        if arm.gold and source != "label":
            form = "answer" if source == "answer" else "rollout"
            if form == "answer" and weak.format == "rollout":
                notes.append("bare answers, where the weak arms train on rollouts (selection.gold_rollouts.source)")
            if num_rows < n:
                without = "that gold grades right" if source == "sample" else "in the dataset"
                notes.append(f"{n - num_rows:,} of {n:,} rows have no rollout {without}")
        has_threshold = arm.ranked and not num_unread and threshold is not None and threshold > LAST
        selections.append(
            Selection(
                arm=name,
                **vars(written),
                threshold=threshold if has_threshold else None,
                oracle=arm.oracle or budget.oracle or by_gold,
                format=form,
                completion_source=source if arm.gold or source == "label" else "weak",
                format_note="; ".join(notes) or None,
                median_characters=compute_median_length(written.table),
            )
        )
    return budget, selections


def compute_budget(job: SelectJob) -> ComputedBudget:
    """Return the budget with the one n that all arms can select; ``BudgetError`` if there is none.

    This n is at most the number of rows that the divisions leave to any arm.
    """
    budget = apply_budget_rule(job)
    if not budget.n:
        return budget
    values = {name: division.set(budget) for name, division in job.divisions.items()}
    budget = replace(budget, divided={name: value for name, value in values.items() if value is not None})
    if not any(job.divisions[name].leaves_fewer for name in budget.divided):
        return budget
    chooser, left = Chooser(job, budget), {}
    for name in job.selection.arms:
        with _naming_arm(name, job):
            left[name] = chooser.num_left(ARMS[name])
    if budget.is_cut:
        left[budget.reference] = chooser.num_left(ARMS[budget.reference], of_top=True)
    fewest = min(left, key=left.__getitem__)
    if left[fewest] == budget.n:
        return budget
    risk = budget.risk and {
        **budget.risk,
        "guarantee": "none for the rows that are selected, because "
        f"{' and '.join(f'selection.{name}' for name in budget.divided)} leaves out rows of frequent labels, and the "
        f"others may have more wrong labels; before it: {budget.risk['guarantee']}",
    }
    return replace(budget, n=left[fewest], asked=budget.n, limited_by=fewest, risk=risk)


def compute_median_length(selected: TableRef) -> float | None:
    """Return the median number of characters of the completions, read in streams; None without a completion."""
    counts = Counter[int]()
    for batch in io.open_table(selected).to_batches(columns=["completion"]):
        counts.update(pc.utf8_length(batch.column("completion")).drop_null().to_pylist())
    if not (total := counts.total()):
        return None
    lengths, numbers = zip(*sorted(counts.items()), strict=True)
    middle = np.searchsorted(np.cumsum(numbers), [(total - 1) // 2, total // 2], side="right")
    return float(np.mean(np.array(lengths)[middle]))


@contextmanager
def _naming_arm(name: str, job: SelectJob) -> Iterator[None]:
    """Name the arm, and the rows that it cannot take, in a ``BudgetError`` that is raised within the context."""
    try:
        yield
    except BudgetError as error:
        words = [
            f"{failed:,} rows are left out by {by}" for by, ref in job.left_out.items() if (failed := io.count(ref))
        ]
        if num := len(read_sorted_ids(job.too_long)):
            words.append(f"{num:,} rows are longer than student.max_length, which can be raised")
        if job.repeats is not None and (num := io.count(job.repeats)):
            words.append(f"{num:,} rows ask questions that others ask, and one of each may be selected")
        if ARMS[name].ranked and (num := io.count(job.labels, filter="label IS NULL")):
            words.append(f"{num:,} rows have no label, which `curate inspect` shows")
        raise BudgetError("; ".join([f"arm {name}: {error}", *words, "or drop the arm"])) from error


def iter_rows(job: SelectJob, name: str, row_ids: Iterable[Int64s]) -> Iterator[pa.Table]:
    """Yield the rows of an arm by rank (schema ``schemas.SELECTION``), at most ``PART_ROWS`` at a time."""
    arm, domain = ARMS[name], get_domain(job.domain)
    gold, trust = job.gold if arm.gold else None, get_trust(arm.trust, derive(job.seed, "draw"), unread_last=True)
    lineage = {
        "arm": name,
        "label_source": "gold" if arm.gold else "weak",
        "teacher": None if job.teacher is None else json.dumps(asdict(job.teacher)),
        "generation": job.generation,
        "completion_source": "weak",
    }
    for rank, examples, weak in _look_up(job, row_ids, ["completion", "label", *trust.features]):
        trust_M = trust.score(weak.to_batches()[0])
        if not ((trust_M >= 0) & (trust_M <= 1)).all():
            raise CurationError(f"arm {name}: trust ranges from {trust_M.min()} to {trust_M.max()}, not within [0, 1]")
        values: Json = {key: [value] * len(examples) for key, value in lineage.items()}
        values |= {key: weak[key] for key in ("row_id", "completion", "label")}
        values |= {"rank": np.arange(rank, rank + len(examples)), "trust": trust_M}
        values["prompt"] = [domain.prompt(example) for example in examples]
        if gold is not None:
            values |= gold.get_training_columns(weak["row_id"].to_numpy(), examples, domain)
        yield pa.table(values, schema=schemas.SELECTION)


def iter_regrouped(parts: Iterable[Int64s], num_rows: int) -> Iterator[Int64s]:
    """Yield the same ids in the same order, ``num_rows`` at a time; the last part may be smaller."""
    held: list[Int64s] = []
    for part in parts:
        held.append(part)
        if sum(map(len, held)) >= num_rows:
            ids_M = np.concatenate(held)
            stop = len(ids_M) - len(ids_M) % num_rows
            yield from (ids_M[start : start + num_rows] for start in range(0, stop, num_rows))
            held = [ids_M[stop:].copy()]
    if held and len(rest_M := np.concatenate(held)):
        yield rest_M


def _look_up(
    job: SelectJob, row_ids: Iterable[Int64s], columns: Sequence[str]
) -> Iterator[tuple[int, list[Example], pa.Table]]:
    """Yield the rank of the first of some rows, their examples, and these ``columns`` of their labels.

    Neither all rows nor all their ids are held: ids come in parts, and at most ``BLOCK_ROWS`` are looked up together.
    """
    columns = list(dict.fromkeys(["row_id", *columns]))
    find = io.make_offset_finder(job.pool), io.make_offset_finder(job.labels)
    rank, num_rows = 0, PART_ROWS
    for ids_M in iter_regrouped(row_ids, BLOCK_ROWS):
        places_2M = np.stack([offsets(ids_M) for offsets in find])
        start = 0
        while start < len(ids_M):
            in_pool_M, in_labels_M = places_2M[:, start : start + num_rows]
            examples = io.take_offsets(job.pool, in_pool_M)
            weak = io.take_offsets(job.labels, in_labels_M, columns)
            for low in range(0, len(in_pool_M), PART_ROWS):
                of_part = weak.slice(low, PART_ROWS).combine_chunks()
                yield rank + start + low, examples.slice(low, PART_ROWS).to_pylist(), of_part
            start += len(in_pool_M)
            num_parts = BLOCK_BYTES * len(in_pool_M) // (examples.nbytes + weak.nbytes) // PART_ROWS
            num_rows = PART_ROWS * min(max(num_parts, 1), BLOCK_ROWS // PART_ROWS)
        rank += len(ids_M)


def write_rows(parts: Iterable[pa.Table], schema: pa.Schema, target: Place, digested: Sequence[str]) -> WrittenRows:
    """Write rows to a table as they come; the digest covers the ``digested`` columns."""
    digest = ListDigest()

    def iter_parts() -> Iterator[pa.Table]:
        for part in parts:
            digest.extend(part.select(digested).to_pylist())
            yield part

    table = io.write_parts(iter_parts(), schema, str(target))
    return WrittenRows(table=table, num_rows=digest.num_items, digest=digest.hexdigest)


class WritePreferences(Stage):
    """A stage that writes the rows that every arm selected again, as ``prompt``, ``chosen`` and ``rejected``."""

    class Made(NamedTuple):
        arms: dict[str, WrittenRows]
        """The pairs of the arms (schema ``schemas.PREFERENCES``)."""
        rows_of: dict[str, TableRef | None]
        """The tables by arm, None for an arm that selected nothing and thus has no student."""

    selected: InEach[TableRef]
    pool: In[TableRef]
    domain: DomainConfig

    def run(self, task: Task) -> Done:
        """Look up the answers, and write each arm's table."""
        digested = ("chosen", "prompt", "rejected", "row_id")
        found = {
            arm: write_rows(self._iter_parts(table), schemas.PREFERENCES, task.directory / f"{arm}.lance", digested)
            for arm, table in self.selected.items()
        }
        rows_of = {arm: rows.table if rows.num_rows else None for arm, rows in found.items()}
        return Done(outputs=self.Made(arms=found, rows_of=rows_of), rows=sum(rows.num_rows for rows in found.values()))

    def _iter_parts(self, selection: TableRef) -> Iterator[pa.Table]:
        """Yield the pairs of a selection by rank, without rows that have no label and thus no preference."""
        domain, examples = get_domain(self.domain), io.Lookup(self.pool)
        preference = get_preference_function(domain)
        assert preference is not None, "described for pairs alone"
        for batch in io.open_table(selection).to_batches(batch_size=PART_ROWS, filter="label IS NOT NULL"):
            rows = batch.cast(schemas.SELECTION)
            found = examples.take(rows.column("row_id").to_numpy(), list(domain.columns.names)).to_pylist()
            labels = rows.column("label").to_pylist()
            pairs = [preference(label, example) for label, example in zip(labels, found, strict=True)]
            texts = dict(zip(("prompt", "chosen", "rejected"), map(list, zip(*pairs, strict=True)), strict=True))
            columns = dict(zip(rows.schema.names, rows.columns, strict=True))
            yield pa.table({**columns, **texts}, schema=schemas.PREFERENCES)
