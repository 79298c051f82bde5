"""Verification of all files of a run: ``python -m benchmarks.verify --rows 1_000_000``.

The run directory has one stage of labels (hidden states of 1,024 x float16 and a text), written as actors write them.
``curate verify`` runs in this process, in turn with the peer, which only reads the same files with as many threads.
Both read from memory, so the ratio is the largest that a disk can hide. Then the cost of digests for the writer: the
time of ``compute_quick_content`` beside the time of writing the same fragments. Finally 200 single bytes are flipped,
one at a time, in data, versions, weights, exports and manifest of a copy with fewer rows; all must be found.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
from lance.fragment import write_fragments

from curation.commands.verify import verify
from curation.rundir.manifest import Manifest
from curation.rundir.sealed import load
from curation.tables import commits, io, schemas

CHUNK_ROWS = 16_384
SIZE = 1024
SCHEMA = pa.schema(
    [schemas.ROW_ID, pa.field("completion", pa.string()), pa.field("state", pa.list_(pa.float16(), SIZE))]
)


def chunk(start: int, stop: int, seed: int) -> pa.Table:
    """Return labels of consecutive rows."""
    states_N = np.random.default_rng(seed).standard_normal(((stop - start) * SIZE), dtype=np.float32).astype(np.float16)
    states = pa.FixedSizeListArray.from_arrays(pa.array(states_N), SIZE)
    return pa.table(
        [pa.array(np.arange(start, stop)), pa.array([f"row {n}" for n in range(start, stop)]), states], SCHEMA
    )


def write(home: Path, num_rows: int) -> tuple[float, float]:
    """Write a run directory; return the seconds of writing the fragments, and of their digests."""
    uri = str(home / "label-0" / "labels.lance")
    io.create(uri, SCHEMA)
    committer, writing, digesting = commits.Committer(uri), 0.0, 0.0
    for number, start in enumerate(range(0, num_rows, CHUNK_ROWS)):
        table = chunk(start, min(start + CHUNK_ROWS, num_rows), number)
        begun = time.perf_counter()
        fragments = write_fragments(table, uri, schema=SCHEMA, mode="append")
        written = time.perf_counter()
        row = commits.make_written_row(uri, fragments, table["row_id"].to_numpy().tobytes()).to_pylist()[0]
        writing, digesting = writing + written - begun, digesting + time.perf_counter() - written
        committer.add(row["fragments"], row["row_ids"])
    committer.flush()
    (home / "model").mkdir()
    (home / "model" / "model.safetensors").write_bytes(os.urandom(1 << 20))
    (home / "trust.jsonl").write_bytes(os.urandom(1 << 16))
    outputs = {
        "labels": io.find_latest(uri).to_json(),
        "model": str(home / "model"),
        "jsonl": str(home / "trust.jsonl"),
    }
    manifest = Manifest.load(home)
    manifest.record("label", {}, outputs, rows=num_rows, seconds=1.0, sealed=manifest.seal("label", {}, outputs))
    return writing, digesting


def named(home: Path) -> list[Path]:
    """Return the files that the record names."""
    return [home / name for name in load(home, Manifest.load(home).stages["label"].sealed) or {}]


def read_alone(paths: list[Path]) -> float:
    """Read the files; return the seconds."""

    def read(path: Path) -> None:
        block = bytearray(1 << 20)
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass

    begun = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(read, paths))
    return time.perf_counter() - begun


def verified(home: Path) -> float:
    """Verify the directory; return the seconds."""
    begun = time.perf_counter()
    found = verify(str(home), lambda _: None)
    assert not found.damage, found.damage
    return time.perf_counter() - begun


def flipped(home: Path, num_flips: int) -> dict[str, tuple[int, int]]:
    """Count by kind of file how many flips were found, and how many there were."""
    rng, found = random.Random(0), dict[str, tuple[int, int]]()
    kinds = {"weights": ".safetensors", "exports": ".jsonl", "data": ".lance", "versions": ".manifest"}
    paths = {kind: [path for path in named(home) if path.suffix == suffix] for kind, suffix in kinds.items()}
    paths["manifest"] = [home / "manifest.json"]
    for number in range(num_flips):
        kind = list(paths)[number % len(paths)]
        path = rng.choice(paths[kind])
        place, mask = rng.randrange(path.stat().st_size), rng.randrange(1, 256)
        with path.open("r+b") as file:
            for _ in range(2):  # there and back
                file.seek(place)
                (byte,) = file.read(1)
                file.seek(place)
                file.write(bytes([byte ^ mask]))
                file.flush()
                if _ == 0:
                    damage = verify(str(home), lambda _: None).damage
        hit = str(path.relative_to(home)) in {item.path for item in damage}
        num_hit, num = found.get(kind, (0, 0))
        found[kind] = (num_hit + hit, num + 1)
    return found


def main() -> None:
    """Run and print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--directory", help="where to write (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        home = Path(folder) / "run"
        writing, digesting = write(home, options.rows)
        paths = named(home)
        num_bytes = sum(path.stat().st_size for path in paths)
        print(f"{options.rows:,} rows, {len(paths):,} files, {num_bytes / 1e9:.2f} GB")
        print(f"digests: {digesting:.2f} s beside {writing:.2f} s of writing, {digesting / writing:.1%}")
        read_alone(paths), verified(home)
        pairs = [(read_alone(paths), verified(home)) for _ in range(options.pairs)]
        ratios = [alone / ours for alone, ours in pairs]
        alone, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
        print(f"verify {options.rows / ours:,.0f} rows/s ({ours:.3f} s)")
        print(f"reading alone {options.rows / alone:,.0f} rows/s ({alone:.3f} s)")
        span = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"ratio {statistics.median(ratios):.2f} ({span}), {options.pairs} pairs")
        small = Path(folder) / "small"
        write(small, 20_000)
        found = flipped(small, options.flips)
        print("flipped bytes found: " + ", ".join(f"{kind} {hit} of {num}" for kind, (hit, num) in found.items()))


if __name__ == "__main__":
    main()
