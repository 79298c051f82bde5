"""The graded rows behind the report: scores with correctness, and an arm's order over the whole pool.

Of a pool of more than ``MOST_GRADED`` labelled rows, a uniform sample is measured. Only the share of right labels among
an arm's rows is always that of all of them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from curation.arms import ARMS, TRUST, Configured, Fitted, is_free
from curation.arrays import Bools, Float64s, Int64s
from curation.domains.grading import Graded, read_grades_among
from curation.errors import get_error_kind
from curation.hashing import derive, hash_unit
from curation.json_types import Json
from curation.metrics import CONFIDENCE, Estimate, auc, compute_share_right, compute_top_purities
from curation.refs import TableRef
from curation.tables import io, scans
from curation.trust import Scores, get_trust
from curation.trust.parts import find_first_of_each

MOST_GRADED, SAMPLE = 1 << 20, "report sample"
"""Maximum number of labelled rows of a graded pool to measure, and the purpose of the seed that draws a sample."""
MOST_DRAWN = 2_000
"""Maximum number of rows that :func:`draw_rows` reads."""
LOWEST = -1e30
"""Raw score of rows that have none: below every real score, and finite, because metrics need finite scores."""
UNPARSED = "unparsed rows beside the held-out ones"
"""Purpose of the seed that draws unparsed rows in :meth:`GradedRows.held_out`."""


@dataclass(frozen=True, kw_only=True)
class FunctionScores:
    """Scores of a trust function: ``raw_N`` ranks rows, ``trust_N`` lies in [0, 1]."""

    raw_N: Float64s
    trust_N: Float64s

    def take(self, rows: Bools | Int64s) -> "FunctionScores":
        """Return the scores of the rows that are marked, or at these places."""
        return FunctionScores(raw_N=self.raw_N[rows], trust_N=self.trust_N[rows])


@dataclass(frozen=True, kw_only=True)
class GradedRows:
    """Rows labelled without error whose gold label is known, ascending by row id, with scores by trust function."""

    row_ids_N: Int64s
    correct_N: Bools
    parsed_N: Bools
    scores: dict[str, FunctionScores]
    question_N: Int64s | None = None
    """Question that each row asks (``curation.domains.grading.Graded``), or None if all differ."""
    cluster_N: Int64s | None = None
    """Cluster of each row (``curation.domains.grading.Graded``), or None if rows are independent."""
    selected: Mapping[str, Int64s] = field(default_factory=dict)
    """Row ids of each arm that selected from these rows, by rank."""
    seed: int = 0
    """Seed of the hash that orders ties."""
    drawn: float = 1.0
    """Share of the split's rows that were drawn."""
    among: Mapping[str, Graded] = field(default_factory=dict)
    """Grades of all rows that each arm selected; of an arm without an entry, the selected rows that are here count."""

    def __len__(self) -> int:
        return len(self.row_ids_N)

    @property
    def num_right(self) -> int:
        """The number of right labels."""
        return int(self.correct_N.sum())

    @property
    def share(self) -> float:
        """The share of right labels, the constant trust that is a baseline; 0 without rows."""
        return float(self.correct_N.mean()) if len(self) else 0.0

    def subset(self, keep_N: Bools) -> "GradedRows":
        """Return the rows that ``keep_N`` marks."""
        arrays = {name: values_N for name, values_N in vars(self).items() if name.endswith("_N")}
        kept: Json = {name: None if values_N is None else values_N[keep_N] for name, values_N in arrays.items()}
        return replace(self, **kept, scores={name: score.take(keep_N) for name, score in self.scores.items()})

    def share_right(self, *, confidence: float = CONFIDENCE) -> Estimate:
        """Return the share of right labels; NaN for no rows."""
        return compute_share_right(self.correct_N, self.cluster_N, confidence=confidence)

    def auc(self, raw_N: Float64s | Bools) -> Estimate | None:
        """Return the AUC of a score on these rows, or ``None`` if all labels are right or all are wrong."""
        if not 0 < self.num_right < len(self):
            return None
        return auc(raw_N.astype(np.float64), self.correct_N, cluster_N=self.cluster_N)

    @property
    def distinct(self) -> "GradedRows":
        """The first row of each question, by row id."""
        return self if self.question_N is None else self.subset(find_first_of_each(self.question_N))

    def held_out(self, functions: Iterable[str], seed: int) -> "GradedRows":
        """Return one row per question, among labelled rows that no fit of ``functions`` has seen.

        Scored labels of the source have a fitted function's score only if it is out-of-sample, so a parsed row without
        one was seen by a fit, or repeats a question. A fit never reads unparsed rows: a seeded draw takes the same
        share of them as the share of parsed questions that is held out.
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
    def readable(self) -> "GradedRows":
        """The rows whose label could be read; only these can be selected by trust."""
        return self.subset(self.parsed_N)

    def scale(self, num_rows: int) -> int:
        """Return the number of rows here that represent ``num_rows`` of the split."""
        return num_rows if self.drawn == 1 else max(1, round(self.drawn * num_rows))

    def rank(self, arm: str, points: Sequence[int]) -> list[Estimate]:
        """Return the share of right rows among an arm's first n, its selected rows first, for each n of ``points``."""
        selected_M = self.selected.get(arm, np.zeros(0, dtype=np.int64))
        return self._compute_purities(rank_for_arm(self, arm, selected_M, self.seed), points)

    def rank_by_score(self, function: str, points: Sequence[int], confidence: float = CONFIDENCE) -> list[Estimate]:
        """Return the share of right rows among the first n by score, for each n of ``points``."""
        draw_N = hash_unit(self.row_ids_N, self.seed)
        order = np.lexsort((draw_N, -self.scores[function].raw_N))
        return self._compute_purities(order, points, confidence)

    def _compute_purities(self, order: Int64s, points: Sequence[int], confidence: float = CONFIDENCE) -> list[Estimate]:
        right_N, cluster_N = self.correct_N[order], self.cluster_N
        ordered_N = None if cluster_N is None else cluster_N[order]
        return compute_top_purities(right_N, points, ordered_N, confidence=confidence)

    def among_selected(self, arm: str, confidence: float = CONFIDENCE) -> Estimate:
        """Return the share of right labels of an arm's graded rows; NaN for none."""
        rows: GradedRows | Graded | None = self.among.get(arm)
        if rows is None:
            rows = self.subset(np.isin(self.row_ids_N, self.selected[arm]))
        return compute_share_right(rows.correct_N, rows.cluster_N, confidence=confidence)


