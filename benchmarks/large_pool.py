"""The memory that a large pool takes: ``python -m benchmarks.large_pool --rows 10_000_000 --plot memory.svg``.

The label stage around a free teacher (scripted, float16 states, 64-wide unless ``--state-size`` says otherwise) over
one table of examples, with two actors, in a separate process; every second, the resident memory (with shared pages) of
the driver, of the largest actor and of all of Ray's processes together is recorded. Then the table of labels is
restored to versions with about 50 % and 99 % of the rows, and the stage is started again. Printed are the seconds until
the driver knows the remaining rows, and until the first new rows are committed, including the start of Ray and of an
actor.

The peer is Ray Data's own ``map_batches`` + ``write_parquet`` of the same bytes with two actors, in a separate process
too; both rates include start-up. Checked: the same rows on both sides, and for a sample of them the same states.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.dataset

from benchmarks.plain import make_examples, write_parquet
from curation.cluster.session import local_or_cluster
from curation.config import ActorsConfig, DecodingConfig, DomainConfig, RayConfig, ScriptedConfig, TeacherConfig
from curation.refs import TableRef
from curation.stages.label import RowShare, label
from curation.stages.label_chunks import LabelJob

CHUNK_ROWS = 8192
NUM_CPUS = 4
"""Number of Ray's CPUs: for two actors, and two tasks of the peer that write. With two CPUs, the peer would hang once
its object store is full, since no task could write."""
SHARES = (0.5, 0.99)


def make_job(examples: TableRef, uri: str, state_size: int) -> LabelJob:
    """Make the job by which both sides label."""
    teacher = TeacherConfig(
        backend="scripted",
        chunk_rows=CHUNK_ROWS,
        scripted=ScriptedConfig(state_size=state_size),
        actors=ActorsConfig(min=2, max=2),
    )
    return LabelJob(
        examples=examples,
        labels_uri=uri,
        domain=DomainConfig(name="benchmarks.plain:Plain"),
        teacher=teacher,
        model=None,
        decoding=DecodingConfig(),
        seed=0,
    )


def ours(examples: TableRef, target: str, state_size: int) -> None:
    """Run the label stage; print a line for each standing: rows done."""
    label(
        make_job(examples, target, state_size),
        state_size=state_size,
        share=RowShare(),
        commit_seconds=2.0,
        progress=lambda at: print(json.dumps({"rows": at.rows}), flush=True),
    )


def peer(examples: TableRef, target: str, state_size: int) -> None:
    """Write the same rows as Parquet."""
    job = make_job(examples, target, state_size)
    write_parquet(job, target, job.teacher.actors)


SIDES: dict[str, Callable[[TableRef, str, int], None]] = {"ours": ours, "peer": peer}


@dataclass
class Trace:
    """Observations of one process: its progress in rows, and its memory in MB."""

    seconds: float = 0.0
    rows: list[tuple[float, int]] = field(default_factory=list)
    memory: list[tuple[float, float, float, float]] = field(default_factory=list)
    """Seconds, and memory of the driver, of the largest actor and of all processes together, in MB."""


def watch(side: str, examples: TableRef, target: str, state_size: int, *, until: int | None = None) -> Trace:
    """Do one side in a process of its own, until it ends or is killed, as more rows than ``until`` are done."""
    command = [sys.executable, "-m", "benchmarks.large_pool", "--side", side, "--state-size", str(state_size)]
    command += ["--examples", examples.uri, "--version", str(examples.version), "--target", target]
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    reader, trace, pending = process.stdout, Trace(), b""
    os.set_blocking(reader.fileno(), False)
    sampled = 0.0
    while process.poll() is None:
        time.sleep(0.05)
        now = time.monotonic() - begun
        pending += reader.read() or b""
        *lines, pending = pending.split(b"\n")
        trace.rows += [(now, json.loads(line)["rows"]) for line in lines if line.startswith(b'{"rows"')]
        if now - sampled > 1:
            trace.memory.append((now, *_memory(process.pid)))
            sampled = now
        if until is not None and trace.rows and trace.rows[-1][1] > until:
            process.kill()
            process.wait()
            _wait_for_actors()
            break
    trace.seconds = time.monotonic() - begun
    if process.returncode > 0:
        raise SystemExit(f"{side}: exit code {process.returncode}")
    return trace


def _memory(pid: int) -> tuple[float, float, float]:
    driver = psutil.Process(pid)
    sizes: list[tuple[str, float]] = []
    for process in (driver, *driver.children(recursive=True)):
        try:
            sizes.append((" ".join(process.cmdline()), process.memory_info().rss / 2**20))
        except psutil.Error:
            continue
    actors = [size for name, size in sizes if "ModelActor" in name or "Actor)" in name]
    return sizes[0][1] if sizes else 0.0, max(actors, default=0.0), sum(size for _, size in sizes)


def _wait_for_actors() -> None:
    """Wait until Ray has ended the actors of a killed driver: until then they may write."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(
        "ModelActor" in " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ):
        time.sleep(0.5)


