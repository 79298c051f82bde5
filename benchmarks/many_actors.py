"""The cost of 2,000 actors for the process that coordinates them: ``python -m benchmarks.many_actors``.

The actors are simulated: a few Ray processes each play hundreds of them, and send the messages of actors to the work
queue of :mod:`curation.passes` in real time; so message rates are those of a real pass, but over three connections, not
2,000. No rows are answered: a chunk of ``--chunk-rows`` rows takes a wait of ``--chunk-seconds`` plus or minus a tenth,
and its result describes a fragment without files. The queue holds a table of ``--rows``, half of which are done. A
driver's threads read calls and take results, as Ray Data and a pass do.

Then a table is committed as by the driver of such a pass: ``--commits`` commits, each of the fragments of 2 s, which
Ray tasks merge meanwhile. Writing does not count.

Checked, with exit code 1 on failure: the work queue's process takes less than 0.3 cores and 1 GB; the actors get as
many chunks as they request; the last commits take at most twice as long as the first (medians of a tenth of all).
"""

import argparse
import asyncio
import json
import math
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import ray

from curation.cluster.session import local_or_cluster
from curation.config import ActorsConfig, AskConfig, RayConfig
from curation.passes.cutting import Chunk, Cutter, OpenRows
from curation.passes.messages import Call, Pass
from curation.passes.work_queue import WorkQueue
from curation.tables import commits, io, schemas
from curation.tables.row_ids import SCAN_ROWS

MOST_CPU, MOST_MB, MOST_SHORT, MOST_GROWTH = 0.3, 1000.0, 1.1, 2.0
COMMIT_SECONDS = 2.0
FRAGMENT_MB = 256
"""Default value of ``fragment_mb``."""


def open_rows(num_rows: int) -> OpenRows:
    """Return every second row of a table of so many, as if the table had been read."""
    rows = OpenRows.__new__(OpenRows)
    rows._offsets = np.empty(0, dtype=np.int64)
    rows._stretches = [
        Chunk.of(np.arange(start, min(start + SCAN_ROWS, num_rows), 2)) for start in range(0, num_rows, SCAN_ROWS)
    ]
    rows.requested = rows.left = sum(len(stretch.offsets) for stretch in rows._stretches)
    return rows


def described(fragment: str, ids_N: np.ndarray) -> pa.Table:
    """Return a row of ``commits.WRITTEN`` for a fragment that has no files: another one's, with a name of its own."""
    value = json.loads(fragment)[0]
    value |= {"physical_rows": len(ids_N), "sums": {}}
    value["files"][0]["path"] = f"{uuid.uuid4().hex}.lance"
    row = {"uri": "", "fragments": json.dumps([value]), "row_ids": ids_N.tobytes(), "time": time.time(), "note": None}
    return pa.Table.from_pylist([row], schema=commits.WRITTEN)


class Crowd:
    """A Ray actor that plays some of the simulated actors."""

    def __init__(self, queue: Any, fragment: str, chunk_seconds: float) -> None:
        self._queue, self._fragment, self._seconds = queue, fragment, chunk_seconds
        self._counts: Counter[str] = Counter()
        self._waits: list[float] = []
        self._calls: asyncio.Queue[Call] = asyncio.Queue()

    async def work(self, names: Sequence[str]) -> None:
        """Act as the actors, for as long as the process lives."""
        await asyncio.gather(*(self._actor(name) for name in names), *(self._beat(name) for name in names))

    async def give(self, call: Call) -> None:
        """Give one of the actors a call."""
        self._calls.put_nowait(call)

    async def counts(self) -> tuple[Counter[str], list[float]]:
        """Return the messages by method, and the seconds that each fetch of a chunk took, since the last time."""
        found = self._counts, self._waits
        self._counts, self._waits = Counter(), []
        return found

    async def _ask(self, method: str, *arguments: object, **named: object) -> Any:
        self._counts[method] += 1
        return await getattr(self._queue, method).remote(*arguments, **named)

    async def _actor(self, name: str) -> None:
        await self._ask("start", name, "", os.getpid())
        is_first = True
        while True:
            call = await self._calls.get()
            begun = await self._ask("begin", call, name, None)
            while begun is not None:
                await asyncio.sleep(self._seconds * random.uniform(0.0 if is_first else 0.9, 1.1))
                rows, asked, is_first = self._written(begun.chunk.offsets), time.monotonic(), False
                begun = await self._ask("finish", call, name, begun.chunk.name, rows, None, is_last=False)
                self._waits.append(time.monotonic() - asked)

    async def _beat(self, name: str) -> None:
        while True:
            await asyncio.sleep(await self._ask("beat", name, {}, ""))

    def _written(self, ids_N: np.ndarray) -> bytes:
        sink, table = pa.BufferOutputStream(), described(self._fragment, ids_N)
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return bytes(sink.getvalue().to_pybytes())


def cpu_seconds(pid: int) -> float:
    """Return the time that a process has used, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mb(pid: int) -> float:
    """Return the largest memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024


