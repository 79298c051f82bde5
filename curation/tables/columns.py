"""Addition of columns to a table, as a new version."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata
from lance.schema import LanceSchema

from curation.errors import CommitError
from curation.refs import TableRef
from curation.storage.lease import Guard, guard_nothing
from curation.tables.io import open_table
from curation.tables.versions import rename_files, set_torn_aside
from curation.tasks import run_in_tasks


def add_columns(
    ref: TableRef,
    columns: Sequence[str],
    added: pa.Schema,
    compute: Callable[[pa.RecordBatch], pa.RecordBatch],
    *,
    guard: Guard = guard_nothing,
) -> TableRef:
    """Make a new version of ``ref`` with the columns ``added``, computed fragment by fragment in Ray tasks.

    ``compute`` maps a batch of ``columns`` to one of ``added``. Existing files stay unchanged; versions after ``ref``
    are ignored.
    """
    dataset = open_table(ref)
    set_torn_aside(ref.uri, after=ref.version)
    if lance.dataset(ref.uri).version != ref.version:
        dataset.restore()  # type: ignore[no-untyped-call]
        dataset = lance.dataset(ref.uri)
    if again := [name for name in added.names if name in dataset.schema.names]:  # by a run whose manifest was lost
        guard()
        dataset.drop_columns(again)
        dataset = lance.dataset(ref.uri)
    version = dataset.version
    numbers = [(fragment.fragment_id,) for fragment in dataset.get_fragments()]
    if numbers:

        def merge(number: int) -> tuple[str, LanceSchema]:
            fragment = lance.dataset(ref.uri, version=version).get_fragment(number)
            if fragment is None:
                raise CommitError(f"{ref.uri}: fragment {number} is not in version {version}")
            before = {file.path for file in fragment.metadata.files}
            with ThreadPoolExecutor(1) as pool:  # Lance's own thread, which calls the function, can read no table
                metadata, schema = fragment.merge_columns(
                    lambda batch: pool.submit(compute, batch).result(), columns=list(columns)
                )
            described = metadata.to_json()
            rename_files(ref.uri, [described], old=before)
            return json.dumps(described), schema

        merged = list(run_in_tasks(merge, numbers))
        fragments = [FragmentMetadata.from_json(text) for text, _ in merged]
        # The schema of the merge numbers the columns: the number of a dropped column is not reused.
        operation = lance.LanceOperation.Merge(fragments, merged[0][1])
        guard()
        version = lance.LanceDataset.commit(ref.uri, operation, read_version=version).version
    return TableRef(uri=ref.uri, version=version)
