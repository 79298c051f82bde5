"""The selected rows of a domain of pairs as prompts with a chosen and a rejected answer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from curation.config import DomainConfig
from curation.domains import get_domain, preference_of
from curation.refs import ListDigest, TableRef
from curation.rundir.graph import Done, In, InEach, Stage
from curation.rundir.run import Task
from curation.stages.select import absent_arms
from curation.stages.selected import PART_ROWS, in_both_forms
from curation.storage.cache import staged
from curation.storage.paths import Place
from curation.tables import io, schemas


@dataclass(frozen=True, kw_only=True)
class PreferenceFiles:
    """The pairs of one arm (schema ``schemas.PREFERENCES``)."""

    table: TableRef
    parquet: str
    jsonl: str
    num_rows: int
    digest: str
    """A digest of row ids and texts: equal pairs train equal students."""


class WritePreferences(Stage):
    """Writes the rows that every arm selected once more, as ``prompt``, ``chosen`` and ``rejected``."""

    class Made(NamedTuple):
        """The outputs."""

        arms: dict[str, PreferenceFiles]
        """The pairs of the arms that did not drop out."""
        rows_of: dict[str, TableRef | None]
        """The arms' tables once more, null where an arm selected nothing: it has no student."""
        absent: dict[str, str]

    selected: InEach[TableRef | None]
    """Selections by arm; null for one that dropped out."""
    dropped: In[dict[str, str]]
    """The arms that dropped out, and why."""
    pool: In[TableRef]
    domain: DomainConfig

    def run(self, task: Task) -> Done:
        """Look up the answers, and write each arm's files."""
        found = {
            arm: write_preferences(_parts(table, self.pool, self.domain), task.directory / arm)
            for arm, table in self.selected.items()
            if table is not None
        }
        for arm, files in found.items():
            task.say(f"{arm}: {files.num_rows:,} pairs (prompt, chosen, rejected) in {files.parquet} and .jsonl")
        rows_of = {arm: files.table if files.num_rows else None for arm, files in found.items()}
        made = self.Made(arms=found, rows_of=rows_of, absent=absent_arms(self.dropped))
        return Done(outputs=made, rows=sum(files.num_rows for files in found.values()))


def write_preferences(parts: Iterator[pa.Table], stem: Place) -> PreferenceFiles:
    """Write pairs as ``stem`` with ``.parquet``, ``.jsonl`` and ``.lance``; replaces what an interrupted run left."""
    parquet, jsonl, lance = (stem.with_name(f"{stem.name}.{end}") for end in ("parquet", "jsonl", "lance"))
    digest, taught = ListDigest(), ("chosen", "prompt", "rejected", "row_id")
    with staged(parquet) as path, staged(jsonl) as text:
        for _, texts in in_both_forms(parts, schemas.PREFERENCES, path, text):
            rows = zip(*(texts[name] for name in taught), strict=True)
            named = (zip(taught, row, strict=True) for row in rows)
            digest.extend_texts(["{" + ",".join(f'"{name}":{value}' for name, value in row) + "}" for row in named])
        with pq.ParquetFile(path) as written:
            batches = (batch.cast(schemas.PREFERENCES) for batch in written.iter_batches(PART_ROWS))
            table = io.write_batches(batches, schemas.PREFERENCES, str(lance))
    return PreferenceFiles(
        table=table, parquet=str(parquet), jsonl=str(jsonl), num_rows=digest.num_items, digest=digest.hexdigest
    )


def _parts(selection: TableRef, pool: TableRef, config: DomainConfig) -> Iterator[pa.Table]:
    """The pairs of a selection by rank; rows without a label, of which none is better, are left out."""
    domain, examples = get_domain(config), io.Lookup(pool)
    preference = preference_of(domain)
    assert preference is not None, "described for pairs alone"
    for batch in io.open_table(selection).to_batches(batch_size=PART_ROWS, filter="label IS NOT NULL"):
        rows = batch.cast(schemas.SELECTION)
        labels = rows.column("label").to_pylist()
        found = examples.take(rows.column("row_id").to_numpy(), list(domain.columns.names)).to_pylist()
        pairs = [preference(label, example) for label, example in zip(labels, found, strict=True)]
        texts = dict(zip(("prompt", "chosen", "rejected"), zip(*pairs, strict=True), strict=True))
        columns = [
            pa.array(texts[name], pa.string()) if name in texts else rows.column(name)
            for name in schemas.PREFERENCES.names
        ]
        yield pa.table(columns, schema=schemas.PREFERENCES)
