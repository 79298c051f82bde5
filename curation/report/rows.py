"""The rows behind the report: scores with correctness, difficulties, and an arm's order over the whole pool."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curation.arms import ARMS, TRUST, Configured, Fitted, free_of, is_free
from curation.arrays import Bools, Float64s, Int64s
from curation.domains import Domain, attempt
from curation.domains.grading import read_grades
from curation.errors import get_error_kind
from curation.hashing import derive, hash_unit
from curation.json_types import Json
from curation.metrics import CONFIDENCE, Estimate, compute_proportion, compute_share_right
from curation.refs import TableRef
from curation.tables import io, scans
from curation.trust import Scores, get_trust
from curation.trust.parts import find_first_of_each, find_independent

DOMAIN_ROWS = 8192
"""Number of rows that are Python objects at a time."""
LOWEST = -1e30
"""Raw score of rows that have none: below every real score, and finite, because metrics need finite scores."""
UNPARSED = "unparsed rows beside the held-out ones"
"""Purpose of the seed that draws unparsed rows in :meth:`Judged.held_out`."""


@dataclass(frozen=True, kw_only=True)
class FunctionScores:
    """Scores of a trust function: ``raw_N`` ranks rows, ``trust_N`` lies in [0, 1]."""

    raw_N: Float64s
    trust_N: Float64s


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Rows labelled without error whose gold label is known, ascending by row id, with scores by trust function."""

    row_ids_N: Int64s
    correct_N: Bools
    parsed_N: Bools
    scores: dict[str, FunctionScores]
    weight_N: Int64s | None = None
    """Number of rows that each entry represents, whose ``row_ids_N`` is then only its number; None if always 1."""
    question_N: Int64s | None = None
    """Question that each row asks (``curation.domains.grading.Graded``), or None if all differ."""
    cluster_N: Int64s | None = None
    """Cluster of each row (``curation.domains.grading.Graded``), or None if rows are independent."""

    def __len__(self) -> int:
        return len(self.row_ids_N) if self.weight_N is None else int(self.weight_N.sum())

    @property
    def num_right(self) -> int:
        """The number of right labels."""
        return int(self.correct_N.sum() if self.weight_N is None else self.weight_N[self.correct_N].sum())

    def subset(self, keep_N: Bools) -> "Judged":
        """Return the rows that ``keep_N`` marks."""
        return Judged(
            row_ids_N=self.row_ids_N[keep_N],
            correct_N=self.correct_N[keep_N],
            parsed_N=self.parsed_N[keep_N],
            scores={
                name: FunctionScores(raw_N=s.raw_N[keep_N], trust_N=s.trust_N[keep_N])
                for name, s in self.scores.items()
            },
            weight_N=None if self.weight_N is None else self.weight_N[keep_N],
            question_N=None if self.question_N is None else self.question_N[keep_N],
            cluster_N=None if self.cluster_N is None else self.cluster_N[keep_N],
        )

    def share_right(self, *, confidence: float = CONFIDENCE) -> Estimate:
        """Return the share of right labels; NaN for no rows."""
        if self.weight_N is not None:
            return compute_proportion(self.num_right, len(self), confidence=confidence)
        return compute_share_right(self.correct_N, self.cluster_N, confidence=confidence)

    @property
    def distinct(self) -> "Judged":
        """The first row of each question, by row id."""
        if self.question_N is None:
            return self
        return self.subset(find_first_of_each(self.question_N))

    @property
    def one_a_cluster(self) -> "Judged":
        """One row of each cluster, so that rows count as independent draws; all rows if there are no clusters."""
        if self.cluster_N is None:
            return self
        assert self.question_N is not None, "grades have both"
        return self.subset(find_independent(self.question_N, self.row_ids_N, self.cluster_N))

    def held_out(self, functions: Iterable[str], seed: int) -> "Judged":
        """Return one row per question, among labelled rows that no fit of ``functions`` has seen.

        Scored labels of the source have a fitted function's score only if it is out-of-sample: cross-fitted, or for a
        row that the fit did not read. A parsed row without such a score was seen by a fit, or repeats a question;
        functions that are not fitted exclude no row. A fit never reads unparsed rows. To keep their proportion, a
        seeded draw takes the same share of them as the share of parsed questions that is held out.
        """
        may_N = np.ones(len(self.row_ids_N), dtype=np.bool_)
        for name in functions:
            if isinstance(TRUST[name], Fitted | Configured) and name in self.scores:
                may_N &= self.scores[name].raw_N > LOWEST
        known = self.readable.distinct
        parsed, others = self.subset(self.parsed_N & may_N).distinct, self.subset(~self.parsed_N).distinct
        if known.question_N is not None and others.question_N is not None:
            others = others.subset(~np.isin(others.question_N, known.question_N))
        drawn_N = hash_unit(others.row_ids_N, derive(seed, UNPARSED)) < len(parsed) / max(len(known), 1)
        return self.subset(np.isin(self.row_ids_N, np.concatenate([parsed.row_ids_N, others.row_ids_N[drawn_N]])))

    @property
    def readable(self) -> "Judged":
        """The rows whose label could be read; only these can be selected by trust."""
        return self.subset(self.parsed_N)

    @property
    def unparsed_last(self) -> "Judged":
        """All rows, with the lowest score and trust 0 for unparsed ones, as in selection."""
        scores = {
            name: FunctionScores(
                raw_N=np.where(self.parsed_N, s.raw_N, LOWEST), trust_N=np.where(self.parsed_N, s.trust_N, 0.0)
            )
            for name, s in self.scores.items()
        }
        return replace(self, scores=scores)


