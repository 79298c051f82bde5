"""Adds columns to a table, as a new version."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata

from curation.errors import CommitError
from curation.refs import TableRef
from curation.storage.lease import Guard, unguarded
from curation.tables.io import open_table
from curation.tables.stream import arriving


def add_columns(
    ref: TableRef,
    columns: Sequence[str],
    added: pa.Schema,
    compute: Callable[[pa.RecordBatch], pa.RecordBatch],
    *,
    guard: Guard = unguarded,
) -> TableRef:
    """Make a new version of a table with the columns ``added``, computed fragment by fragment in Ray tasks.

    ``compute`` maps a batch of ``columns`` to a batch of ``added``. Existing files stay unchanged. If there are
    versions newer than ``ref`` (columns that an interrupted run added), the new version is still built on ``ref``.
    """
    import ray.data

    dataset = open_table(ref)
    if lance.dataset(ref.uri).version != ref.version:
        dataset.restore()  # type: ignore[no-untyped-call]
        dataset = lance.dataset(ref.uri)
    version = dataset.version
    items: list[Any] = [{"fragment": fragment.fragment_id} for fragment in dataset.get_fragments()]
    if items:

        def merge(batch: Mapping[str, Any]) -> pa.Table:
            fragment = lance.dataset(ref.uri, version=version).get_fragment(int(batch["fragment"][0]))
            if fragment is None:
                raise CommitError(f"{ref.uri}: fragment {batch['fragment'][0]} is not in version {version}")
            metadata, _ = fragment.merge_columns(compute, columns=list(columns))
            return pa.table({"fragment": [json.dumps(metadata.to_json())]})

        merged = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(merge, batch_size=1)
        fragments = [FragmentMetadata.from_json(row["fragment"]) for row in arriving(merged)]
        fragments.sort(key=lambda fragment: int(fragment.id))
        schema = pa.schema([*dataset.schema, *added])
        operation = lance.LanceOperation.Merge(fragments, schema)
        guard()
        version = lance.LanceDataset.commit(ref.uri, operation, read_version=version).version
    return TableRef(uri=ref.uri, version=version)