class ScoredLabels(NamedTuple):
    """Answered rows of scored labels."""

    row_ids_N: Int64s
    label_N: pa.ChunkedArray
    parsed_N: Bools
    """Whether each row's label could be read."""
    scores: dict[str, FunctionScores]


def read_scores(labels: TableRef, functions: Iterable[str], *, share: float = 1.0, seed: int = 0) -> ScoredLabels:
    """Return the answered rows, or a share of them, with the scores of functions whose columns the labels have.

    Rows are drawn by a hash of their ids. A large table is read in Ray tasks.
    """
    schema = io.open_table(labels).schema
    read = {name: trust for name in functions if set((trust := get_trust(name, 0)).features) <= set(schema.names)}
    names = dict.fromkeys(["row_id", "label", *(feature for trust in read.values() for feature in trust.features)])
    columns, answered = {name: f"`{name}`" for name in names}, io.make_answered_filter(labels)

    def draw(fragments: Sequence[int] | None) -> list[pa.RecordBatch]:
        return [
            batch.filter(pa.array(hash_unit(batch.column("row_id").to_numpy(), seed) < share))
            for batch in scans.iter_table_batches(labels, columns, answered, fragments)
        ]

    batches = [batch for part in scans.map_fragments(labels, draw) for batch in part]
    table = pa.Table.from_batches(batches) if batches else pa.schema(map(schema.field, names)).empty_table()
    batch = pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)
    scores = {}
    for name, trust in read.items():
        trust_N = np.nan_to_num(trust.score(batch).astype(np.float64), nan=0.0)
        scores[name] = FunctionScores(raw_N=fill_scores(trust.raw_score(batch)), trust_N=trust_N)
    label_N = table["label"]
    return ScoredLabels(table["row_id"].to_numpy(), label_N, np.asarray(label_N.is_valid().to_numpy()), scores)


