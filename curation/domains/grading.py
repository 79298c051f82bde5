"""Grading of weak labels by the domain's own rule, and reading of the table of grades."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.arrays import Bools, Int64s
from curation.domains import Domain, Example, attempt
from curation.errors import RowError, UserError
from curation.escaping import format_error
from curation.refs import TableRef
from curation.tables import io, scans
from curation.tables.schemas import CLUSTER


@dataclass(frozen=True, kw_only=True)
class Graded:
    """Rows that were labelled without error and have a gold label, ascending by row id."""

    row_ids_N: Int64s
    correct_N: Bools
    """Whether each label is right; unparsed labels are wrong."""
    question_N: Int64s
    """A number shared by rows that ask the same question; the row's id if the question is unknown."""
    cluster_N: Int64s | None = None
    """The cluster of each row, or its question if it is its own cluster; None without ``splits.group``."""

    def subset(self, keep_N: Bools | Int64s) -> "Graded":
        """Return the rows for which ``keep_N`` is true, or at these places."""
        return Graded(
            row_ids_N=self.row_ids_N[keep_N],
            correct_N=self.correct_N[keep_N],
            question_N=self.question_N[keep_N],
            cluster_N=None if self.cluster_N is None else self.cluster_N[keep_N],
        )

    @property
    def unit_N(self) -> Int64s:
        """The units that no fold and no part of a fit divides: clusters of rows or, without any, questions."""
        return self.question_N if self.cluster_N is None else self.cluster_N


def read_grades(grades: TableRef) -> Graded:
    """Return the rows of a grades table (schema ``schemas.GRADES``)."""
    return _make_graded(io.read(grades, columns=_list_columns(grades)))


def read_grades_among(grades: TableRef, ids_n: Int64s) -> Graded:
    """Return the graded rows among ascending ids, like :func:`read_grades`, reading the table in parts."""
    found = []
    for batch in scans.iter_table_batches(grades, {name: name for name in _list_columns(grades)}, None):
        ids_B = batch.column("row_id").to_numpy()
        place_B = np.searchsorted(ids_n, ids_B)
        is_among_B = np.append(ids_n, 0)[place_B] == ids_B
        found.append(batch.filter(pa.array(is_among_B & (place_B < len(ids_n)))))
    return _make_graded(pa.Table.from_batches(found) if found else io.read(grades, columns=_list_columns(grades)))


def _list_columns(grades: TableRef) -> list[str]:
    names = io.open_table(grades).schema.names
    return ["row_id", "correct", *(name for name in ("question", CLUSTER.name) if name in names)]


def _make_graded(table: pa.Table) -> Graded:
    question = pc.coalesce(table["question"] if "question" in table.column_names else table["row_id"], table["row_id"])
    clustered = CLUSTER.name in table.column_names
    return Graded(
        row_ids_N=table["row_id"].to_numpy(),
        correct_N=table["correct"].to_numpy(zero_copy_only=False).astype(np.bool_),
        question_N=question.to_numpy(),
        cluster_N=pc.coalesce(table[CLUSTER.name], question).to_numpy() if clustered else None,
    )


def grade_pairs(
    labels: pa.Array, golds: pa.Array, domain: Domain, examples: Sequence[Example] = ()
) -> tuple[Bools, list[str | None]]:
    """Return whether each weak label is right, bool [N], and why the domain could not decide; pass on ``UserError``."""
    verdicts = check_labels(domain, labels.to_pylist(), golds.to_pylist(), examples)
    problems = [format_error(verdict) if isinstance(verdict, RowError) else None for verdict in verdicts]
    return np.array([verdict is True for verdict in verdicts], dtype=np.bool_), problems


def check_labels(
    domain: Domain, labels: Sequence[str | None], golds: Sequence[str], examples: Sequence[Example]
) -> list[bool | RowError]:
    """Return a verdict for each row, by the domain's ``check``, which may be users' code; pass on its ``UserError``."""
    try:
        verdicts = domain.check(labels, golds, examples)
        found = [verdict if isinstance(verdict, RowError) else bool(verdict) for verdict in verdicts]
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        return [RowError(f"domain_failed: {type(error).__name__}: {format_error(error)}")] * len(labels)
    if len(found) != len(labels):
        return [RowError(f"domain_failed: check gave {len(found)} verdicts for {len(labels)} rows")] * len(labels)
    return found


def hash_questions(domain: Domain, examples: list[Example]) -> list[int | None]:
    """Return a 64-bit hash of each row's question; ``None`` where the domain cannot say what identifies it.

    It is the hash of the question's text and its set of options, in any order.
    """

    def hash_one(example: Example) -> int:
        text, parts = domain.identity(example)
        content = "\n".join([domain.name, str(text), *sorted({str(part) for part in parts})]).encode()
        return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)

    return [attempt(hash_one, example)[0] for example in examples]
