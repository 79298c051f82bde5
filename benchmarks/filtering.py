"""Filtering of a large table by a stored score: ``python -m benchmarks.filtering --rows 400_000``.

Rows have about 700 bytes of text and a trust score; one in ten passes a threshold. For each of these, the domain
renders the prompt, and the row is written to Parquet (zstd) with text, prompt, completion, label, trust and source
file.

Our side is the part of ``curate filter`` after labelling and scoring: ``curation.filter.stages.cut.decide`` makes the
cut over the labels table, and ``curation.filter.stages.pool.Write`` joins it with the pool's table and writes.
The peers read one Parquet table that has all of these columns already, so they need no join:

- Ray Data: ``read_parquet``, ``filter`` by an expression, ``map_batches``, ``write_parquet``, on the same Ray as ours;
- Hugging Face ``datasets``: ``from_parquet``, ``filter``, ``map``, ``to_parquet`` (in its own compression), two
  processes, without a cache;
- datatrove: ``ParquetReader``, ``LambdaFilter``, ``ParquetWriter``, two workers;
- NeMo Curator: ``ParquetReader``, ``Filter``, a stage of ours for the prompt, ``ParquetWriter``, on its
  ``RayDataExecutor``, which shuts Ray down, so each run starts its own.

All sides have two cores, and run once before they are measured. Times exclude imports and the start of Ray, but include
processes that ``datasets`` and datatrove start in each run. A peer that is not installed is named and skipped. Our time
excludes writing the pool's table, which ``curate filter`` does when it reads the files; its seconds are printed.
Checked: every side writes the same rows, with all columns equal and the text identical byte for byte.
"""

import argparse
import importlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq
import ray
import ray.data

from benchmarks.pairs import Ratios, in_turn
from benchmarks.plain import Plain
from curation.config import DomainConfig, SourceConfig
from curation.config.filter import KeepConfig
from curation.domains import Example
from curation.filter.stages.cut import decide
from curation.filter.stages.pool import PoolRows, Write, read_pool
from curation.refs import TableRef
from curation.sources import discover
from curation.stages.prepare import SplitWriting
from curation.tables import io, schemas

DOMAIN = DomainConfig(name="benchmarks.filtering:Asked")
FUNCTION = "neural"
THRESHOLD = float(np.float32(0.9))
NUM_FILES = 8
CORES = 2
ROWS_PER_FILE = 100_000
COMPRESSION = "zstd"
SCHEMA = pa.schema(
    [
        ("row_id", pa.int64()),
        *((name, pa.string()) for name in ("text", "prompt", "completion", "label")),
        ("trust", pa.float32()),
        ("trust_raw", pa.float32()),
        ("source_file", pa.string()),
    ]
)
"""Schema of the rows that every side writes."""


