"""Exact top-n of many (id, score) rows: ``python -m benchmarks.top_n --rows 100_000_000``.

Our side finds the bound in passes over the scores (``curation.selection.bound``), and then reads the ids of the rows
that pass. The peer is numpy's ``argpartition`` with all rows in memory, which selects any rows at the last score; our
side breaks ties by a hash. DuckDB and Polars, if installed, compute their own top-n of the same columns. Checked: the
number of ids, the same ids above the last score as each peer, all others at that score, and once all rows of ``TopN``.

Other orders of the rows (``--orders``): contiguous parts in random order, strided and shuffled, ascending; each must
give the same bound. Generated rows (``--generate 1_000_000_000``): in a separate process, scores are generated in parts
whenever they are read, and never stored; the peak resident memory is printed for several numbers of rows. Checked:
exactly n rows pass.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.machine import peak_mb, wait_for_quiet
from benchmarks.pairs import measure
from curation.arrays import Int64s
from curation.selection import Candidates
from curation.selection.bound import (
    SLICE_ROWS,
    Batch,
    CountingPass,
    PassCounts,
    find_exact_bound,
    merge_counts,
    tally,
)
from curation.selection.top_n import TopN

Scores = npt.NDArray[np.float32]
SEED = 7
BATCH_ROWS = 1 << 20
PART_ROWS = 1 << 22
REACH = 1 / 0.7
"""Minimum ratio of the rates: our side takes at most 0.7 of the peer's time."""


def make_rows(num_rows: int) -> tuple[Int64s, Scores]:
    """Make ids in a random-looking order, and scores of which many tie: float32 has 2^24 numbers in [0.5, 1]."""
    rng = np.random.default_rng(SEED)
    scores_N = rng.random(num_rows, dtype=np.float32)
    ids_N = np.arange(num_rows) * 0x9E3779B1 % (1 << 40)
    return ids_N, scores_N


def slices(ids_N: Int64s, scores_N: Scores, size: int = BATCH_ROWS) -> Iterator[Batch]:
    """Yield the rows in their order."""
    for start in range(0, len(ids_N), size):
        yield ids_N[start : start + size], scores_N[start : start + size]


def in_threads(scan: Callable[[], Iterator[Batch]], threads: int) -> Callable[[CountingPass], PassCounts]:
    """Return passes over the rows of a scan; each thread takes the batch that is next."""

    def counted(asked: CountingPass) -> PassCounts:
        lock, source = Lock(), scan()

        def taken() -> Iterator[Batch]:
            while True:
                with lock:
                    batch = next(source, None)
                if batch is None:
                    return
                yield batch

        with ThreadPoolExecutor(threads) as pool:
            return merge_counts(pool.map(lambda _: tally(asked, taken()), range(threads)))

    return counted


def ours(ids_N: Int64s, scores_N: Scores, n: int, threads: int) -> Int64s:
    """Return the selected ids, in no order."""
    bound = find_exact_bound(in_threads(lambda: slices(ids_N, scores_N), threads), n, SEED)

    selected_n, middle = np.empty(n, dtype=np.int64), len(ids_N) // 2 if threads > 1 else len(ids_N)

    def fill(first: int, last: int, *, forwards: bool) -> None:
        """Write the ids that pass from the front or, for the second half, from the end on: exactly n pass."""
        at = 0 if forwards else n
        for batch in slices(ids_N[first:last], scores_N[first:last], SLICE_ROWS):
            some = batch[0][np.flatnonzero(bound.passes(*batch))]  # half the time of a mask
            at = at if forwards else at - len(some)
            selected_n[at : at + len(some)] = some
            at = at + len(some) if forwards else at

    with ThreadPoolExecutor(2) as pool:
        halves = [pool.submit(fill, 0, middle, forwards=True), pool.submit(fill, middle, len(ids_N), forwards=False)]
        for half in halves:
            half.result()
    return selected_n


def by_argpartition(ids_N: Int64s, scores_N: Scores, n: int) -> Int64s:
    """Select by the peer."""
    place = len(scores_N) - n
    found: Int64s = ids_N[np.argpartition(scores_N, place)[place:]]
    return found


