"""The select stage: one selection an arm, all under one budget, written as tables and exported for training.

Of the stages only this one reads the audit table, and it passes plain numbers on: ``selection`` never sees a gold
label. What used gold labels is stamped ``oracle``. Unparsed rows stay in the uniform draws (they are part of what the
teacher gives, and count as wrong); arms that rank leave them out, since a label that cannot be read cannot be trusted.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curation import store, tables
from curation.config import ArmName, SelectionConfig
from curation.domains import get_domain
from curation.domains.grading import grade
from curation.hashing import Int64s, derive
from curation.refs import ModelRef, TableRef, fingerprint
from curation.selection import Candidates
from curation.selection.budget import resolve
from curation.selection.top_n import TopN
from curation.trust import Scores
from curation.trust.confidence import InternalConfidence
from curation.trust.naive import Naive


@dataclass(frozen=True, kw_only=True)
class SelectJob:
    """What all arms of a generation share."""

    pool: TableRef
    labels: TableRef
    """With ``raw_score`` and ``trust``."""
    audit: TableRef | None
    domain: str
    selection: SelectionConfig
    teacher: ModelRef | None
    generation: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What one arm selected."""

    arm: str
    table: TableRef
    parquet: str
    jsonl: str
    num_rows: int
    digest: str
    """Of what a student would learn, row ids and completions: equal selections train equal students."""
    threshold: float | None
    """The lowest raw score selected; none for uniform arms."""
    oracle: bool
    """Gold labels of the pool went into it: as labels, or into the budget."""


def select(job: SelectJob, directory: Path) -> tuple[int, list[Selection]]:
    """The budget and the selection of every arm, written to ``directory`` as ``<arm>.{lance,parquet,jsonl}``.

    Raises:
        BudgetError: an arm has fewer candidates than the budget.
    """
    budget = job.selection.budget
    n = resolve(budget, _num_right(job) if budget.oracle else None)
    labels = _batch(store.read(job.labels, columns=_COLUMNS, filter="error IS NULL"))
    selections = []
    for name in job.selection.arms:
        arm = _ARMS[name]
        cut = TopN().cut(_candidates(arm, labels, job), n, derive(job.seed, "ties"))
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
                oracle=arm.gold or budget.oracle,
            )
        )
    return n, selections


def adaptation_rows(examples: TableRef, domain_name: str, directory: Path) -> TableRef:
    """All healthy rows of a labelled split with their gold labels, written as a selection named ``adapt``."""
    domain = get_domain(domain_name)
    rows = [
        {
            "row_id": example["row_id"],
            "arm": "adapt",
            "rank": rank,
            "prompt": domain.prompt(example),
            "completion": domain.answer(example["gold"]),
            "label": example["gold"],
            "label_source": "gold",
            "generation": 0,
        }
        for rank, example in enumerate(store.read(examples, filter="error IS NULL").to_pylist())
    ]
    return _write(pa.Table.from_pylist(rows, schema=tables.SELECTION), directory / "adapt")


def _num_right(job: SelectJob) -> int | None:
    if job.audit is None:
        return None
    return int(grade(job.labels, job.audit, get_domain(job.domain)).correct_N.sum())


class _OnRecord:
    """The scores that the score stage wrote beside the labels, as a trust function."""

    name = "neural"
    features = ("raw_score", "trust")

    def raw_score(self, labels: pa.RecordBatch) -> Scores:
        return _floats(labels, "raw_score")

    def score(self, labels: pa.RecordBatch) -> Scores:
        return _floats(labels, "trust")


@dataclass(frozen=True, kw_only=True)
class _Arm:
    """One way to choose rows: a trust function (made from a seed), whether it ranks, and whose label is used."""

    function: Callable[[int], Any]
    ranked: bool
    """A uniform draw takes any row; an arm that ranks takes none whose label could not be read."""
    gold: bool = False


def _draw(seed: int) -> Naive:
    # The two uniform arms share one draw: they differ in whose label is used and in nothing else.
    return Naive(derive(seed, "draw"))


_ARMS: Mapping[ArmName, _Arm] = {
    "naive": _Arm(function=_draw, ranked=False),
    "ground_truth": _Arm(function=_draw, ranked=False, gold=True),
    "internal_confidence": _Arm(function=lambda seed: InternalConfidence(), ranked=True),
    "neural": _Arm(function=lambda seed: _OnRecord(), ranked=True),
}
_COLUMNS = ("row_id", "completion", "label", "mean_logprob", "raw_score", "trust")


def _candidates(arm: _Arm, labels: pa.RecordBatch, job: SelectJob) -> Candidates:
    row_ids_N = labels.column("row_id").to_numpy()
    raw_N = arm.function(job.seed).raw_score(labels)
    if arm.ranked:
        parsed_N = labels.column("label").is_valid().to_numpy(zero_copy_only=False)
        raw_N = np.where(parsed_N, raw_N, np.float32(np.nan))
    if arm.gold and job.audit is not None:
        audit = store.read(job.audit, columns=["row_id"], filter="gold IS NOT NULL")["row_id"].to_numpy()
        raw_N = np.where(np.isin(row_ids_N, audit), raw_N, np.float32(np.nan))
    return Candidates(row_ids_N=row_ids_N, raw_score_N=raw_N)


def _batch(table: pa.Table) -> pa.RecordBatch:
    """A table as one batch, which an empty one has, too."""
    arrays = [column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


def _floats(labels: pa.RecordBatch, column: str) -> Scores:
    values_N: Scores = labels.column(column).to_numpy(zero_copy_only=False).astype(np.float32)
    return values_N


def _rows(job: SelectJob, name: ArmName, row_ids_n: Int64s) -> pa.Table:
    """The rows of an arm in rank order (schema ``tables.SELECTION``)."""
    arm, domain = _ARMS[name], get_domain(job.domain)
    lineage = {
        "arm": name,
        "label_source": "gold" if arm.gold else "weak",
        "teacher": None if job.teacher is None else json.dumps(asdict(job.teacher)),
        "generation": job.generation,
    }
    examples = store.take(job.pool, row_ids_n).to_pylist()
    weak = _batch(store.take(job.labels, row_ids_n, _COLUMNS))
    gold: list[str | None] = [None] * len(examples)
    if arm.gold and job.audit is not None:
        gold = store.take(job.audit, row_ids_n, ["gold"])["gold"].to_pylist()
    trust_n = arm.function(job.seed).score(weak)
    rows = [
        lineage
        | {
            "row_id": example["row_id"],
            "rank": rank,
            "trust": float(trust),
            "prompt": domain.prompt(example),
            "completion": label["completion"] if right is None else domain.answer(right),
            "label": label["label"] if right is None else right,
        }
        for rank, (example, label, trust, right) in enumerate(
            zip(examples, weak.to_pylist(), trust_n, gold, strict=True)
        )
    ]
    return pa.Table.from_pylist(rows, schema=tables.SELECTION)


def _write(rows: pa.Table, stem: Path) -> TableRef:
    """Write a selection as a Lance table, Parquet and JSONL; replaces what a run that was cut off left there."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, stem.with_suffix(".parquet"))
    with stem.with_suffix(".jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows.to_pylist())
    uri = str(stem.with_suffix(".lance"))
    mode = "overwrite" if Path(uri).exists() else "create"
    return TableRef(uri=uri, version=lance.write_dataset(rows, uri, mode=mode).version)