def read_graded_rows(
    labels: TableRef, grades: TableRef, functions: Iterable[str], *, share: float = 1.0, seed: int = 0
) -> GradedRows:
    """Return the graded rows of :func:`read_scores`, ascending by row id."""
    rows = read_scores(labels, functions, share=share, seed=seed)
    graded = read_grades_among(grades, np.sort(rows.row_ids_N))
    places_N = locate_rows(rows.row_ids_N, graded.row_ids_N)
    scores = {name: score.take(places_N) for name, score in rows.scores.items()}
    return GradedRows(**vars(graded), parsed_N=rows.parsed_N[places_N], scores=scores)


def without_constant(graded: GradedRows, arms: Collection[str]) -> GradedRows:
    """Drop free signals that are equal, or null, on all parsed rows, unless they are among ``arms``."""
    scores = {}
    for name, score in graded.scores.items():
        known_N = graded.parsed_N & (score.raw_N > LOWEST)
        if not is_free(name) or name in arms or len(np.unique(score.raw_N[known_N])) > 1:
            scores[name] = score
    return replace(graded, scores=scores)


def count_graded(grades: Sequence[TableRef]) -> Json:
    """Count graded rows, right rows, rows right by the judge alone, and rows the rule could not decide, by kind."""
    filters = {"rows": None, "right": "correct = true", "judged": "judged = true"}
    counts = {name: sum(io.count(ref, filter=filter) for ref in grades) for name, filter in filters.items()}
    kinds: Counter[str] = Counter()
    for ref in grades:
        for batch in io.open_table(ref).to_batches(columns=["problem"], filter="problem IS NOT NULL"):
            kinds.update(map(get_error_kind, batch.column("problem").to_pylist()))
    return {**counts, "problems": dict(kinds)}


def locate_rows(ids_N: Int64s, requested_M: Int64s) -> Int64s:
    """Return the positions of the ids ``requested_M`` in ``ids_N``, int64 [at most M]; missing ids are left out."""
    found = pc.index_in(pa.array(requested_M, pa.int64()), pa.array(ids_N, pa.int64())).drop_null()
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.int64)


def rank_for_arm(graded: GradedRows, arm: str, selected_M: Int64s, seed: int) -> Int64s:
    """Return all graded rows in an arm's order of preference, as positions, int64 [N].

    First come the rows that the arm selected, by rank, then the others by its raw score, with unparsed ones last, since
    the select stage skips them. A seeded hash of the row id orders ties, and rows of arms without a ranking or score.
    """
    first = locate_rows(graded.row_ids_N, selected_M)
    rest_N = np.ones(len(graded), dtype=np.bool_)
    rest_N[first] = False
    score = graded.scores.get(ARMS[arm].trust) if ARMS[arm].ranked else None
    keys: list[npt.NDArray[Any]] = [hash_unit(graded.row_ids_N, seed), *([] if score is None else [-score.raw_N])]
    if ARMS[arm].parsed and (score is not None or not ARMS[arm].ranked):
        keys.append(~graded.parsed_N)
    rest = np.lexsort([key[rest_N] for key in keys])
    return np.concatenate([first, np.flatnonzero(rest_N)[rest]])


def draw_rows(table: TableRef, row_ids_N: Int64s, columns: Sequence[str], seed: int) -> list[Json]:
    """Return at most ``MOST_DRAWN`` of the rows with the ids, drawn by a hash; none if the table lacks a column."""
    if not len(row_ids_N) or not {*columns} <= {*io.open_table(table).schema.names}:
        return []
    drawn_N = np.sort(row_ids_N[np.argsort(hash_unit(row_ids_N, seed))[:MOST_DRAWN]])
    return list(io.take(table, drawn_N, columns).to_pylist())


def fill_scores(raw_N: Scores) -> Float64s:
    """Return raw scores as float64, with ``LOWEST`` for rows without a score."""
    return np.asarray(np.nan_to_num(raw_N.astype(np.float64), nan=LOWEST, posinf=-LOWEST, neginf=LOWEST))