class Asked(Plain):
    """A domain whose prompt asks about a text."""

    name = "asked"

    def read(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the text."""
        return {"text": raw["text"]}

    def prompt(self, example: Example, *, shots: Any = ()) -> str:
        """Return the text in a template."""
        return f"Read this:\n{example['text']}\nIs it true? Answer with yes or no, and say why.\n"


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The input tables of all sides, with the same rows."""

    rows: PoolRows
    pool: TableRef
    labels: TableRef
    joined: tuple[str, ...]
    """Paths of the peers' Parquet files."""


def paragraphs(rng: np.random.Generator, num: int, num_words: int) -> pa.Array:
    """Make up texts."""
    letters = list("abcdefghijklmnopqrstuvwxyz")
    words = np.array(["".join(rng.choice(letters, rng.integers(2, 10))) for _ in range(5000)])
    return pa.array([" ".join(words[rng.integers(0, len(words), num_words)]) for _ in range(num)])


def make_tables(directory: Path, num_rows: int) -> Tables:
    """Make the pool as a user has it, read as ``curate filter`` does; its labels; and for the peers all joined."""
    rng = np.random.default_rng(0)
    texts, answers = paragraphs(rng, 20_000, 80), paragraphs(rng, 20_000, 30)
    source, joined = directory / "source", directory / "joined"
    source.mkdir(), joined.mkdir()
    sizes = np.diff(np.linspace(0, num_rows, NUM_FILES + 1).astype(int))
    for number, size in enumerate(sizes):
        numbers = pa.array(np.arange(size)).cast(pa.string())
        text = pc.binary_join_element_wise(numbers, texts.take(pa.array(rng.integers(0, len(texts), size))), " ")
        pq.write_table(pa.table({"text": text}), source / f"{number:02}.parquet")
    rows = PoolRows(files=tuple(discover(SourceConfig(path=str(source)))), domain=DOMAIN, columns=())
    begun = time.monotonic()
    pool = read_pool(rows, str(directory / "pool.lance"), SplitWriting()).pool
    seconds = time.monotonic() - begun
    print(f"the pool's table, which curate filter writes when it reads the files: {seconds:.2f} s, not in ours")

    def parts() -> Iterator[pa.Table]:
        for file, size in zip(rows.files, sizes, strict=True):
            trust_N = rng.random(size, dtype=np.float32)
            yield pa.table(
                {
                    "row_id": (file.index << schemas.FILE_SHIFT) + np.arange(size),
                    "text": pq.read_table(file.path)["text"],
                    "completion": answers.take(pa.array(rng.integers(0, len(answers), size))),
                    "label": pa.array(["yes", "no"]).take(pa.array(rng.integers(0, 2, size))),
                    "trust": trust_N,
                    "trust_raw": trust_N,
                    "source_file": pa.repeat(file.path, size),
                }
            )

    uri = str(directory / "labels.lance")
    for number, part in enumerate(parts()):
        pq.write_table(part, joined / f"{number:02}.parquet", row_group_size=ROWS_PER_FILE // 4)
        labels = part.select(["row_id", "completion", "label"])
        labels = labels.append_column("error", pa.nulls(len(part), pa.string()))
        labels = labels.append_column(schemas.get_raw_column(FUNCTION), part["trust"])
        labels = labels.append_column(schemas.trust_column(FUNCTION), part["trust"])
        lance.write_dataset(labels, uri, mode="append" if number else "create")
    files = tuple(str(path) for path in sorted(joined.iterdir()))
    return Tables(rows=rows, pool=pool, labels=io.find_latest(uri), joined=files)


def ours(tables: Tables, target: Path, scratch: Path) -> None:
    """Make the cut, and write the files."""
    found = decide([tables.labels], FUNCTION, KeepConfig(threshold=THRESHOLD), None, seed=0)
    stage = Write(
        name="write",
        labels=tables.labels,
        examples=tables.pool,
        rows=tables.rows,
        threshold=found.threshold,
        function=FUNCTION,
        output=str(target),
        form="parquet",
    )
    stage.write("part")


def with_prompts(rows: pa.Table) -> pa.Table:
    """Return the rows with a prompt each, in the order of the output."""
    domain = Asked()
    prompts = [domain.prompt({"text": text}) for text in rows["text"].to_pylist()]
    return rows.append_column("prompt", pa.array(prompts, pa.string())).select(SCHEMA.names)


def by_ray_data(joined: list[str], target: Path, scratch: Path) -> None:
    """Filter by Ray Data's own operators."""
    from ray.data.expressions import col

    rows = ray.data.read_parquet(joined).filter(expr=col("trust") >= THRESHOLD)
    rows.map_batches(with_prompts, batch_format="pyarrow").write_parquet(str(target), compression=COMPRESSION)


def by_datasets(joined: list[str], target: Path, scratch: Path) -> None:
    """Filter by Hugging Face ``datasets``."""
    import datasets

    domain = Asked()
    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_parquet(joined, cache_dir=str(scratch), num_proc=CORES)
    kept = rows.filter(
        lambda trust: [value >= THRESHOLD for value in trust], batched=True, input_columns=["trust"], num_proc=CORES
    )
    asked = kept.map(
        lambda text: {"prompt": [domain.prompt({"text": each}) for each in text]},
        batched=True,
        input_columns=["text"],
        num_proc=CORES,
    )
    asked.to_parquet(str(target / "rows.parquet"))  # it takes no compression


def by_datatrove(joined: list[str], target: Path, scratch: Path) -> None:
    """Filter by a pipeline of datatrove, one file per task."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.filters import LambdaFilter
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.writers import ParquetWriter

    def row(_: Any, document: Any) -> dict[str, Any]:
        prompt = Asked().prompt({"text": document.text})
        values = {"row_id": document.id, "text": document.text, "prompt": prompt, **document.metadata}
        return {name: values[name] for name in SCHEMA.names}

    LocalPipelineExecutor(
        [
            ParquetReader(str(Path(joined[0]).parent), text_key="text", id_key="row_id"),
            LambdaFilter(lambda document: document.metadata["trust"] >= THRESHOLD),
            ParquetWriter(str(target), adapter=row, compression=COMPRESSION, schema=SCHEMA),
        ],
        tasks=len(joined),
        workers=CORES,
        logging_dir=str(scratch / "logs"),
    ).run()


def by_nemo_curator(joined: list[str], target: Path, scratch: Path) -> None:
    """Filter by a pipeline of NeMo Curator, one file per task."""
    from nemo_curator.backends.ray_data import RayDataExecutor
    from nemo_curator.pipeline import Pipeline
    from nemo_curator.stages.function_decorators import processing_stage
    from nemo_curator.stages.text.filters import Filter
    from nemo_curator.stages.text.io.reader import ParquetReader
    from nemo_curator.stages.text.io.writer import ParquetWriter
    from nemo_curator.tasks import DocumentBatch

    @processing_stage(name="prompts")
    def prompts(batch: DocumentBatch) -> DocumentBatch:
        return DocumentBatch(
            dataset_name=batch.dataset_name,
            data=with_prompts(pa.Table.from_pandas(batch.to_pandas(), preserve_index=False)),
            _metadata=batch._metadata,
            _stage_perf=batch._stage_perf,
        )

    pipeline = Pipeline(name="filtering")
    pipeline.add_stage(ParquetReader(file_paths=joined, files_per_partition=1))
    pipeline.add_stage(Filter(filter_fn=lambda trust: trust >= THRESHOLD, filter_field="trust"))
    pipeline.add_stage(prompts)
    pipeline.add_stage(ParquetWriter(path=str(target), write_kwargs={"compression": COMPRESSION}))
    pipeline.run(RayDataExecutor())


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A peer: a library that does the same work."""

    module: str
    """Module without which the peer cannot be imported."""
    work: Callable[[list[str], Path, Path], None]
    """Function that reads the files and writes to the first folder; the second folder is for temporary files."""
    is_alone: bool = True
    """Whether the peer must run in a separate process, since it forks or shuts Ray down."""
    needs_ray: bool = False


PEERS = {
    "ray_data": Peer(module="ray.data", work=by_ray_data, is_alone=False),
    "datasets": Peer(module="datasets", work=by_datasets),
    "datatrove": Peer(module="datatrove.pipeline.readers", work=by_datatrove),
    "nemo_curator": Peer(module="nemo_curator.stages.text.filters", work=by_nemo_curator, needs_ray=True),
}


def alone(name: str, joined: list[str], target: Path, scratch: Path) -> float:
    """Return the seconds of a peer's work in a process of its own, once it has its imports, and its Ray is warm."""
    command = [sys.executable, "-m", "benchmarks.filtering", "--alone", name, str(target), str(scratch), *joined]
    environment = {**os.environ, "LOGURU_LEVEL": "ERROR"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment)
    if found.returncode:
        raise RuntimeError(f"{name}: {found.stderr[-3000:]}")
    return float(found.stdout.split()[-1])


def run_alone(name: str, target: Path, scratch: Path, joined: list[str]) -> float:
    """Run :func:`alone` in a process; return its result."""
    peer = PEERS[name]
    importlib.import_module(peer.module)
    if peer.needs_ray:
        start_ray()
        ray.data.range(CORES * 2, override_num_blocks=CORES * 2).map_batches(warm).count()
    begun = time.monotonic()
    peer.work(joined, target, scratch)
    return time.monotonic() - begun


def warm(batch: dict[str, Any]) -> dict[str, Any]:
    """Do what a worker does for the first time: an import, and a batch."""
    import pandas  # noqa: F401

    return batch


def start_ray() -> None:
    """Start Ray with as many CPUs as a side may use."""
    ray.init(num_cpus=CORES, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)


def rows_of(target: Path) -> pa.Table:
    """Return what a side wrote, in the order of the ids."""
    files = sorted(str(path) for path in target.rglob("*.parquet"))
    return pyarrow.dataset.dataset(files).to_table(columns=SCHEMA.names).cast(SCHEMA).sort_by("row_id")


def installed(names: Iterable[str]) -> Iterator[str]:
    """Yield the names of the peers whose module can be imported; the others are said."""
    for name in names:
        command = [sys.executable, "-c", f"import {PEERS[name].module}"]
        found = subprocess.run(command, capture_output=True, text=True)
        if found.returncode == 0:
            yield name
        else:
            print(f"{name}: not installed, not compared ({found.stderr.strip().splitlines()[-1]})")


def compare(directory: Path, num_rows: int, num_turns: int, only: list[str]) -> None:
    """Print a line a peer."""
    tables = make_tables(directory, num_rows)
    names = list(installed(only or PEERS))
    size = sum(os.path.getsize(path) for path in tables.joined)
    print(f"{num_rows:,} rows, {size / 1e6:,.0f} MB of Parquet", flush=True)

    def rate(name: str) -> float:
        target, scratch = directory / name, directory / "scratch"
        for folder in (target, scratch):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        if name != "ours" and PEERS[name].is_alone:
            seconds = alone(name, list(tables.joined), target, scratch)
        else:
            begun = time.monotonic()
            if name == "ours":
                ours(tables, target, scratch)
            else:
                PEERS[name].work(list(tables.joined), target, scratch)
            seconds = time.monotonic() - begun
        print(f"  {name}: {seconds:.2f} s", flush=True)
        return num_rows / seconds

    sides = ["ours", *names]
    for name in sides:
        rate(name)
    wanted = rows_of(directory / "ours")
    assert 0.09 * num_rows < wanted.num_rows < 0.11 * num_rows, wanted.num_rows
    for name in names:
        assert rows_of(directory / name).equals(wanted), f"{name}: wrote other rows"
    print(f"checked: {wanted.num_rows:,} rows pass, the same from every side, all columns equal")
    rates = in_turn({name: partial(rate, name) for name in sides}, num_turns)
    for name in names:
        print(Ratios(ours=rates["ours"], peers=rates[name]).line(f"filter by score against {name}", "rows/s", 1.0))


def main() -> None:
    """Compare, or run one peer once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=list(PEERS), default=[], help="peers to compare with")
    parser.add_argument("--directory", type=Path, help="where to make the tables; a temporary folder")
    parser.add_argument("--alone", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        name, target, scratch, *joined = options.alone
        print(run_alone(name, Path(target), Path(scratch), joined))
        return
    start_ray()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        compare(Path(directory), options.rows, options.turns, options.only)


if __name__ == "__main__":
    main()
