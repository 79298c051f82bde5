"""Counts of rows by class and the teacher's label, for domains with closed labels or sets of classes.

For sets of C classes, the empty set counts as one more class. A row counts once for every class of its set, or once for
the empty set. As a stratum, a row counts for the rarest class of its set, or for the empty set, so that the many
possible sets have one stratum per class. Nearly all rows of a rare class are in its stratum; rows of a frequent class
are also in the strata of rarer classes.

Among labels that no labelled row has, trust was never measured. They matter in tasks with recurring labels. Their share
is estimated by the share of rows with a label of their own (Good 1953, after Turing). Above ``OPEN``, as in
mathematics, new labels are expected and none counts as unseen. The same holds if labels are graded otherwise than by
equality (``Domain.is_equality``).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.arrays import Bools, Int64s
from curation.config import DomainConfig
from curation.domains import attempt, get_domain
from curation.domains.given import RIGHT, WRONG
from curation.domains.grading import Graded, read_grades
from curation.domains.label_sets import LabelSets, split_names
from curation.metrics import compute_proportion
from curation.refs import TableRef
from curation.tables import io, scans


def make_held_mask(labels: pa.Array, sets: LabelSets) -> Bools:
    """Return whether each label's set holds each class or, at last, is empty, bool [N, C + 1]; all false for no set."""
    place_of = {name: place for place, name in enumerate(sets.classes)}
    encoded = labels.dictionary_encode()
    held_MC = np.zeros((len(encoded.dictionary) + 1, len(place_of) + 1), dtype=np.bool_)
    for row, text in enumerate(encoded.dictionary.to_pylist()):
        names, _ = attempt(split_names, text)
        if names is not None and {*names} <= place_of.keys():
            held_MC[row, [place_of[name] for name in names] or [-1]] = True
    row_N = pc.fill_null(encoded.indices, len(encoded.dictionary)).to_numpy(zero_copy_only=False)
    held_NC: Bools = held_MC[row_N]
    return held_NC


def count_labels(labels: TableRef) -> Counter[str | None]:
    """Count a table's answered rows by label, in the table's order; ``None`` counts labels that cannot be read."""

    def counted(fragments: Sequence[int] | None) -> Counter[str | None]:
        answered, found = io.make_answered_filter(labels), Counter[str | None]()
        for batch in scans.iter_table_batches(labels, {"label": "label"}, answered, fragments):
            found.update({item["values"]: item["counts"] for item in pc.value_counts(batch["label"]).to_pylist()})
        return found

    return sum(scans.map_fragments(labels, counted), Counter[str | None]())


def count_given_sets(labels: TableRef, sets: LabelSets) -> tuple[Int64s, Int64s]:
    """Count a table's answered rows by class, the empty set last, int64 [C + 1]; rows with and without a set [2]."""
    counts = count_labels(labels)
    held_MC, num_M = make_held_mask(pa.array(counts, pa.string()), sets), np.array([*counts.values()], dtype=np.int64)
    is_known_M = held_MC.any(axis=1)
    return num_M @ held_MC, np.array([num_M[is_known_M].sum(), num_M[~is_known_M].sum()])


def _take_first_labels(
    examples: TableRef, labels: TableRef, grades: TableRef
) -> tuple[Graded, pa.ChunkedArray, pa.ChunkedArray]:
    """Return the first graded row of each question, with its gold label and the teacher's."""
    graded = read_grades(grades)
    graded = graded.subset(np.unique(graded.question_N, return_index=True)[1])
    golds = io.take(examples, graded.row_ids_N, ["gold"])["gold"]
    return graded, golds.combine_chunks(), io.take(labels, graded.row_ids_N, ["label"])["label"].combine_chunks()


