"""Completions that gold arms train on: the domain's sentence for the gold label, or a rollout that is right."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from pyroaring import BitMap64

from curation.arrays import Int64s
from curation.config import DomainConfig
from curation.domains import Domain, Example, get_domain
from curation.domains.given import Format, GoldSource, GoldWanted, choose_format, choose_gold_source, is_bare
from curation.hashing import derive, hash64
from curation.json_types import JsonView
from curation.refs import TableRef
from curation.stages.rows import NO_IDS, read_id_bitmap
from curation.tables import io, scans
from curation.tables.row_ids import find_missing_ids

MEASURED_ROWS = 2_000
"""Number of weak completions, sampled by a hash of the row id, whose share of bare answers decides the format."""


@dataclass(frozen=True, kw_only=True)
class GoldTexts:
    """The source of the completions of a run's gold arms."""

    source: GoldSource
    samples: TableRef | None = None
    """Further samples of the teacher (``schemas.ROLLOUTS``); without them, only weak completions can be right."""

    @classmethod
    def from_json(cls, value: JsonView | None) -> Self:
        """Return the source in a record; without a record, it is bare answers."""
        if value is None:
            return cls(source="answer")
        samples = value["samples"]
        return cls(source=value["source"], samples=None if samples is None else TableRef.from_json(samples))


class WeakFormat(NamedTuple):
    """The format of a pool's weak completions, and the number of bare answers in the sample."""

    format: Format
    num_bare: int
    num_rows: int


def measure_weak_format(pool: TableRef, labels: TableRef, domain: DomainConfig, *, seed: int) -> WeakFormat:
    """Return the format of the weak completions, from a seeded sample of the rows whose label could be read."""
    ids_M, readable = NO_IDS, "error IS NULL AND label IS NOT NULL"
    for batch in scans.iter_table_batches(labels, {"row_id": "row_id"}, readable):
        ids_M = np.concatenate([ids_M, batch.column("row_id").to_numpy()])
        if len(ids_M) > MEASURED_ROWS:
            ids_M = ids_M[np.argpartition(hash64(ids_M, seed), MEASURED_ROWS)[:MEASURED_ROWS]]
    made, rows = get_domain(domain), io.take(labels, ids_M, ["completion", "label"]).to_pylist()
    examples = io.take(pool, ids_M).to_pylist()
    num_bare = sum(is_bare(made, **row, example=example) for row, example in zip(rows, examples, strict=True))
    return WeakFormat(choose_format(num_bare, len(ids_M)), num_bare, len(ids_M))


class Decided(NamedTuple):
    """The source of gold arms' completions, and the counts behind the decision."""

    source: GoldSource
    weak: WeakFormat
    num_gold: int
    num_solved: int


def decide(
    pool: TableRef, labels: TableRef, audit: TableRef, domain: DomainConfig, *, wanted: GoldWanted, seed: int
) -> Decided:
    """Decide the source of gold arms' completions, from ``wanted`` and the format of the pool's weak completions."""
    labelled = read_id_bitmap(labels, io.make_answered_filter(labels))
    weak = measure_weak_format(pool, labels, domain, seed=derive(seed, "format"))
    gold = Gold(GoldTexts(source="answer"), audit=audit, labels=labels, grades=None)
    num_gold, num_solved = (found.intersection_cardinality(labelled) for found in (gold.labelled, gold.solved))
    source = choose_gold_source(weak.format, wanted, num_gold=num_gold, num_solved=num_solved)
    return Decided(source, weak, num_gold, num_solved)


class Gold:
    """The gold labels of a pool and the completions to train on; read lazily."""

    def __init__(self, texts: GoldTexts, *, audit: TableRef, labels: TableRef, grades: TableRef | None) -> None:
        self._texts, self._audit, self._labels, self._grades = texts, audit, labels, grades
        self._lookups: dict[TableRef, io.Lookup] = {}

    @cached_property
    def labelled(self) -> BitMap64:
        """The ids of the rows with a gold label."""
        return read_id_bitmap(self._audit, "gold IS NOT NULL")

    @cached_property
    def solved(self) -> BitMap64:
        """The ids of the rows with a gold label and a worked solution."""
        return read_id_bitmap(self._audit, "gold IS NOT NULL AND solution IS NOT NULL")

    @cached_property
    def right(self) -> BitMap64:
        """The ids of the rows whose weak label is right."""
        assert self._grades is not None, "RunConfig refuses gold arms without an audit set"
        return read_id_bitmap(self._grades, "correct")

    @cached_property
    def teachable(self) -> BitMap64:
        """The ids of the rows with a completion that states the gold label."""
        if self._texts.source in ("answer", "label"):
            return self.labelled
        if self._texts.source == "solution":
            return self.solved
        samples = self._texts.samples
        return self.right if samples is None else self.right | read_id_bitmap(samples, "completion IS NOT NULL")

    def taught(self, row_ids_n: Int64s, examples: list[Example], domain: Domain) -> dict[str, list[str]]:
        """Return the columns of ``schemas.SELECTION`` that a gold arm trains on, for rows that can be taught.

        A right weak completion also serves as its row's rollout.
        """
        source = self._texts.source
        columns = ["gold", "solution"] if source == "solution" else ["gold"]
        rows = self._look_up(self._audit).take(row_ids_n, columns).to_pylist()
        golds, sources = [row["gold"] for row in rows], [str(source)] * len(rows)
        if source in ("answer", "label"):
            texts = [domain.answer(gold, example) for gold, example in zip(golds, examples, strict=True)]
        elif source == "solution":
            texts = [row["solution"] for row in rows]
        else:  # the teacher's right completion: the weak one if it is right, else a sample
            weak_n = ~find_missing_ids(row_ids_n, self.right)
            texts = self._look_up(self._labels).take(row_ids_n, ["completion"])["completion"].to_pylist()
            if self._texts.samples is not None and not weak_n.all():
                places = np.flatnonzero(~weak_n)
                drawn = self._look_up(self._texts.samples).take(row_ids_n[places], ["completion"])["completion"]
                for place, text in zip(places.tolist(), drawn.to_pylist(), strict=True):
                    texts[place] = text
            sources = ["weak" if weak else "sample" for weak in weak_n.tolist()]
        return {"label": golds, "completion": texts, "completion_source": sources}

    def _look_up(self, ref: TableRef) -> io.Lookup:
        if ref not in self._lookups:
            self._lookups[ref] = io.Lookup(ref)
        return self._lookups[ref]