def by_polars(ids_N: Int64s, scores_N: Scores, n: int) -> Int64s:
    """Select by Polars' own top-n."""
    import polars

    frame = polars.DataFrame({"id": ids_N, "score": scores_N})
    found: Int64s = frame.lazy().top_k(n, by="score").select("id").collect()["id"].to_numpy()
    return found


def by_duckdb(ids_N: Int64s, scores_N: Scores, n: int) -> Int64s:
    """Select by DuckDB's own top-n over the columns as an Arrow table."""
    import duckdb
    import pyarrow as pa

    rows = pa.table({"id": ids_N, "score": scores_N})
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        found: Int64s = connection.sql(f"SELECT id FROM rows ORDER BY score DESC LIMIT {n}").fetchnumpy()["id"]
    return found


def check(name: str, found_n: Int64s, ids_N: Int64s, scores_N: Scores, n: int) -> None:
    """Check that n different rows are found: all above the n-th score, and the others at it.

    Raises:
        AssertionError: others.
    """
    threshold = np.partition(scores_N, len(scores_N) - n)[len(scores_N) - n]
    above, found = np.sort(ids_N[scores_N > threshold]), np.unique(found_n)
    assert len(found) == len(found_n) == n, f"{name}: {len(found):,} different of {len(found_n):,} ids"
    rest = np.setdiff1d(found, above, assume_unique=True)
    assert len(rest) == n - len(above) and np.isin(rest, ids_N[scores_N == threshold]).all(), name


def against_peers(num_rows: int, n: int, num_pairs: int, threads: int, *, others: bool) -> None:
    """Print the rates of ours and of the peers on the same rows."""
    ids_N, scores_N = make_rows(num_rows)
    mine = ours(ids_N, scores_N, n, threads)
    check("ours", mine, ids_N, scores_N, n)
    check("argpartition", by_argpartition(ids_N, scores_N, n), ids_N, scores_N, n)
    oracle = TopN().cut(Candidates(row_ids_N=ids_N, raw_score_N=scores_N), n, SEED).row_ids_n
    assert np.array_equal(np.sort(mine), np.sort(oracle))
    print(f"checked: {n:,} of {num_rows:,} rows, the same as by TopN, and as by argpartition above the last score")

    def rate(work: Callable[[], Any]) -> Callable[[int], float]:
        def run(_: int) -> float:
            begun = time.monotonic()
            work()
            return num_rows / (time.monotonic() - begun)

        return run

    wait_for_quiet()
    way = rate(lambda: ours(ids_N, scores_N, n, threads))
    found = measure(way, rate(lambda: by_argpartition(ids_N, scores_N, n)), num_pairs)
    times = [1 / ratio for ratio in found.ratios]
    print(found.line(f"top {n:,} of {num_rows:,} against argpartition", "rows/s", REACH))
    print(
        f"seconds: ours {num_rows / statistics.median(found.ours):.2f}, "
        f"argpartition {num_rows / statistics.median(found.peers):.2f}; {statistics.median(times):.2f} of the time "
        f"({min(times):.2f} to {max(times):.2f})"
    )
    for name, peer in {"polars": by_polars, "duckdb": by_duckdb}.items() if others else ():
        try:
            check(name, peer(ids_N, scores_N, n), ids_N, scores_N, n)
        except ImportError:
            print(f"{name}: not installed, not compared")
            continue
        found = measure(way, rate(partial(peer, ids_N, scores_N, n)), 3)
        print(found.line(f"against {name}", "rows/s", REACH))