def put_back(uri: str, share: float, num_rows: int) -> int:
    """Make the version that had about this share of the rows the newest again; its rows."""
    dataset = lance.dataset(uri)
    versions: list[Any] = dataset.versions()
    counts = {item["version"]: lance.dataset(uri, version=item["version"]).count_rows() for item in versions}
    version = min(counts, key=lambda number: abs(counts[number] - share * num_rows))
    lance.dataset(uri, version=version).restore()
    return counts[version]


def check(labels: str, parquet: str, num_rows: int) -> None:
    """Check that both sides have the same rows."""
    other = pyarrow.dataset.dataset(parquet)
    for ids in (
        lance.dataset(labels).to_table(columns=["row_id"])["row_id"].to_numpy(),
        other.to_table(columns=["row_id"])["row_id"].to_numpy(),
    ):
        assert len(ids) == num_rows and np.array_equal(np.sort(ids), np.arange(num_rows))
    sample = f"row_id % {max(1, num_rows // 20_000)} = 0"
    columns = ["row_id", "state_output_last"]
    one = lance.dataset(labels).to_table(columns=columns, filter=sample).sort_by("row_id")
    modulo = max(1, num_rows // 20_000)
    wanted = pa.array(np.arange(0, num_rows, modulo))
    rest = other.to_table(columns=columns, filter=pyarrow.dataset.field("row_id").isin(wanted)).sort_by("row_id")
    states = [
        np.concatenate([part.flatten().to_numpy() for part in t["state_output_last"].chunks]) for t in (one, rest)
    ]
    assert len(states[0]) and np.array_equal(*states)
    print(f"checked: {num_rows:,} rows on both sides, the same states in {one.num_rows:,} of them")


def told(name: str, trace: Trace) -> str:
    """Return the memory at the end of each quarter, and its peak."""
    peaks = np.array([row[1:] for row in trace.memory]).reshape(-1, 3)
    quarters = [peaks[: max(1, len(peaks) * part // 4)].max(axis=0) for part in range(1, 5)]
    words = ("driver", "largest actor", "all processes")
    return "\n".join(
        f"  {name}, {word}: " + ", ".join(f"{quarter[place]:,.0f}" for quarter in quarters) + " MB"
        for place, word in enumerate(words)
    )


def plot(path: Path, traces: dict[str, Trace], num_rows: int) -> None:
    """Plot memory over time of both sides."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(traces), figsize=(9, 3.4), sharey=True)
    for axis, (name, trace) in zip(axes, traces.items(), strict=True):
        seconds, *series = np.array(trace.memory).T
        for word, values in zip(("driver", "largest actor", "all processes"), series, strict=True):
            axis.plot(seconds / 60, values / 1024, label=word)
        axis.set(title=f"{name}, {num_rows:,} rows", xlabel="minutes", ylim=(0, None))
    axes[0].set_ylabel("GiB resident")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--state-size", type=int, default=64)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--examples", help=argparse.SUPPRESS)
    parser.add_argument("--version", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--target", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is not None:
        with local_or_cluster(RayConfig(num_cpus=NUM_CPUS)):
            examples = TableRef(uri=options.examples, version=options.version)
            SIDES[options.side](examples, options.target, options.state_size)
        return
    with tempfile.TemporaryDirectory() as directory:
        examples = make_examples(f"{directory}/pool.lance", options.rows)
        labels, parquet = f"{directory}/labels.lance", f"{directory}/labels.parquet"
        traces = {
            "label stage": watch("ours", examples, labels, options.state_size),
            "Ray Data": watch("peer", examples, parquet, options.state_size),
        }
        check(labels, parquet, options.rows)
        rates = {name: options.rows / trace.seconds for name, trace in traces.items()}
        ratio = rates["label stage"] / rates["Ray Data"]
        print(f"{', '.join(f'{name} {rate:,.0f} rows/s' for name, rate in rates.items())}; ratio {ratio:.2f}")
        print("peak after each quarter of the time")
        print("\n".join(told(name, trace) for name, trace in traces.items()))
        for share in SHARES:
            done = put_back(labels, share, options.rows)
            again = watch("ours", examples, labels, options.state_size, until=done)
            print(
                f"resumed at {done / options.rows:.1%}: what is left is known after {again.rows[0][0]:.1f} s, "
                f"the first new rows are committed after {again.seconds:.1f} s"
            )
        if options.plot is not None:
            plot(options.plot, traces, options.rows)


if __name__ == "__main__":
    main()