def free_signals(labels: TableRef) -> tuple[str, ...]:
    """Return the names of the free signals whose columns a labels table has."""
    return free_of(io.open_table(labels).schema.names)


def judge(labels: TableRef, grades: TableRef, functions: Iterable[str]) -> Judged:
    """Return the graded rows of scored labels, with the scores of trust functions whose columns the labels have."""
    graded = read_grades(grades)
    present = io.open_table(labels).schema.names
    read = {name: trust for name in functions if set((trust := get_trust(name, 0)).features) <= set(present)}
    columns = dict.fromkeys(["row_id", "label", *(feature for trust in read.values() for feature in trust.features)])
    table = io.read(labels, columns=list(columns), filter=io.make_answered_filter(labels))
    batch = pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)
    places_N = locate_rows(table["row_id"].to_numpy(), graded.row_ids_N)
    scores = {}
    for name, trust in read.items():
        raw_N = trust.raw_score(batch)
        trust_N = np.nan_to_num(trust.score(batch).astype(np.float64), nan=0.0)[places_N]
        scores[name] = FunctionScores(raw_N=fill_scores(raw_N)[places_N], trust_N=trust_N)
    return Judged(
        row_ids_N=graded.row_ids_N,
        correct_N=graded.correct_N,
        parsed_N=table["label"].is_valid().to_numpy()[places_N],
        scores=scores,
        question_N=graded.question_N,
        cluster_N=graded.cluster_N,
    )


def without_constant(judged: Judged, arms: Collection[str]) -> Judged:
    """Drop free signals that are equal, or null, on all parsed rows, unless they are among ``arms``."""
    raws = {name: score.raw_N[judged.parsed_N] for name, score in judged.scores.items()}
    scores = {
        name: judged.scores[name]
        for name, raw_P in raws.items()
        if not is_free(name) or name in arms or len(np.unique(raw_P[raw_P > LOWEST])) > 1
    }
    return replace(judged, scores=scores)