class LabelledSets(NamedTuple):
    """Labelled rows whose gold set is known, the first row of each question; the last class is the empty set."""

    gold_NC: Bools
    """Whether the gold set holds the class, [N, C + 1]."""
    said_NC: Int64s
    """Whether the teacher's set holds the class (1, else 0); 2 if its label could not be read."""
    cluster_N: Int64s | None

    @property
    def counts_C23(self) -> Int64s:
        """Number of rows by class, ``gold_NC`` and ``said_NC``, int64 [C + 1, 2, 3]."""
        of = [[((self.gold_NC == gold) & (self.said_NC == said)).sum(axis=0) for said in range(3)] for gold in range(2)]
        return np.moveaxis(np.array(of, dtype=np.int64), 2, 0)


def read_labelled_sets(examples: TableRef, labels: TableRef, grades: TableRef, sets: LabelSets) -> LabelledSets:
    """Return the gold sets and the teacher's sets of labelled rows."""
    graded, golds, given = _take_first_labels(examples, labels, grades)
    gold_NC, label_NC = make_held_mask(golds, sets), make_held_mask(given, sets)
    known_N: Bools = np.asarray(gold_NC.any(axis=1))
    said_NC = np.where(label_NC.any(axis=1, keepdims=True), label_NC, 2)
    return LabelledSets(gold_NC[known_N], said_NC[known_N], graded.subset(known_N).cluster_N)


@dataclass(frozen=True, kw_only=True)
class RarestClass:
    """Strata named by classes in order, with the empty set as the last."""

    sets: LabelSets
    by_rarity: tuple[int, ...]
    """The places of the strata, the rarest class first, the empty set last."""

    @classmethod
    def of(cls, sets: LabelSets, examples: TableRef) -> "RarestClass":
        """Return strata in which a class is rarer if fewer gold sets of ``examples`` hold it; ties keep their order."""
        num_C = make_held_mask(io.read(examples, ["gold"])["gold"].combine_chunks(), sets)[:, :-1].sum(axis=0)
        return cls(sets=sets, by_rarity=(*np.argsort(num_C, kind="stable").tolist(), len(num_C)))

    @property
    def names(self) -> tuple[str, ...]:
        """The classes, then the word for the empty set."""
        return (*self.sets.classes, self.sets.empty)

    def __len__(self) -> int:
        return len(self.by_rarity)

    def places(self, labels: pa.Array) -> Int64s:
        """Return the stratum of each label, int64 [N]; the number of strata if it is no set of the classes."""
        held_NC = make_held_mask(labels, self.sets)
        order_C = np.array(self.by_rarity, dtype=np.int64)
        place_N: Int64s = order_C[held_NC[:, order_C].argmax(axis=1)]
        return np.where(held_NC.any(axis=1), place_N, len(order_C))


Grouping = Sequence[str] | RarestClass
"""The C classes of labels or, if labels are sets of classes, the C strata."""


def find_class_places(labels: pa.Array, classes: Grouping) -> Int64s:
    """Return the place of each label among the C classes, int64 [N]; C for a null or a label that is none of them."""
    if isinstance(classes, RarestClass):
        return classes.places(labels)
    found = pc.index_in(labels, value_set=pa.array(classes, pa.string()))
    return np.asarray(pc.fill_null(found, len(classes)).to_numpy(zero_copy_only=False), dtype=np.int64)


def count_given(labels: TableRef, classes: Grouping) -> Int64s:
    """Count a labels table's answered rows by C classes, then those without a readable label, int64 [C + 1]."""
    counts = count_labels(labels)
    num_C = np.zeros(len(classes) + 1, dtype=np.int64)
    np.add.at(num_C, find_class_places(pa.array(counts, pa.string()), classes), [*counts.values()])
    return num_C


def count_confusion(examples: TableRef, labels: TableRef, grades: TableRef, classes: Grouping) -> Int64s:
    """Return labelled rows by gold class and teacher's label, int64 [C, C + 1]; the first row of each question counts.

    ``examples`` have the gold labels. Rows of which only the grade is known are left out: a wrong one has no class.
    """
    _, golds, given = _take_first_labels(examples, labels, grades)
    gold_N, label_N = find_class_places(golds, classes), find_class_places(given, classes)
    is_known_N = gold_N < len(classes)
    counts = np.zeros((len(classes), len(classes) + 1), dtype=np.int64)
    np.add.at(counts, (gold_N[is_known_N], label_N[is_known_N]), 1)
    return counts