def in_other_orders(num_rows: int, n: int, threads: int, num_parts: int) -> None:
    """Print seconds and bound of the same rows in other orders and partitions."""
    ids_N, scores_N = make_rows(num_rows)
    wanted = find_exact_bound(in_threads(lambda: slices(ids_N, scores_N), threads), n, SEED)

    def contiguous() -> Iterator[Batch]:
        edges = np.linspace(0, num_rows, num_parts + 1).astype(np.int64)
        for part in np.random.default_rng(1).permutation(num_parts):
            yield ids_N[edges[part] : edges[part + 1]], scores_N[edges[part] : edges[part + 1]]

    def dealt() -> Iterator[Batch]:
        rng = np.random.default_rng(2)
        for part in rng.permutation(num_parts):
            order = rng.permutation(len(range(part, num_rows, num_parts)))
            yield ids_N[part::num_parts][order], scores_N[part::num_parts][order]

    ways = {f"{num_parts:,} parts in random order": contiguous, f"shuffled into {num_parts:,} parts": dealt}
    for name, scan in ways.items():
        begun = time.monotonic()
        assert find_exact_bound(in_threads(scan, threads), n, SEED) == wanted, name
        print(f"{name}: the same bound, {time.monotonic() - begun:.2f} s with the dealing")
    begun = time.monotonic()
    find_exact_bound(in_threads(lambda: slices(ids_N, scores_N), threads), n, SEED)
    seconds = time.monotonic() - begun
    for name, order in (("ascending", 1), ("descending", -1)):  # ids as they were: other ties, the same score
        scores_N[:] = np.sort(scores_N)[::order]
        begun = time.monotonic()
        found = find_exact_bound(in_threads(lambda: slices(ids_N, scores_N), threads), n, SEED)
        assert found.score == wanted.score, name
        print(f"{name}: the same score, {time.monotonic() - begun:.2f} s; as drawn {seconds:.2f} s")


def generated(num_rows: int, share: float, threads: int) -> dict[str, Any]:
    """Return the bound of rows that are drawn in parts as they are read; what it took."""
    n, starts = int(share * num_rows), range(0, num_rows, PART_ROWS)
    mb_before = peak_mb()

    def part(start: int) -> Iterator[Batch]:
        rng = np.random.Generator(np.random.SFC64([SEED, start]))
        for first in range(start, min(start + PART_ROWS, num_rows), BATCH_ROWS >> 2):
            size = min(BATCH_ROWS >> 2, start + PART_ROWS - first, num_rows - first)
            yield np.arange(first, first + size), rng.random(size, dtype=np.float32)

    begun, num_passes = time.monotonic(), 0
    with ThreadPoolExecutor(threads) as pool:

        def counted(asked: CountingPass) -> PassCounts:
            nonlocal num_passes
            num_passes += 1

            def of_thread(number: int) -> PassCounts:
                return tally(asked, (batch for start in starts[number::threads] for batch in part(start)))

            return merge_counts(pool.map(of_thread, range(threads)))

        bound = find_exact_bound(counted, n, SEED)
        seconds = time.monotonic() - begun
        counts = pool.map(lambda start: sum(int(bound.passes(*batch).sum()) for batch in part(start)), starts)
        num_passing = sum(counts)
    assert num_passing == n, f"{num_passing:,} rows pass, not {n:,}"
    return {
        "rows": num_rows,
        "n": n,
        "passes": num_passes,
        "seconds": seconds,
        "peak_mb": peak_mb(),
        "before_mb": mb_before,
    }


def main() -> None:
    """Run the parts that are asked for and print their lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--keep", type=float, nargs="+", default=[0.01, 0.1], help="shares that are selected")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", type=int, default=1000)
    parser.add_argument("--generate", type=int, nargs="*", default=[], help="numbers of rows that are not stored")
    parser.add_argument("--only", choices=["peers", "orders", "generate"], nargs="+")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(generated(options.rows, options.keep[0], options.threads)))
        return
    parts = options.only or ["peers", "orders", "generate"]
    if "peers" in parts:
        for place, share in enumerate(options.keep):
            n = int(share * options.rows)
            against_peers(options.rows, n, options.pairs, options.threads, others=place == 0)
    if "orders" in parts:
        in_other_orders(options.rows, int(options.keep[-1] * options.rows), options.threads, options.parts)
    if "generate" in parts:
        for num_rows in options.generate:
            command = [sys.executable, "-m", "benchmarks.top_n", "--worker", "--rows", str(num_rows)]
            command += ["--keep", str(options.keep[-1]), "--threads", str(options.threads)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(
                f"generated: top {found['n']:,} of {found['rows']:,} rows in {found['passes']} passes, "
                f"{found['seconds']:.1f} s with the drawing; peak {found['peak_mb']:,.0f} MB resident "
                f"({found['before_mb']:,.0f} MB before the first row); exactly n rows pass"
            )


if __name__ == "__main__":
    main()
