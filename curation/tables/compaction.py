"""Compaction: rewrites many small fragments of a table as few large ones.

A pass writes one fragment per chunk, whatever its size, and each version of a table names all of its fragments. So
while a pass adds to a table, Ray tasks merge what it has written (:class:`Merger`), and a commit takes as long at its
end as at its beginning. After the pass, :func:`compact` merges what is left, in the table's own order. When the stage
is on record, the versions before are removed (:func:`curation.tables.versions.remove_older`): their files hold the
table's rows, hidden states too, a second time.

Nothing depends on compaction: if a task or the commit fails, the previous version is used. The store refuses the commit
if another driver's commit came first and named one of the old fragments; it refuses the other driver's if ours came
first.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import lance
from lance.fragment import FragmentMetadata, write_fragments
from lance.optimize import Compaction, CompactionTask, RewriteResult

from curation.errors import REFUSALS, CommitError, describe_lance_error
from curation.escaping import get_logger
from curation.heavy import ray
from curation.json_types import Json
from curation.refs import TableRef
from curation.storage.lease import Guard, guard_nothing
from curation.tables.row_ids import RowIds
from curation.tables.versions import find_changed, rename_files, sync_version
from curation.tasks import MAX_RETRIES, find_root_error, keep_off_head, run_in_tasks

logger = get_logger(__name__)

FEWEST = 16
"""Minimum number of fragments of a table that is compacted; for fewer, rewriting all rows is not worth while."""
FACTOR = 4
"""Minimum factor by which compaction must reduce the number of fragments."""
FANOUT = 256
"""Number of fragments of about the same size that are merged into one while a pass adds to a table."""
BATCH_BYTES = 16 << 20
"""Size of the batches of rows that a task reads, in bytes."""


def compact(ref: TableRef, fragment_mb: int, *, guard: Guard = guard_nothing) -> TableRef:
    """Rewrite rows in fragments of ``fragment_mb`` MiB or a little more; return ``ref`` if it gains little, or fails.

    ``CommitError``: the lease was lost, another driver added rows, or a file of the table was changed.
    """
    tasks = plan(ref, fragment_mb << 20)
    if not tasks:
        return ref
    try:  # the actors of the pass keep their CPUs for other passes
        rewritten = list(run_in_tasks(rewrite, ((ref, task) for task in tasks), beside_actors=True))
    except (*REFUSALS, ray.exceptions.RayError) as error:  # the other tasks end: ray.cancel may end this process
        _say_kept(ref.uri, "its", error)
        return ref
    return commit(ref, rewritten, guard=guard)


def plan(ref: TableRef, fragment_bytes: int) -> list[CompactionTask]:
    """Return the compaction tasks, one per new fragment; none if compaction gains little."""
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
            "batch_size": _compute_batch_rows(row_bytes),
            "num_threads": 1,
        },
    ).tasks
    num_left = len(fragments) - sum(len(task.fragments) - 1 for task in tasks)
    return tasks if num_left * FACTOR <= len(fragments) else []


def rewrite(ref: TableRef, task: CompactionTask) -> RewriteResult:
    """Write one fragment without committing; ``CommitError`` if a file was changed since it was written."""
    _require_unchanged(ref, task.fragments)
    executed = task.execute(lance.dataset(ref.uri, version=ref.version))
    result = json.loads(executed.json())  # type: ignore[attr-defined]  # its stubs lack it
    rename_files(ref.uri, result["new_fragments"])
    renamed: RewriteResult = RewriteResult.from_json(json.dumps(result))  # type: ignore[attr-defined]
    return renamed


def commit(ref: TableRef, rewritten: Sequence[RewriteResult], *, guard: Guard = guard_nothing) -> TableRef:
    """Replace the old fragments by the rewritten ones, or return ``ref`` if the store refuses; else ``CommitError``."""
    dataset = lance.dataset(ref.uri, version=ref.version)
    ids = RowIds(ref.uri)
    ids.follow(dataset)
    known = _list_first_files(fragment.metadata for fragment in dataset.get_fragments())
    known |= _list_first_files(fragment for item in rewritten for fragment in item.new_fragments)
    guard()
    try:
        Compaction.commit(dataset, list(rewritten))
        sync_version(dataset, after=ref.version)
    except REFUSALS as error:
        _say_kept(ref.uri, "its", error)
        return ref
    files = _list_first_files(fragment.metadata for fragment in dataset.get_fragments())
    if not files <= known or dataset.count_rows() != len(ids.ids):
        raise CommitError(f"{ref.uri}: rows of another driver came in between version {ref.version} and its compaction")
    ids.rebase(dataset)
    ids.save()
    return TableRef(uri=ref.uri, version=dataset.version)


class MergedFragments(NamedTuple):
    """The ids of merged fragments of a table, and the new fragments that replace them."""

    old: list[int]
    new: list[FragmentMetadata]


class Merger:
    """A merger of a table's small fragments by Ray tasks, while the table's one committer adds rows and commits.

    It merges fragments of about the same size once there are ``FANOUT`` of them, or they make a large one. So a row is
    rewritten about three times at most, and a version has a few hundred small fragments. The first one is kept, because
    each commit names it.
    """

    def __init__(self, uri: str, fragment_mb: int) -> None:
        self._uri, self._fragment_bytes = uri, fragment_mb << 20
        self._under_way: dict[ray.ObjectRef[list[Json]], list[FragmentMetadata]] = {}

    def start(self, dataset: lance.LanceDataset) -> None:
        """Start tasks that merge this version's groups of fragments that are due and not being merged yet."""
        busy = {fragment.id for group in self._under_way.values() for fragment in group}
        for group in self._iter_full_groups(fragment.metadata for fragment in dataset.get_fragments()[1:]):
            if busy.isdisjoint(fragment.id for fragment in group):
                _, where = keep_off_head(ray.nodes())  # type: ignore[no-untyped-call]
                task = ray.remote(merge).options(num_cpus=0, max_retries=MAX_RETRIES, **where)
                ids = [fragment.id for fragment in group]
                self._under_way[task.remote(TableRef(uri=self._uri, version=dataset.version), ids)] = group

    def take(self) -> list[MergedFragments]:
        """Return the fragments merged since the last call, in no version yet; ``CommitError`` if one is wrong."""
        found, tasks = [], [*self._under_way]
        for task in ray.wait(tasks, num_returns=len(tasks), timeout=0)[0] if tasks else ():
            group = self._under_way.pop(task)
            try:
                new = [FragmentMetadata.from_json(json.dumps(item)) for item in ray.get(task)]
            except (*REFUSALS, ray.exceptions.RayError) as error:
                _say_kept(self._uri, str(len(group)), error)
                continue
            before, after = (sum(fragment.physical_rows for fragment in part) for part in (group, new))
            if before != after:
                raise CommitError(f"{self._uri}: {before} rows of {len(group)} fragments became {after}")
            found.append(MergedFragments([fragment.id for fragment in group], new))
        return found

    def forget(self) -> None:
        """Drop all merges under way, since the version that they were made for is no longer the newest."""
        self._under_way = {}

    def _iter_full_groups(self, fragments: Iterable[FragmentMetadata]) -> Iterator[list[FragmentMetadata]]:
        """Yield groups of fragments of about the same size that are due to be merged."""
        levels: defaultdict[int, list[FragmentMetadata]] = defaultdict(list)
        sizes: defaultdict[int, int] = defaultdict(int)
        for fragment in fragments:
            size = max(1, sum(file.file_size_bytes or 0 for file in fragment.files))
            if size >= self._fragment_bytes:
                continue
            level = int(math.log(size, FANOUT))
            levels[level].append(fragment)
            sizes[level] += size
            num = len(levels[level])
            if num == FANOUT or (num >= FACTOR and sizes[level] >= self._fragment_bytes):
                yield levels.pop(level)
                del sizes[level]


