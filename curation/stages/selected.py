"""The table of an arm's selected rows in rank order, with a digest; rows of pairs are written again as preferences."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from curation.config import DomainConfig
from curation.domains import get_domain, get_preference_function
from curation.refs import ListDigest, TableRef
from curation.rundir.graph import Done, In, InEach, Stage
from curation.rundir.run import Task
from curation.storage.paths import Place
from curation.tables import io, schemas

PART_ROWS = 1 << 14
"""The number of rows that are rendered at a time."""


@dataclass(frozen=True, kw_only=True)
class WrittenRows:
    """A table of selected rows."""

    table: TableRef
    num_rows: int
    digest: str
    """A digest of row ids and of the texts that are taught: equal rows train equal students."""


def write_rows(parts: Iterable[pa.Table], schema: pa.Schema, target: Place, taught: Sequence[str]) -> WrittenRows:
    """Write rows as they come to a table; the digest covers the columns ``taught``."""
    digest = ListDigest()

    def digested() -> Iterator[pa.Table]:
        for part in parts:
            digest.extend(part.select(taught).to_pylist())
            yield part

    table = io.write_parts(digested(), schema, str(target))
    return WrittenRows(table=table, num_rows=digest.num_items, digest=digest.hexdigest)


class WritePreferences(Stage):
    """A stage that writes the rows that every arm selected again, as ``prompt``, ``chosen`` and ``rejected``."""

    class Made(NamedTuple):
        arms: dict[str, WrittenRows]
        """The pairs of the arms that did not drop out (schema ``schemas.PREFERENCES``)."""
        rows_of: dict[str, TableRef | None]
        """The tables by arm, None for an arm that selected nothing and thus has no student."""
        absent: dict[str, str]

    selected: InEach[TableRef | None]
    """Selections by arm, None for an arm that dropped out."""
    dropped: In[dict[str, str]]
    pool: In[TableRef]
    domain: DomainConfig

    def run(self, task: Task) -> Done:
        """Look up the answers, and write each arm's table."""
        taught = ("chosen", "prompt", "rejected", "row_id")
        found = {
            arm: write_rows(self._iter_parts(table), schemas.PREFERENCES, task.directory / f"{arm}.lance", taught)
            for arm, table in self.selected.items()
            if table is not None
        }
        rows_of = {arm: rows.table if rows.num_rows else None for arm, rows in found.items()}
        made = self.Made(arms=found, rows_of=rows_of, absent=describe_absent_arms(self.dropped))
        return Done(outputs=made, rows=sum(rows.num_rows for rows in found.values()))

    def _iter_parts(self, selection: TableRef) -> Iterator[pa.Table]:
        """Yield the pairs of a selection by rank, without rows that have no label and thus no preference."""
        domain, examples = get_domain(self.domain), io.Lookup(self.pool)
        preference = get_preference_function(domain)
        assert preference is not None, "described for pairs alone"
        for batch in io.open_table(selection).to_batches(batch_size=PART_ROWS, filter="label IS NOT NULL"):
            rows = batch.cast(schemas.SELECTION)
            found = examples.take(rows.column("row_id").to_numpy(), list(domain.columns.names)).to_pylist()
            labels = rows.column("label").to_pylist()
            pairs = [preference(label, example) for label, example in zip(labels, found, strict=True)]
            texts = dict(zip(("prompt", "chosen", "rejected"), zip(*pairs, strict=True), strict=True))
            names = schemas.PREFERENCES.names
            columns = [pa.array(texts[name], pa.string()) if name in texts else rows.column(name) for name in names]
            yield pa.table(columns, schema=schemas.PREFERENCES)


def describe_absent_arms(dropped: Mapping[str, str]) -> dict[str, str]:
    """Return the reasons why outputs of dropped arms are missing, by output."""
    words = {arm: f"the arm {arm} dropped out: {why}" for arm, why in dropped.items()}
    return {f"{output}.{arm}": why for arm, why in words.items() for output in ("arms", "rows_of")}
