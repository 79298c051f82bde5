"""Handling of a question that is in two splits: refuse the run, remove a row, or keep and count both.

Rows are removed by Lance's deletion, which keeps the order of the others and commits once per table. Before the first
deletion, the rows to delete are listed in ``overlap.json`` beside the tables, from which an interrupted run continues,
because the tables no longer show what they showed at first.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Self

import lance
import numpy as np
from lance.fragment import FragmentMetadata
from pyroaring import BitMap64

from curation.arrays import Int64s
from curation.errors import REFUSALS, CommitError, SourceError
from curation.heavy import ray
from curation.json_types import JsonView
from curation.refs import TableRef
from curation.stages.overlap import Compared, OverlapRows
from curation.storage.lease import Guard, guard_nothing
from curation.storage.paths import Place, write_atomically
from curation.tables import io
from curation.tables.row_ids import make_bitmap
from curation.tasks import run_in_tasks

HELD_OUT = ("test", "probe-")
"""Beginnings of the names of splits that models and trust are measured on, and never trained on."""
WORDS = {"same": "the same", "permuted": "with permuted options", "near_copy": "near-copies with another option"}
ORDER = "test, calibration, probes, shots, source, adapt, pool"
MEND = (
    "remove repeated rows from the input files, take both splits from one source that holds each question once, or set "
    f"splits.overlap: drop (takes such rows out of the split that comes later in {ORDER}) or splits.overlap: report "
    "(keeps and counts them)"
)
MEND_ADDED = (
    "rows stay in the splits that they have: take the new split from rows that are in no other split, or set "
    "splits.overlap: drop (leaves such rows out of the new split) or splits.overlap: report (keeps and counts them)"
)
"""Remedy that a message names if a split is added to a run."""


@dataclass(frozen=True, kw_only=True)
class SplitOverlap:
    """Rows of the split ``other`` whose question is in ``kept`` too, with counts by rule."""

    kept: str
    other: str
    rows: int
    rules: dict[str, int]
    fate: str
    """``dropped`` or ``kept``; a row with matches in several splits is counted in each pair, and dropped once."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Findings and actions of the comparison, as counts of rows."""

    pairs: list[SplitOverlap]
    dropped: dict[str, int]
    uncompared: dict[str, dict[str, int]]

    @classmethod
    def from_json(cls, value: JsonView) -> Self:
        """Create the overlap from the output of ``asdict``."""
        return cls(**{**value, "pairs": [SplitOverlap(**pair) for pair in value["pairs"]]})

    def sentences(self) -> list[str]:
        """Return sentences for the terminal; empty if there is nothing to report."""
        sentences = []
        for pair in self.pairs:
            rules = describe_rules(pair.rules)
            sentences.append(f"{pair.rows:,} rows of {pair.other} ask questions of {pair.kept} ({rules}): {pair.fate}")
        for split, problems in self.uncompared.items():
            if problems:
                kinds = ", ".join(f"{kind} {rows:,}" for kind, rows in problems.items())
                sentences.append(f"{sum(problems.values()):,} rows of {split} could not be compared ({kinds})")
        return sentences


@dataclass(frozen=True)
class SettledOverlap:
    """Findings and actions of the comparison, with the ids of the rows to delete by table."""

    overlap: Overlap
    row_ids: dict[str, BitMap64]

    def save(self, directory: Place) -> None:
        """Write ``overlap.json`` to the directory of the tables."""
        ids = {name: base64.b64encode(found.serialize()).decode() for name, found in self.row_ids.items()}
        content = {"overlap": asdict(self.overlap), "row_ids": ids}
        write_atomically(directory / "overlap.json", json.dumps(content).encode())

    @classmethod
    def load(cls, directory: Place) -> Self | None:
        """Return the content of ``overlap.json``, or None if there is no such file."""
        try:
            content = json.loads((directory / "overlap.json").read_bytes())
        except FileNotFoundError:
            return None
        ids = {name: BitMap64.deserialize(base64.b64decode(text)) for name, text in content["row_ids"].items()}
        return cls(Overlap.from_json(content["overlap"]), ids)