def coordinated(directory: str, options: argparse.Namespace) -> bool:
    """Print what the work queue costs, and whether it is below the bars."""
    uri, num = f"{directory}/queue.lance", options.actors
    queue: Any = ray.remote(WorkQueue).options(num_cpus=0, max_concurrency=1000).remote(wanted=num, calls=1)
    pid = ray.get(queue.__ray_call__.remote(lambda _: os.getpid()))
    asked = AskConfig(backend="scripted", chunk_rows=options.chunk_rows, actors=ActorsConfig(min=num, max=num))
    asked = asked.model_copy(update={"chunk_seconds": math.inf})  # a chunk has chunk_rows from the first one on
    this = Pass(id="pass", versions={}, actors=asked.actors)
    ray.get(queue.open.remote(this, [], open_rows(options.rows), Cutter(asked), ()))
    crowd: Any = ray.remote(Crowd).options(num_cpus=0, max_concurrency=10 * num)
    crowds: list[Any] = [crowd.remote(queue, fragment_of(uri), options.chunk_seconds) for _ in range(options.processes)]
    for place, one in enumerate(crowds):
        one.work.remote([f"actor-{number}" for number in range(place, num, len(crowds))])
    taken = Counter[str]()

    def read() -> None:  # as Ray Data does
        while (call := ray.get(queue.next.remote(taken["next"]))) is not None:
            crowds[taken["next"] % len(crowds)].give.remote(call)
            taken["next"] += 1

    def take() -> None:  # as the driver does
        while True:
            taken["parts"] += len(ray.get(queue.take.remote("pass", taken["parts"])).parts)
            taken["take"] += 1

    for loop in (read, take):
        threading.Thread(target=loop, daemon=True).start()
    time.sleep(2 * options.chunk_seconds)  # all have begun
    ray.get([one.counts.remote() for one in crowds])
    before, spent, begun = taken.copy(), cpu_seconds(pid), time.monotonic()
    time.sleep(options.seconds)
    seconds = time.monotonic() - begun
    cores, mb = (cpu_seconds(pid) - spent) / seconds, peak_mb(pid)
    counts = ray.get([one.counts.remote() for one in crowds])
    rates = sum((count for count, _ in counts), taken - before)
    waits = sorted(wait for _, some in counts for wait in some)
    print(
        f"{num:,} actors, {options.rows:,} rows, messages/s: "
        + ", ".join(f"{name} {rate / seconds:.1f}" for name, rate in sorted(rates.items()) if name != "parts")
    )
    asked_for, found = num / options.chunk_seconds, rates["parts"] / seconds
    print(
        f"chunks/s: {found:.1f} of {asked_for:.1f}; a chunk is fetched in {1000 * statistics.median(waits):.0f} ms "
        f"(median), {1000 * waits[-1]:.0f} ms at most"
    )
    return all(
        [
            bar("cores of the work queue", cores, MOST_CPU),
            bar("its memory, MB", mb, MOST_MB),
            bar("chunks/s that actors ask for / chunks/s", asked_for / found, MOST_SHORT),
        ]
    )


def committed(directory: str, num_commits: int, options: argparse.Namespace) -> bool:
    """Print how long commits take as a table grows, and whether the last ones are below the bar."""
    uri = f"{directory}/table.lance"
    io.create(uri, schemas.SIGNAL)
    committer, seconds, start = commits.Committer(uri, fragment_mb=FRAGMENT_MB), [], 0
    per_commit = round(COMMIT_SECONDS * options.actors / options.chunk_seconds)
    for _ in range(num_commits):
        for _ in range(per_commit):
            ids_N = np.arange(start, start + options.chunk_rows)
            rows = signals_of(ids_N)
            (row,) = commits.write_fragment(rows, uri, schemas.SIGNAL).to_pylist()
            committer.add(row["fragments"], row["row_ids"])
            start += options.chunk_rows
        begun = time.monotonic()
        committer.flush()
        seconds.append(time.monotonic() - begun)
    some = max(1, num_commits // 10)
    first, last = statistics.median(seconds[:some]), statistics.median(seconds[-some:])
    left = len(lance.dataset(uri).get_fragments())
    print(
        f"{num_commits:,} commits of {per_commit} fragments, {start:,} rows, {left:,} fragments at the end: the first "
        f"{1000 * first:.0f} ms, the last {1000 * last:.0f} ms (medians of {some}); the manifests "
        f"{manifests_mb(uri):,.0f} MB"
    )
    return bar("the last commit / the first", last / first, MOST_GROWTH)


def signals_of(ids_N: np.ndarray) -> pa.Table:
    """Return rows of a table of signals."""
    columns = {"row_id": ids_N, "value": ids_N.astype(np.float32), "error": pa.nulls(len(ids_N), pa.string())}
    return pa.table(columns, schema=schemas.SIGNAL)


def fragment_of(uri: str) -> str:
    """Make a table without rows; the description of a fragment for it."""
    io.create(uri, schemas.SIGNAL)
    found: str = commits.write_fragment(signals_of(np.zeros(1, np.int64)), uri, schemas.SIGNAL)["fragments"][0].as_py()
    return found


def manifests_mb(uri: str) -> float:
    """Return the size of a table's versions."""
    return sum(file.stat().st_size for file in (Path(uri) / "_versions").iterdir()) / 1e6


def bar(name: str, value: float, most: float) -> bool:
    """Print a bar and whether it holds."""
    print(f"{name}: {value:.2f}, at most {most:g}: {'yes' if value <= most else 'NO'}", flush=True)
    return value <= most


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--chunk-seconds", type=float, default=30.0)
    parser.add_argument("--chunk-rows", type=int, default=300)
    parser.add_argument("--processes", type=int, default=3, help="that play the actors")
    parser.add_argument("--seconds", type=float, default=60.0, help="of measuring")
    parser.add_argument("--commits", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, local_or_cluster(RayConfig(num_cpus=2)):
        holds = [coordinated(directory, options), committed(directory, options.commits, options)]
        sys.stdout.flush()
    sys.exit(not all(holds))


if __name__ == "__main__":
    main()