def count_graded(grades: Sequence[TableRef]) -> Json:
    """Count graded rows, right rows, rows right by the judge alone, and rows the rule could not decide, by kind."""
    filters = {"rows": None, "right": "correct = true", "judged": "judged = true"}
    counts = {name: sum(io.count(ref, filter=filter) for ref in grades) for name, filter in filters.items()}
    kinds: Counter[str] = Counter()
    for ref in grades:
        for batch in io.open_table(ref).to_batches(columns=["problem"], filter="problem IS NOT NULL"):
            kinds.update(map(get_error_kind, batch.column("problem").to_pylist()))
    return {**counts, "problems": dict(kinds)}


def locate_rows(ids_N: Int64s, wanted_M: Int64s) -> Int64s:
    """Return the positions of the ids ``wanted_M`` in ``ids_N``, int64 [at most M]; missing ids are left out."""
    if not len(ids_N):
        return np.zeros(0, dtype=np.int64)
    order_N = np.argsort(ids_N, kind="stable")
    slots_M = np.minimum(np.searchsorted(ids_N, wanted_M, sorter=order_N), len(ids_N) - 1)
    places_M = order_N[slots_M]
    found: Int64s = places_M[ids_N[places_M] == wanted_M]
    return found


def rank_for_arm(judged: Judged, arm: str, selected_M: Int64s, seed: int) -> Int64s:
    """Return all judged rows in an arm's order of preference, as positions, int64 [N].

    First come the rows that the arm selected, by rank, then the others by its raw score, with unparsed ones last, since
    the select stage skips them. A seeded hash of the row id orders ties, and rows of arms without a ranking or score.
    """
    first = locate_rows(judged.row_ids_N, selected_M)
    rest_N = np.ones(len(judged), dtype=np.bool_)
    rest_N[first] = False
    rest = np.flatnonzero(rest_N)
    order_N: Int64s = np.concatenate([first, rest[_rank_rows(judged.subset(rest_N), arm, seed)]])
    return order_N


def _rank_rows(judged: Judged, arm: str, seed: int) -> Int64s:
    draw_N = hash_unit(judged.row_ids_N, seed)
    score = judged.scores.get(ARMS[arm].trust) if ARMS[arm].ranked else None
    keys: list[npt.NDArray[Any]] = [draw_N, *([] if score is None else [-score.raw_N])]
    if ARMS[arm].parsed and (score is not None or not ARMS[arm].ranked):
        keys.append(~judged.parsed_N)
    ranking: Int64s = np.lexsort(keys)
    return ranking


def read_selected_rows(selection: TableRef) -> pa.Table:
    """Return an arm's rows by rank, with columns ``row_id``, ``rank``, ``trust`` and ``is_parsed``."""
    columns = {"row_id": "row_id", "rank": "rank", "trust": "trust", "is_parsed": "label IS NOT NULL"}
    return io.open_table(selection).to_table(columns=columns).sort_by("rank")


def read_difficulties(
    examples: TableRef, domain: Domain, keep: Callable[[Int64s], Bools] | None = None
) -> tuple[Int64s, Float64s]:
    """Return ids and difficulties, NaN if unknown, of the rows without error, or of those whose ids ``keep`` marks."""
    ids: list[npt.NDArray[Any]] = [np.zeros(0, dtype=np.int64)]
    values: list[npt.NDArray[Any]] = [np.zeros(0)]
    columns = {name: f"`{name}`" for name in ("row_id", *domain.columns.names)}
    for batch in scans.iter_table_batches(examples, columns, "error IS NULL", num_rows=DOMAIN_ROWS):
        if keep is not None:
            batch = batch.filter(pa.array(keep(batch.column("row_id").to_numpy())))
        ids.append(batch.column("row_id").to_numpy().copy())
        found = [attempt(domain.difficulty, row)[0] for row in batch.to_pylist()]
        values.append(np.array(found, dtype=np.float64))
    return np.concatenate(ids), np.concatenate(values)


def fill_scores(raw_N: Scores) -> Float64s:
    """Return raw scores as float64, with ``LOWEST`` for rows without a score."""
    filled_N: Float64s = np.nan_to_num(raw_N.astype(np.float64), nan=LOWEST, posinf=-LOWEST, neginf=LOWEST)
    return filled_N
