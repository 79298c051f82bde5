"""Compaction: rewrites many small fragments of a table as few large ones, in the table's own order.

A pass writes one fragment per chunk, whatever its size. After the pass, Ray tasks write the new fragments, and one
commit replaces the old ones. The previous version and its files stay for its readers until ``curate clean``, so a table
takes twice its space for a while.

Nothing depends on compaction: if a task or the commit fails, the previous version is used. The store refuses the commit
if another driver's commit came first and named one of the old fragments; it refuses the other driver's if ours came
first.
"""

import json
from collections.abc import Iterable, Sequence

import lance
from lance.fragment import FragmentMetadata
from lance.optimize import Compaction, CompactionTask, RewriteResult

from curation.errors import REFUSALS, CommitError, of_lance
from curation.escaping import logger_of
from curation.heavy import ray
from curation.refs import TableRef
from curation.storage.lease import Guard, unguarded
from curation.tables.digests import find_changed, rename_files
from curation.tables.row_ids import RowIds
from curation.tables.versions import sync_version
from curation.tasks import in_tasks, root

logger = logger_of(__name__)

FEWEST = 16
"""Compact only a table with at least so many fragments; a smaller one is not worth rewriting all its rows."""
FACTOR = 4
"""Compact only if the number of fragments falls at least this many times."""
BATCH_BYTES = 16 << 20
"""Bytes of rows that a task reads at a time."""


def compact(ref: TableRef, fragment_mb: int, *, guard: Guard = unguarded) -> TableRef:
    """The same rows in fragments of ``fragment_mb`` MiB or a little more; ``ref`` where that gains little, or failed.

    Raises:
        CommitError: the lease on the run directory was lost, another driver added rows in between, or a file of the
            table was changed since it was written.
    """
    tasks = plan(ref, fragment_mb << 20)
    if not tasks:
        return ref

    try:  # the actors of the pass keep their CPUs for other passes
        rewritten = list(in_tasks(rewrite, ((ref, task) for task in tasks), beside_actors=True))
    except (*REFUSALS, ray.exceptions.RayError) as error:  # the other tasks end: ray.cancel may end this process
        if isinstance(root(error), CommitError):
            raise root(error) from error
        logger.warning("%s: keeps its small fragments (%s)", ref.uri, of_lance(error) or error)
        return ref
    return commit(ref, rewritten, guard=guard)


def plan(ref: TableRef, fragment_bytes: int) -> list[CompactionTask]:
    """The compaction tasks, one per new fragment; none if compaction gains little."""
    dataset = lance.dataset(ref.uri, version=ref.version)
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    num_bytes = sum(file.file_size_bytes or 0 for fragment in fragments for file in fragment.files)
    if len(fragments) < FEWEST or not num_bytes:
        return []
    row_bytes = num_bytes / sum(fragment.physical_rows for fragment in fragments)
    tasks = Compaction.plan(
        dataset,
        {
            "target_rows_per_fragment": max(1, int(fragment_bytes / row_bytes)),
            "max_bytes_per_file": 2**40,  # split by rows only, otherwise a small fragment follows each large one
            "batch_size": max(1, min(8192, int(BATCH_BYTES / row_bytes))),
            "num_threads": 1,
        },
    ).tasks
    num_left = len(fragments) - sum(len(task.fragments) - 1 for task in tasks)
    return tasks if num_left * FACTOR <= len(fragments) else []


def rewrite(ref: TableRef, task: CompactionTask) -> RewriteResult:
    """Write one fragment, without committing.

    Raises:
        CommitError: a file was changed since it was written: a copy with digests of its own would hide that.
    """
    if wrong := find_changed(ref.uri, task.fragments):
        raise CommitError(f"{ref.uri}: the content of {len(wrong):,} of its files changed ({wrong[0]})")
    executed = task.execute(lance.dataset(ref.uri, version=ref.version))
    result = json.loads(executed.json())  # type: ignore[attr-defined]  # its stubs lack it
    rename_files(ref.uri, result["new_fragments"])
    renamed: RewriteResult = RewriteResult.from_json(json.dumps(result))  # type: ignore[attr-defined]
    return renamed


def commit(ref: TableRef, rewritten: Sequence[RewriteResult], *, guard: Guard = unguarded) -> TableRef:
    """Put what was written in the place of what it was made of; ``ref`` where the store refuses.

    Raises:
        CommitError: the lease on the run directory was lost, or another driver added rows in between.
    """
    dataset = lance.dataset(ref.uri, version=ref.version)
    ids = RowIds(ref.uri)
    ids.follow(dataset)
    known = _files(fragment.metadata for fragment in dataset.get_fragments())
    known |= _files(fragment for item in rewritten for fragment in item.new_fragments)
    guard()
    try:
        Compaction.commit(dataset, list(rewritten))
        sync_version(dataset)
    except REFUSALS as error:
        logger.warning("%s: keeps its small fragments (%s)", ref.uri, of_lance(error) or error)
        return ref
    files = _files(fragment.metadata for fragment in dataset.get_fragments())
    if not files <= known or dataset.count_rows() != len(ids.ids):
        raise CommitError(f"{ref.uri}: rows of another driver came in between version {ref.version} and its compaction")
    ids.rebase(dataset)
    return TableRef(uri=ref.uri, version=dataset.version)


def _files(fragments: Iterable[FragmentMetadata]) -> set[str]:
    """The files of the first columns; Lance draws their names at random."""
    return {fragment.files[0].path for fragment in fragments}
