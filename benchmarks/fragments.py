"""Files that a long pass leaves on disk, and the cost of tidying: ``python -m benchmarks.fragments``.

Manifests: ``--commits`` commits of one fragment each, as in a pass, with removal of versions at age 0 (not
``versions.KEPT_SECONDS``); the peer keeps every version.

Compaction: tables of ``--fragments`` fragments of 1,024 rows with a state of 1,024 float16, compacted to
``--fragment-mb`` by Ray tasks on this machine; the peer is Lance's own ``compact_files``, which uses all cores from one
process. Checked: the same rows in the same order. Scans of both are from the page cache.

``--tiny 25_000 100_000`` measures only tables with so many one-row fragments, as of a pass with ``chunk_rows: 1``:
seconds of each operation, and the slope between two sizes on logarithmic axes.
"""

import argparse
import math
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from benchmarks.pairs import measure
from curation.cluster.session import local_or_cluster
from curation.commands.verify import Checker, Verified
from curation.config import RayConfig
from curation.refs import TableRef
from curation.rundir.sealed import find_lost, load, seal
from curation.tables import commits, io, schemas, versions
from curation.tables.compaction import compact
from curation.tables.stream import commit_stream

ROWS, STATE = 1024, 1024


def passed(uri: str, num_fragments: int, state: int, *, commit_each: bool) -> TableRef:
    """Return the table of a pass."""
    schema = pa.schema([schemas.ROW_ID, ("state", pa.list_(pa.float16(), state))])
    io.create(uri, schema)
    committer, rng = commits.Committer(uri), np.random.default_rng(0)
    states = pa.FixedSizeListArray.from_arrays(pa.array(rng.standard_normal(ROWS * state).astype(np.float16)), state)
    for place in range(num_fragments):
        table = pa.table({"row_id": np.arange(place * ROWS, (place + 1) * ROWS), "state": states}, schema=schema)
        (row,) = commits.write_fragment(table, uri, schema).to_pylist()
        committer.add(row["fragments"], row["row_ids"])
        if commit_each:
            committer.flush()
    committer.flush()
    return io.find_latest(uri)


def manifests(directory: Path, num_commits: int) -> None:
    """Print bytes of manifests and seconds of a pass, with and without the removal of replaced versions."""
    versions.KEPT_SECONDS = 0.0
    for name, every in (("replaced versions removed", versions.EVERY), ("all versions kept", num_commits + 1)):
        versions.EVERY, begun = every, time.monotonic()
        ref = passed(str(directory / f"{every}.lance"), num_commits, 1, commit_each=True)
        seconds = time.monotonic() - begun
        files = list((Path(ref.uri) / "_versions").glob("*.manifest"))
        mb = sum(file.stat().st_size for file in files) / 1e6
        print(f"{num_commits:,} commits, {name}: {len(files):,} manifests, {mb:,.1f} MB, {seconds:.1f} s", flush=True)


def compaction(directory: Path, num_fragments: int, fragment_mb: int, num_pairs: int) -> None:
    """Print the rates of both ways to compact, and of a scan before and after."""

    def compacting(name: str, way: Callable[[TableRef], None]) -> Callable[[int], float]:
        def run(pair: int) -> float:
            ref = passed(str(directory / f"{name}-{pair}.lance"), num_fragments, STATE, commit_each=False)
            begun = time.monotonic()
            way(ref)
            seconds = time.monotonic() - begun
            newest = io.find_latest(ref.uri)
            assert newest != ref and io.read(newest, columns=["row_id"]).equals(io.read(ref, columns=["row_id"]))
            if (name, pair) != ("ours", 0):
                shutil.rmtree(ref.uri)
            return num_fragments * ROWS * STATE * 2 / 1e6 / seconds

        return run

    def scanning(ref: TableRef, columns: list[str]) -> Callable[[int], float]:
        def run(_: int) -> float:
            begun = time.monotonic()
            batches = io.open_table(ref).to_batches(columns=columns, batch_size=ROWS)
            return sum(batch.num_rows for batch in batches) / (time.monotonic() - begun)

        return run

    def lances(ref: TableRef) -> None:
        rows = fragment_mb * 2**20 // (2 * STATE + 8)
        lance.dataset(ref.uri).optimize.compact_files(target_rows_per_fragment=rows)

    def ours(ref: TableRef) -> None:
        compact(ref, fragment_mb)

    found = measure(compacting("ours", ours), compacting("peer", lances), num_pairs)
    print(found.line("compaction", "MB/s", 0.7))
    ref = io.find_latest(str(directory / "ours-0.lance"))
    small = passed(str(directory / "small.lance"), num_fragments, STATE, commit_each=False)
    counts = [len(io.open_table(table).get_fragments()) for table in (small, ref)]
    print(f"fragments: {counts[0]} before, {counts[1]} after")
    for columns in (["row_id"], ["row_id", "state"]):
        rates = measure(scanning(ref, columns), scanning(small, columns), num_pairs)
        ratio = statistics.median(rates.ratios)
        spread = f"{min(rates.ratios):.2f} to {max(rates.ratios):.2f}, {num_pairs} pairs"
        print(f"scan of {' and '.join(columns)}: compacted {ratio:.2f} times the rows/s ({spread})")


