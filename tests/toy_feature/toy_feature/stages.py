"""The feature's stages, and its numbers."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curation.json_types import Json, JsonView
from curation.pipeline.extending import FeatureInputs
from curation.refs import TableRef
from curation.rundir.graph import Done, In, InEach, Out, Stage
from curation.rundir.run import Task
from curation.tables import io
from curation.tables.schemas import SIGNAL


class MeasureBrevity(Stage):
    """Measures the brevity of each answer of a split: 1 of an empty one, 0 of ``longest`` characters or more."""

    class Made(NamedTuple):
        table: TableRef

    labels: In[TableRef]
    longest: int

    def run(self, task: Task) -> Done:
        """Measure it."""
        rows = io.read(self.labels, columns=["row_id", "completion"])
        length_N = pc.utf8_length(rows["completion"]).to_numpy().astype(np.float32)
        value_N = 1 - np.minimum(length_N, self.longest) / self.longest
        values = pa.array(value_N, pa.float32(), mask=np.isnan(value_N))
        table = pa.table([rows["row_id"], values, pa.nulls(len(rows), pa.string())], schema=SIGNAL)
        return Done(outputs=self.Made(table=io.write(table, str(task.directory / "brevity.lance"))), rows=len(rows))


class CountCharacters(Stage):
    """Counts the characters of the selected answers."""

    class Made(NamedTuple):
        characters: dict[str, int]
        """By arm."""

    selected: InEach[TableRef | None]

    def run(self, task: Task) -> Done:
        """Count them."""
        tables = {arm: io.read(ref, columns=["completion"]) for arm, ref in self.selected.items() if ref is not None}
        found = {arm: pc.sum(pc.utf8_length(table["completion"])).as_py() for arm, table in tables.items()}
        return Done(outputs=self.Made(characters=found), rows=sum(map(len, tables.values())))


def columns(inputs: FeatureInputs) -> dict[str, Out]:
    """Return the column ``brevity`` of a split."""
    generation, split = inputs.generation, inputs.split
    stage = MeasureBrevity(
        name=generation.name(f"brevity-{split}"),
        at=generation.at(split),
        labels=inputs.record["labels"][split],
        longest=inputs.section.longest,
        num_rows=generation.sizes[split],
    )
    return {"brevity": stage.out("table")}


def selected(inputs: FeatureInputs) -> dict[str, Out]:
    """Return the characters that each arm has selected."""
    tables = {arm: table.or_none for arm, table in inputs.record["selections"].items()}
    stage = CountCharacters(name=inputs.generation.name("characters"), at=inputs.generation.at("pool"), selected=tables)
    return {"characters": stage.value("characters")}


def numbers(outputs: JsonView) -> Json:
    """Return the characters by arm, and the mean brevity in the pool."""
    pool = io.read(outputs["brevity"], columns=["value"])["value"]
    return {"characters": outputs["characters"], "mean_brevity": pc.mean(pool).as_py()}