def settle(
    compared: Compared,
    mode: str,
    refs: Mapping[str, TableRef],
    columns: Mapping[str, Sequence[str]],
    *,
    mend: str = MEND,
) -> SettledOverlap:
    """Decide the fate of the rows found: splits that models and trust are only measured on may share them.

    Errors show the ``columns`` of an example row and ``mend``, the remedy.

    Raises:
        SourceError: ``mode`` is ``refuse`` and two splits other than source and pool ask the same question, or a split
            loses all its rows.
    """
    pairs: list[SplitOverlap] = []
    gone: dict[str, BitMap64] = {}
    refused: list[OverlapRows] = []
    for pair in compared.pairs:
        fate = "dropped"
        if mode == "report" or (pair.kept.startswith(HELD_OUT) and pair.other.startswith(HELD_OUT)):
            fate = "kept"
        elif mode == "refuse" and (pair.kept, pair.other) != ("source", "pool"):
            refused.append(pair)
        else:
            gone.setdefault(pair.other, BitMap64()).update(make_bitmap(pair.row_ids_M))
        num_rows = len(pair.row_ids_M)
        pairs.append(SplitOverlap(kept=pair.kept, other=pair.other, rows=num_rows, rules=pair.rules, fate=fate))
    if refused:
        first, rule = refused[0], next(iter(refused[0].rules))
        rows = zip((first.kept, first.other), first.example, strict=True)
        found = (io.take(refs[name], np.array([row]), columns[name]).to_pylist()[0] for name, row in rows)
        shown = " and ".join(dict.fromkeys(json.dumps(row, default=str) for row in found))
        shared = "; ".join(
            f"{pair.kept} and {pair.other} share questions, {len(pair.row_ids_M):,} rows of {pair.other} "
            f"({describe_rules(pair.rules)})"
            for pair in refused
        )
        raise SourceError(
            f"splits {shared}; e.g. row {first.example[0]} of {first.kept} and row {first.example[1]} of "
            f"{first.other}, {WORDS[rule]}: {shown}; {mend}"
        )
    for name, ids in gone.items():
        healthy = io.count(refs[name], "error IS NULL")
        if len(ids) == healthy:
            others = ", ".join(pair.kept for pair in pairs if pair.other == name and pair.fate == "dropped")
            raise SourceError(
                f"splits.{name}: splits.overlap: {mode} leaves none of its {healthy} usable rows, as each asks a "
                f"question of {others}; take the split from rows that are in no other split"
            )
    num_dropped = {name: len(ids) for name, ids in gone.items()}
    return SettledOverlap(Overlap(pairs=pairs, dropped=num_dropped, uncompared=compared.uncompared), gone)


def describe_rules(rules: Mapping[str, int]) -> str:
    """Return a description of counts of rows by rule."""
    return ", ".join(f"{rows:,} {WORDS[rule]}" for rule, rows in rules.items())


def remove(ref: TableRef, gone: BitMap64, *, guard: Guard = guard_nothing) -> TableRef:
    """Return the table without the rows whose id is in ``gone``, in its order; ``CommitError`` if numbers differ."""
    dataset = io.open_table(ref)
    ids = ray.put(np.frombuffer(gone.to_array(), dtype=np.uint64).astype(np.int64))
    calls = ((ref, fragment.fragment_id, ids) for fragment in dataset.get_fragments())
    done = [item for item in run_in_tasks(_delete_rows, calls) if item[1]]
    if not done:
        return ref
    updated = [FragmentMetadata.from_json(text) for _, _, text in done if text is not None]
    emptied = [number for number, _, text in done if text is None]
    guard()
    try:
        operation = lance.LanceOperation.Delete(updated, emptied, "the same question in another split")
        after = lance.LanceDataset.commit(ref.uri, operation, read_version=ref.version)
    except REFUSALS as error:
        raise CommitError(f"{ref.uri}: rows were not taken out ({error}); the same command does it again") from error
    num_gone = sum(rows for _, rows, _ in done)
    if after.count_rows() != dataset.count_rows() - num_gone:
        raise CommitError(
            f"{ref.uri}: {dataset.count_rows()} rows less {num_gone} are {after.count_rows()}; another driver changed "
            "the table"
        )
    return TableRef(uri=ref.uri, version=after.version)


def _delete_rows(ref: TableRef, number: int, ids_M: Int64s) -> tuple[int, int, str | None]:
    """Delete rows of a fragment; return its number, their count, its metadata as JSON (None if none or all match)."""
    fragment = io.open_table(ref).get_fragment(number)
    assert fragment is not None
    ids_N = fragment.to_table(columns=["row_id"])["row_id"].to_numpy()
    hit_N = np.isin(ids_N, ids_M, kind="sort")
    num_gone = int(hit_N.sum())
    if num_gone in (0, len(ids_N)):
        return number, num_gone, None
    few = 2 * num_gone <= len(ids_N)
    listed = ", ".join(map(str, ids_N[hit_N if few else ~hit_N].tolist()))
    metadata = fragment.delete(f"row_id {'' if few else 'NOT '}IN ({listed})")
    assert metadata is not None
    return number, num_gone, json.dumps(metadata.to_json())