OPEN = 0.05
"""Share of rows with a label of their own above which new labels are expected."""
MIN_ROWS = 20
"""Minimum number of labelled rows that determine this share."""
MOST = 10
"""Maximum number of labels listed."""


class SeenLabels(NamedTuple):
    """The labels of labelled rows in a task with recurring labels."""

    labels: tuple[str, ...]
    num_rows: int
    num_once: int
    """Number of rows with a label of their own."""

    @classmethod
    def of(cls, counts: Counter[str]) -> "SeenLabels | None":
        """Return the labels with these counts, or ``None`` if labels are open or the rows are too few to tell."""
        num_rows, num_once = counts.total(), sum(count == 1 for count in counts.values())
        is_open = num_rows < MIN_ROWS or num_once > OPEN * num_rows
        return None if is_open else cls(tuple(sorted(counts)), num_rows, num_once)


@dataclass(frozen=True, kw_only=True)
class UnseenLabels:
    """Pool rows whose label no labelled row has."""

    num_seen: int
    """Number of different labels of the labelled rows."""
    expected: float
    """Upper end of the 95 % interval of the share of such rows, estimated from the labelled rows."""
    num_read: int
    """Number of pool rows with a readable label."""
    num_rows: int
    """Number of those rows whose label is unseen."""
    num_labels: int
    """The number of different unseen labels."""
    most: dict[str, int]
    """The most frequent unseen labels, with their numbers of rows."""

    @classmethod
    def of(cls, seen: SeenLabels, num_read: int, unseen: Counter[str]) -> Self:
        """Return the counts for ``num_read`` labels, of which ``unseen`` are not among those seen."""
        return cls(
            num_seen=len(seen.labels),
            expected=compute_proportion(seen.num_once, seen.num_rows).high,
            num_read=num_read,
            num_rows=unseen.total(),
            num_labels=len(unseen),
            most=dict(unseen.most_common(MOST)),
        )

    @property
    def words(self) -> str:
        """The most frequent unseen labels and their rows, in words."""
        listed = ", ".join(f"{label} {rows:,}" for label, rows in self.most.items())
        more = self.num_labels - len(self.most)
        return listed + (f", and {more:,} more" if more else "")


def collect_seen_labels(labelled: TableRef, config: DomainConfig) -> SeenLabels | None:
    """Return the labels of a split with gold labels, as the domain reads them, or ``None`` if labels are open."""
    domain, counts = get_domain(config), Counter[str]()
    if not domain.is_equality:
        return None
    columns = ["gold", *domain.columns.names]
    for batch in io.open_table(labelled).to_batches(columns=columns, filter="error IS NULL AND gold IS NOT NULL"):
        for row in batch.to_pylist():
            if (gold := row["gold"]) in (RIGHT, WRONG):
                continue  # a grade, which names no label
            answer, _ = attempt(domain.answer, gold, row)
            label = None if answer is None else attempt(domain.parse, answer, row)[0]
            counts[gold if label is None else label] += 1
    return SeenLabels.of(counts)


def is_unseen(labels: pa.Array, seen: Sequence[str]) -> Bools:
    """Return whether each label is missing from ``seen``, bool [N]; a null is not unseen."""
    known = pc.or_(pc.is_in(labels, value_set=pa.array(seen, pa.string())), pc.is_null(labels))
    return ~np.asarray(known.to_numpy(zero_copy_only=False), dtype=np.bool_)


def count_unseen(labels: TableRef, seen: SeenLabels) -> UnseenLabels:
    """Count the unseen labels of a pool's labels."""
    known = {*seen.labels}
    readable = Counter({label: rows for label, rows in count_labels(labels).items() if label is not None})
    unseen = Counter({label: readable[label] for label in readable if label not in known})
    return UnseenLabels.of(seen, readable.total(), unseen)
