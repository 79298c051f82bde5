"""The grade stage: grades the weak labels of a labelled split by the domain's own rule, in parallel tasks."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa

from curation.config import DomainConfig
from curation.domains import Domain, get_domain
from curation.domains.grading import grade_pairs
from curation.hashing import Int64s
from curation.refs import TableRef
from curation.tables import io, schemas
from curation.tasks import in_tasks
from curation.telemetry.standing import Standing, Update

PAIRS = 2_000
"""The number of pairs of a weak and a gold label per task."""


def grade(
    labels: TableRef,
    gold: TableRef,
    domain: DomainConfig,
    uri: str,
    *,
    progress: Update | None = None,
) -> TableRef:
    """The table of grades (schema ``schemas.GRADES``) of rows that were labelled without error and have a gold label.

    An interrupted stage starts again: nothing here costs a model's pass.
    """
    total = io.count(labels, filter=io.answered(labels))
    parts = [schemas.GRADES.empty_table()]
    num_done = 0
    for graded in in_tasks(_grade, ((*pairs, domain) for pairs in _pairs(labels, gold))):
        parts.append(graded)
        num_done += graded.num_rows
        if progress is not None:
            progress(Standing(rows=num_done, total=total))
    return io.write(pa.concat_tables(parts).sort_by("row_id"), uri)


def overrule(grades: TableRef, verdicts: TableRef, uri: str) -> TableRef:
    """The grades, corrected where a judge calls a label right (``verdicts``: schema ``schemas.SIGNAL``, 1 is right)."""
    table = io.read(grades)
    accepted = io.read(verdicts, columns=["row_id"], filter="value > 0.5")["row_id"].to_numpy()
    correct_N = table["correct"].to_numpy()
    judged_N = np.isin(table["row_id"].to_numpy(), accepted) & ~correct_N
    columns = [
        table["row_id"],
        pa.chunked_array([correct_N | judged_N]),
        pa.chunked_array([judged_N]),
        table["problem"],
    ]
    return io.write(pa.table(columns, schema=schemas.GRADES), uri)


def _pairs(labels: TableRef, gold: TableRef) -> Iterator[tuple[Int64s, pa.Array, pa.Array]]:
    """Row ids, weak and gold labels of rows that have both, at most ``PAIRS`` at a time."""
    known = io.read(gold, columns=["row_id", "gold"], filter="gold IS NOT NULL").sort_by("row_id").combine_chunks()
    known_M = known["row_id"].to_numpy()
    healthy = io.answered(labels)
    scanner = io.open_table(labels).scanner(columns=["row_id", "label"], filter=healthy, batch_size=PAIRS)
    for batch in scanner.to_batches():
        ids_N = batch.column("row_id").to_numpy()
        place_N = np.searchsorted(known_M, ids_N)
        hit_N = place_N < np.searchsorted(known_M, ids_N, side="right")
        if hit_N.any():
            right = known["gold"].take(pa.array(place_N[hit_N])).combine_chunks()
            yield ids_N[hit_N], batch.column("label").filter(pa.array(hit_N)), right


def _grade(ids_N: Int64s, weak: pa.Array, right: pa.Array, domain: DomainConfig) -> pa.Table:
    correct_N, problems = grade_pairs(weak, right, _domain(domain.model_dump_json()))
    columns = [pa.array(ids_N), pa.array(correct_N), pa.array(np.zeros(len(ids_N), dtype=np.bool_))]
    return pa.table([*columns, pa.array(problems, pa.string())], schema=schemas.GRADES)


@lru_cache(maxsize=2)
def _domain(config: str) -> Domain:
    """One domain per worker process, not per task, because it may have its own helper process."""
    return get_domain(DomainConfig.model_validate_json(config))