def tiny(directory: Path, num_fragments: int) -> dict[str, float]:
    """Return the seconds of each step with so many fragments of one row, and this process's peak memory in MB."""
    uri, schema = str(directory / f"tiny-{num_fragments}.lance"), pa.schema([schemas.ROW_ID])
    seconds: dict[str, float] = {}

    def timed(name: str, step: Callable[[], Any]) -> Any:
        begun = time.monotonic()
        found = step()
        seconds[name] = time.monotonic() - begun
        return found

    def write(ids: range) -> list[pa.Table]:
        tables = (pa.table({"row_id": np.array([row_id])}) for row_id in ids)
        return [commits.write_fragment(table, uri, schema) for table in tables]

    io.create(uri, schema)
    committer = commits.Committer(uri)
    written = timed("write the fragments", lambda: write(range(num_fragments)))
    timed("commit them", lambda: commit_stream(written, [committer], seconds=2.0))
    ((last,),) = (table.to_pylist() for table in write(range(num_fragments, num_fragments + 1)))
    committer.add(last["fragments"], last["row_ids"])
    timed("one more commit", committer.flush)
    ref = io.find_latest(uri)
    Path(f"{uri}.ids").unlink(missing_ok=True)
    assert len(timed("resume: read the ids", lambda: commits.read_committed_ids(uri))) == num_fragments + 1
    sealed = timed("record the digests", lambda: seal(directory, "tiny", {"table": ref.to_json()}))
    assert timed("status: existence and sizes", lambda: find_lost(directory, {"tiny": sealed})) == {}
    found = Verified(target=uri)
    checker = Checker(home=directory, found=found, redo=str)
    checker.add_files(load(directory, sealed) or {}, num_fragments, "tiny")
    timed("verify", lambda: checker.read(lambda _: None))
    assert not found.damage and found.files > num_fragments
    compacted = timed("compact", lambda: compact(ref, 256))
    assert io.count(compacted) == num_fragments + 1 and len(io.open_table(compacted).get_fragments()) == 1
    shutil.rmtree(uri)
    return seconds | {"peak memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def grown(directory: Path, sizes: Sequence[int]) -> None:
    """Print what each step takes at each size."""
    found = [tiny(directory, size) for size in sizes]
    for name in found[0]:
        slope = math.log(found[-1][name] / found[0][name]) / math.log(sizes[-1] / sizes[0]) if len(sizes) > 1 else 0
        print(f"| {name} | {' | '.join(f'{of_size[name]:,.2f}' for of_size in found)} | {slope:.2f} |")


def main() -> None:
    """Run both, or what ``--tiny`` asks for, and print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=2000)
    parser.add_argument("--fragments", type=int, default=512)
    parser.add_argument("--fragment-mb", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--tiny", type=int, nargs="+", help="fragments of one row; only this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, local_or_cluster(RayConfig(num_cpus=2)):
        if options.tiny:
            grown(Path(directory), options.tiny)
            return
        compaction(Path(directory), options.fragments, options.fragment_mb, options.pairs)
        manifests(Path(directory), options.commits)


if __name__ == "__main__":
    main()
