"""The selected rows of a domain of pairs as prompts with a chosen and a rejected answer."""

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from curation.config import DomainConfig
from curation.domains import get_domain, get_preference_function
from curation.refs import TableRef
from curation.rundir.graph import Done, In, InEach, Stage
from curation.rundir.run import Task
from curation.stages.select import describe_absent_arms
from curation.stages.selected import PART_ROWS, RowFiles, write_forms
from curation.tables import io, schemas

TAUGHT = ("chosen", "prompt", "rejected", "row_id")


class WritePreferences(Stage):
    """A stage that writes the rows that every arm selected again, as ``prompt``, ``chosen`` and ``rejected``."""

    class Made(NamedTuple):
        arms: dict[str, RowFiles]
        """The pairs of the arms that did not drop out (schema ``schemas.PREFERENCES``)."""
        rows_of: dict[str, TableRef | None]
        """The tables by arm, None for an arm that selected nothing and thus has no student."""
        absent: dict[str, str]

    selected: InEach[TableRef | None]
    """Selections by arm, None for an arm that dropped out."""
    dropped: In[dict[str, str]]
    """Reasons why arms dropped out, by arm."""
    pool: In[TableRef]
    domain: DomainConfig

    def run(self, task: Task) -> Done:
        """Look up the answers, and write each arm's files."""
        found = {
            arm: write_forms(
                _iter_parts(table, self.pool, self.domain), schemas.PREFERENCES, task.directory / arm, TAUGHT
            )
            for arm, table in self.selected.items()
            if table is not None
        }
        for arm, files in found.items():
            task.say(f"{arm}: {files.num_rows:,} pairs (prompt, chosen, rejected) in {files.parquet} and .jsonl")
        rows_of = {arm: files.table if files.num_rows else None for arm, files in found.items()}
        made = self.Made(arms=found, rows_of=rows_of, absent=describe_absent_arms(self.dropped))
        return Done(outputs=made, rows=sum(files.num_rows for files in found.values()))


def _iter_parts(selection: TableRef, pool: TableRef, config: DomainConfig) -> Iterator[pa.Table]:
    """Yield the pairs of a selection by rank, without rows that have no label and thus no preference."""
    domain, examples = get_domain(config), io.Lookup(pool)
    preference = get_preference_function(domain)
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
