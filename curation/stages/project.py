"""The PCA stage: fits a projection of the source split's hidden states and adds it to the labels as ``state_pca``."""

from collections.abc import Iterator

import pyarrow as pa

from curation.config import TrustConfig
from curation.refs import ProjectionRef, TableRef
from curation.storage.lease import Guard, unguarded
from curation.storage.paths import Place
from curation.tables import io, schemas
from curation.tables.columns import add_columns
from curation.trust.parts import FIT, ROW_KEYS, candidates, part_of
from curation.trust.pca import fit_projection, load_projection
from curation.trust.states import States, read_states


def fit_pca(labels: TableRef, config: TrustConfig, *, size: int, seed: int, output: Place) -> ProjectionRef:
    """Fit on the rows that the trust function's weights are fitted on, graded or not, and save to ``output``.

    Raises:
        ConfigError: there are more components than numbers per row, or than rows.
    """
    columns = [schemas.state_column(state) for state in config.states]

    def batches() -> Iterator[States]:
        scanner = io.open_table(labels).scanner(columns=["row_id", *columns], filter=candidates(config))
        for batch in scanner.to_batches():
            fitted_N = part_of(batch.column("row_id").to_numpy(), config, seed) == FIT
            yield read_states(batch.filter(pa.array(fitted_N)), columns)

    settings = config.model_dump(mode="json", include=ROW_KEYS)
    origin = {"labels": labels.to_json(), "seed": seed, **settings}
    return fit_projection(batches(), size=size, states=config.states, origin=origin).save(output)


def add_projection(labels: TableRef, ref: ProjectionRef, *, guard: Guard = unguarded) -> TableRef:
    """A version of the labels table with the projection of its states as a further column."""
    projection = load_projection(ref)
    value = io.open_table(labels).schema.field(projection.features[0]).type.value_type
    added = pa.schema([pa.field(schemas.state_column("pca"), pa.list_(value, projection.size))])

    def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([load_projection(ref).project(batch)], schema=added)

    return add_columns(labels, projection.features, added, compute, guard=guard)
