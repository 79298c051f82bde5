"""The PCA stage, which fits a projection of the source's hidden states and adds it to the labels as ``state_pca``."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from curation.config import TrustConfig
from curation.config.trust import ROW_KEYS
from curation.json_types import Json
from curation.refs import ProjectionRef, TableRef
from curation.rundir.graph import Done, In, Stage
from curation.rundir.run import Task
from curation.stopping import iter_checked
from curation.storage.inside import run_around, to_record
from curation.storage.lease import Guard, guard_nothing
from curation.storage.paths import Place
from curation.tables import io, schemas
from curation.tables.columns import add_columns
from curation.trust.parts import FIT, assign_parts, make_candidates_filter

if TYPE_CHECKING:
    from curation.trust.states import States


class Project(Stage):
    """A stage that fits principal components of the labels' hidden states, and adds the projection as a column."""

    class Made(NamedTuple):
        labels: TableRef
        """The labels with the projection of their states as a column."""
        projection: ProjectionRef
        fit: Json
        """``size``, ``variance_kept`` and ``num_rows``."""

    labels: In[TableRef]
    size: int
    """The number of components."""
    trust: TrustConfig
    seed: int

    def run(self, task: Task) -> Done:
        """Fit the projection, and add it to the labels."""
        from curation.trust.pca import load_projection  # heavy

        ref = fit_pca(self.labels, self.trust, size=self.size, seed=self.seed, output=task.directory / "pca")
        fit = {"size": self.size, **{key: load_projection(ref).fit[key] for key in ("variance_kept", "num_rows")}}
        task.say(f"{self.size} components keep {fit['variance_kept']:.1%} of the variance")
        projected = add_projection(self.labels, ref, guard=task.guard)
        return Done(outputs=self.Made(labels=projected, projection=ref, fit=fit), rows=io.count(self.labels))


def fit_pca(labels: TableRef, config: TrustConfig, *, size: int, seed: int, output: Place) -> ProjectionRef:
    """Fit a projection on the rows that the trust function is fitted on, graded or not, and save it to ``output``.

    Raises:
        ConfigError: there are more components than state dimensions, or than rows.
    """
    from curation.trust.pca import fit_projection  # heavy
    from curation.trust.states import read_states

    columns = [schemas.get_state_column(state) for state in config.states]

    def batches() -> Iterator["States"]:
        scanner = io.open_table(labels).scanner(columns=["row_id", *columns], filter=make_candidates_filter(config))
        for batch in iter_checked(scanner.to_batches()):
            fitted_N = assign_parts(batch.column("row_id").to_numpy(), config, seed) == FIT
            yield read_states(batch.filter(pa.array(fitted_N)), columns)

    settings = config.model_dump(mode="json", include=set(ROW_KEYS))
    origin = {"labels": to_record(labels.to_json(), run_around(output)), "seed": seed, **settings}
    return fit_projection(batches(), size=size, states=config.states, origin=origin).save(output)


def add_projection(labels: TableRef, ref: ProjectionRef, *, guard: Guard = guard_nothing) -> TableRef:
    """Return a version of the labels table with the projection of its states as a further column."""
    from curation.trust.pca import load_projection  # heavy

    projection = load_projection(ref)
    value = io.open_table(labels).schema.field(projection.features[0]).type.value_type
    added = pa.schema([pa.field(schemas.get_state_column("pca"), pa.list_(value, projection.size))])

    def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([load_projection(ref).project(batch)], schema=added)

    return add_columns(labels, projection.features, added, compute, guard=guard)
