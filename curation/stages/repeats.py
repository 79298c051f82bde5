"""Detection of pool rows that ask the same question as another row, so that a selection takes only one of them.

Two rows ask the same question if their text and set of options are equal once the domain has normalised them
(``Domain.identity``); a row that it cannot identify is a question of its own. Ray tasks hash the questions, 16 bytes a
row in Ray's object store, and others sort them by bucket; the driver sees only repeated rows.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.domains import get_domain
from curation.domains.grading import hash_questions
from curation.heavy import ray
from curation.refs import TableRef
from curation.rundir.graph import Done, In, Stage
from curation.rundir.run import Task
from curation.stages.overlap import iter_fragment_groups, iter_healthy_rows
from curation.tables import io, schemas
from curation.tasks import make_driver_error
from curation.telemetry.standing import Standing

BUCKET_ROWS = 1 << 25
"""The number of pool rows among which one task finds repetitions, which takes 512 MiB."""


@dataclass(frozen=True, kw_only=True)
class RepeatCounts:
    """The numbers of usable rows of the pool, of rows with a repeated question, and of these questions."""

    num_pool: int
    num_rows: int
    num_questions: int


class FindRepeats(Stage):
    """A stage that finds the pool rows whose question another pool row asks too."""

    class Made(NamedTuple):
        counts: RepeatCounts
        repeats: TableRef | None

    pool: In[TableRef]
    domain: DomainConfig

    def run(self, task: Task) -> Done:
        """Hash the pool's questions, and write the rows whose question is asked more than once, ascending by id."""
        total, num_pool = io.count(self.pool), 0
        num_buckets = 1 + total // BUCKET_ROWS
        hashing: Any = ray.remote(_hash_questions).options(num_cpus=1, num_returns=1 + num_buckets)
        finding = ray.remote(_find_repeated).options(num_cpus=1)
        groups = iter_fragment_groups(self.pool)
        try:
            with task.progress() as update:
                parts = [hashing.remote(self.pool, self.domain, group, num_buckets) for group in groups]
                for part in parts:
                    num_pool += ray.get(part[0])
                    update(Standing(rows=num_pool, total=total))
                found = ray.get([finding.remote(*(part[1 + at] for part in parts)) for at in range(num_buckets)])
        except ray.exceptions.RayError as error:
            raise make_driver_error(error, task.name) from error
        row_id_R, question_R = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        num_questions = len(np.unique(question_R))
        counts = RepeatCounts(num_pool=num_pool, num_rows=len(row_id_R), num_questions=num_questions)
        if not num_questions:
            return Done(outputs=self.Made(counts=counts, repeats=None), rows=num_pool)
        task.say(
            f"{counts.num_rows:,} rows of the pool ask {num_questions:,} questions more than once; an arm selects the "
            "best row of each"
        )
        table = pa.table([row_id_R, question_R], schema=schemas.REPEATS).sort_by("row_id")
        made = self.Made(counts=counts, repeats=io.write(table, str(task.directory / "repeats.lance")))
        return Done(outputs=made, rows=num_pool)


def _hash_questions(
    ref: TableRef, config: DomainConfig, fragments: tuple[int, ...], num_buckets: int
) -> tuple[Any, ...]:
    """Return the number of rows and, by bucket, ids and questions of rows with a question, each int64 [2, N]."""
    domain, num_rows, pieces = get_domain(config), 0, [np.zeros((2, 0), dtype=np.int64)]
    for rows in iter_healthy_rows(ref, domain.columns.names, fragments):
        num_rows += len(rows)
        found = zip(rows, hash_questions(domain, rows), strict=True)
        pairs = [(row["row_id"], question) for row, question in found if question is not None]
        pieces.append(np.array(pairs, dtype=np.int64).reshape(-1, 2).T)
    pair_2N = np.concatenate(pieces, axis=1)
    bucket_N = pair_2N[1].astype(np.uint64) % np.uint64(num_buckets)
    return num_rows, *(pair_2N[:, bucket_N == bucket] for bucket in range(num_buckets))


def _find_repeated(*pairs_2N: "np.ndarray[Any, np.dtype[np.int64]]") -> tuple[Int64s, Int64s]:
    row_id_N, question_N = np.concatenate([np.zeros((2, 0), dtype=np.int64), *pairs_2N], axis=1)
    _, place_N, size_Q = np.unique(question_N, return_inverse=True, return_counts=True)
    again_N = size_Q[place_N] > 1
    return row_id_N[again_N], question_N[again_N]
