"""The cost of resuming after a kill: ``python -m benchmarks.resume --rows 10_000_000``.

There are a table of examples and a table of the completed ones, in 0, 50 or 99 % of the chunks at random, both with ids
only. Two ways to find the remaining rows, each in a separate process:

- ours: the start of a driver, ``commits.Committer`` and the chunks of ``passes.cutting``, without and with the cache of
  ids (``row_ids``) that commits leave;
- the peer: the same two columns of ids as pyarrow tables, ``np.sort`` of the completed ones and one ``np.isin``.

Checked: both find the same rows. Printed: seconds, and peak memory above that of the imports.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import write_fragments

from curation.arrays import Int64s
from curation.passes.cutting import Chunk, OpenRows
from curation.refs import TableRef
from curation.tables import commits, io, schemas
from curation.tables.row_ids import RowIds

SCHEMA = pa.schema([schemas.ROW_ID])
CHUNK_ROWS = 1024
SHARES = (0.0, 0.5, 0.99)

Left = list[Chunk] | list[Int64s]
"""Remaining rows, as chunks or as offsets in the table of examples."""


def ours(examples: TableRef, uri: str) -> Left:
    """Return the chunks that a driver would hand out."""
    done = commits.Committer(uri).done
    return list(OpenRows(examples, lambda ids_N: np.ones(len(ids_N), dtype=np.bool_), done).chunks(CHUNK_ROWS))


def peer(examples: TableRef, uri: str) -> Left:
    """Return the offsets by numpy: the ids of both tables as arrays, sorted and held against each other."""
    done_M = np.sort(lance.dataset(uri).to_table(columns=["row_id"])["row_id"].to_numpy())
    ids_N = io.open_table(examples).to_table(columns=["row_id"])["row_id"].to_numpy()
    return [np.flatnonzero(np.isin(ids_N, done_M, assume_unique=True, invert=True))]


def measured(way: Callable[[TableRef, str], Left], examples: TableRef, uri: str) -> dict[str, float]:
    """Return seconds, MB and what was found, from a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        text: str = pool.apply(_measure, (way, examples, uri))
    found: dict[str, float] = json.loads(text)
    return found


def _measure(way: Callable[[TableRef, str], Left], examples: TableRef, uri: str) -> str:
    before = _peak_mb()
    begun = time.monotonic()
    left = way(examples, uri)
    seconds = time.monotonic() - begun
    peak = _peak_mb() - before
    offsets = [part.offsets if isinstance(part, Chunk) else part for part in left]
    num_left, total = sum(map(len, offsets)), sum(int(part.sum()) for part in offsets)
    return json.dumps({"seconds": seconds, "mb": peak, "num_left": num_left, "total": total})


def _peak_mb() -> float:
    """Return the peak memory of this program alone: ``getrusage`` counts what its parent held, too."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


def written(uri: str, ids: list[np.ndarray]) -> TableRef:
    """Return a table of ids, a fragment an array."""
    io.create(uri, SCHEMA)
    fragments = [
        fragment
        for part in ids
        for fragment in write_fragments(pa.table({"row_id": part}, schema=SCHEMA), uri, schema=SCHEMA, mode="append")
    ]
    version = lance.dataset(uri).version
    if fragments:
        version = lance.LanceDataset.commit(uri, lance.LanceOperation.Append(fragments), read_version=version).version
    return TableRef(uri=uri, version=version)


def run(directory: Path, num_rows: int, fragment_rows: int) -> str:
    """Run both ways at each share; return what they measured, in lines."""
    ids_N = (3 << 40) + np.arange(num_rows, dtype=np.int64)
    examples = written(str(directory / "examples.lance"), np.array_split(ids_N, max(1, num_rows // 50_000)))
    rng = np.random.default_rng(0)
    chunks = np.array_split(ids_N, max(1, num_rows // CHUNK_ROWS))
    order = rng.permutation(len(chunks))
    lines = []
    for share in SHARES:
        done = [rng.permutation(chunks[place]) for place in order[: round(share * len(chunks))]]
        every = max(1, fragment_rows // CHUNK_ROWS)
        parts = [np.concatenate(done[place : place + every]) for place in range(0, len(done), every)]
        table = written(str(directory / f"done-{share}.lance"), parts)
        found = {
            name: measured(way, examples, table.uri) for name, way in (("peer", peer), ("ours without cache", ours))
        }
        ids = RowIds(table.uri)
        ids.follow(lance.dataset(table.uri))
        ids.save()
        found["ours"] = measured(ours, examples, table.uri)
        assert {item["num_left"] for item in found.values()} == {num_rows - sum(map(len, done))}
        assert len({item["total"] for item in found.values()}) == 1
        told = ", ".join(f"{name} {item['seconds']:.2f} s and {item['mb']:,.0f} MB" for name, item in found.items())
        lines.append(f"{share:.0%} of {num_rows:,} rows done, {len(parts):,} fragments: {told}")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Run and print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--fragment-rows", type=int, default=1024, help="rows of a fragment of what is done")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        run(Path(directory), options.rows, options.fragment_rows)


if __name__ == "__main__":
    main()
