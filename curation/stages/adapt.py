"""The stage that teaches a weak teacher the task's format, on labelled rows of a split of their own."""

from typing import NamedTuple

import pyarrow as pa

from curation.config import DomainConfig
from curation.domains import Example, attempt, get_domain
from curation.refs import TableRef
from curation.registry import METHODS
from curation.rundir.graph import Done, In
from curation.rundir.run import Task
from curation.stages.selected import write_rows
from curation.stages.training import Training
from curation.storage.paths import Place
from curation.tables import io, schemas


class Adapt(Training):
    """Fine-tunes a model on all rows of a labelled split, with their gold labels."""

    examples: In[TableRef]
    domain: DomainConfig

    def run(self, task: Task) -> Done:
        """Train on the healthy rows."""
        rows = adaptation_rows(self.examples, self.domain, task.directory)
        return self._train(task, METHODS["sft"].trained_by, rows.table, {}, left_out=rows.left_out)


class Adaptation(NamedTuple):
    """The rows of a labelled split to adapt a teacher on."""

    table: TableRef
    """All healthy ones with their gold labels, as a selection named ``adapt``."""
    left_out: dict[int, str]
    """Errors of the other rows, ``kind: detail``, by row id."""


def adaptation_rows(examples: TableRef, domain_config: DomainConfig, directory: Place) -> Adaptation:
    """Write the rows to adapt a teacher on; error rows and rows that the domain cannot render are left out."""
    domain = get_domain(domain_config)
    errors = io.read(examples, columns=["row_id", "error"], filter="error IS NOT NULL")
    left_out = dict(zip(errors["row_id"].to_pylist(), errors["error"].to_pylist(), strict=True))

    def pair(example: Example) -> dict[str, str]:
        return {"prompt": domain.prompt(example), "completion": domain.answer(example["gold"], example)}

    rows = []
    for rank, example in enumerate(io.read(examples, filter="error IS NULL").to_pylist()):
        rendered, error = attempt(pair, example)
        if rendered is None:
            left_out[example["row_id"]] = str(error)
            continue
        lineage = {"arm": "adapt", "label_source": "gold", "completion_source": "answer", "generation": 0}
        rows.append({**rendered, **lineage, "row_id": example["row_id"], "rank": rank, "label": example["gold"]})
    table = write_rows([pa.Table.from_pylist(rows, schema=schemas.SELECTION)], directory / "adapt").table
    return Adaptation(table, left_out)