def merge(ref: TableRef, ids: Sequence[int]) -> list[Json]:
    """Write the rows of fragments as new ones, and return their descriptions; no commit. Errors as :func:`rewrite`."""
    dataset = lance.dataset(ref.uri, version=ref.version)
    old: list[Any] = [dataset.get_fragment(number) for number in ids]
    _require_unchanged(ref, [fragment.metadata for fragment in old])
    num_bytes = sum(file.file_size_bytes or 0 for fragment in old for file in fragment.metadata.files)
    num_rows = sum(fragment.physical_rows for fragment in old)
    scanner = dataset.scanner(fragments=old, batch_size=_compute_batch_rows(num_bytes / num_rows), scan_in_order=True)
    limits = {"max_rows_per_file": num_rows, "max_bytes_per_file": 2**40}  # Lance takes 2^32 rows and more for 0
    new = write_fragments(scanner.to_reader(), ref.uri, schema=dataset.schema, mode="append", **limits)
    described: list[Json] = [fragment.to_json() for fragment in new]
    rename_files(ref.uri, described)
    return described


def _require_unchanged(ref: TableRef, fragments: Sequence[FragmentMetadata]) -> None:
    if wrong := find_changed(ref.uri, fragments):  # rewritten files would get digests of the changed content
        raise CommitError(f"{ref.uri}: the content of {len(wrong):,} of its files changed ({wrong[0]})")


def _say_kept(uri: str, which: str, error: BaseException) -> None:
    """Warn that a table keeps its small fragments; raise a ``CommitError``, which may be one of a task."""
    root = find_root_error(error)
    if isinstance(root, CommitError):
        raise root from error
    logger.warning("%s: keeps %s small fragments (%s)", uri, which, describe_lance_error(error) or error)


def _compute_batch_rows(row_bytes: float) -> int:
    return max(1, min(8192, int(BATCH_BYTES / max(1.0, row_bytes))))


def _list_first_files(fragments: Iterable[FragmentMetadata]) -> set[str]:
    """Return the file of each fragment's first columns; Lance draws the names of files at random."""
    return {fragment.files[0].path for fragment in fragments}
