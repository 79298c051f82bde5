"""Growth of stages with rows: ``python -m benchmarks.growth --rows 10_000 100_000 1_000_000 --results growth.json``.

Each stage runs at each number of rows in a separate process. Recorded are its seconds, from the call to the return, and
the peak resident memory of that process, which is the driver, and of its largest worker. ``select`` (three arms, one in
ten rows) and ``report`` (all pool rows graded) read a table of random labels with scores; ``label`` asks the scripted
teacher with two actors, and ``grade`` compares labels in Ray tasks. The report is written as a page and as JSON.

Results are added to a file, so several calls can measure different sizes; ``--plot`` plots all of them, and prints the
slopes of log seconds and of log memory by log rows.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import lance
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.machine import peak_mb, wait_for_quiet
from benchmarks.plain import Plain
from curation.cluster.session import local_or_cluster
from curation.config import (
    ActorsConfig,
    DecodingConfig,
    DomainConfig,
    RayConfig,
    ScriptedConfig,
    SelectionConfig,
    TeacherConfig,
)
from curation.memory import give_back
from curation.refs import TableRef, TrustRef
from curation.tables import io, schemas

DOMAIN = DomainConfig(name="benchmarks.growth:Graded")
ARMS = ("naive", "internal_confidence", "trust")
NUM_SOURCE = 10_000
KEPT = 10
"""Number of rows per selected row."""
WRITE_ROWS = 1 << 18
SCORES = [pa.field(name, pa.float32()) for name in ("trust_raw", "trust_trust")]
LABELLED = pa.schema([*schemas.make_labels_schema([], "float16", 1), *SCORES])


class Graded(Plain):
    """A domain whose labels are right if they equal gold."""

    name = "graded"

    def answer(self, gold: str, example: Any) -> str:
        """Return the label."""
        return gold


def make_tables(folder: Path, num_rows: int) -> None:
    """Make tables of a pool and of a source split, in parts: examples, scored labels, gold labels and grades."""
    for split, size in (("pool", num_rows), ("source", NUM_SOURCE)):
        write(folder / f"{split}.lance", schemas.make_examples_schema(Plain.columns, gold=False), size, examples)
        write(folder / f"{split}-labels.lance", LABELLED, size, labels)
        write(folder / f"{split}-gold.lance", schemas.AUDIT, size, golds)
        write(folder / f"{split}-grades.lance", schemas.GRADES, size, grades)


def write(path: Path, schema: pa.Schema, num_rows: int, make: Callable[[np.ndarray], dict[str, Any]]) -> None:
    """Write rows with ids from 0 on; columns that ``make`` leaves out are null."""

    def parts() -> Iterator[pa.RecordBatch]:
        for start in range(0, num_rows, WRITE_ROWS):
            ids_N = np.arange(start, min(start + WRITE_ROWS, num_rows))
            columns = {"row_id": ids_N, **make(ids_N)}
            given = {name: pa.array(values, schema.field(name).type) for name, values in columns.items()}
            arrays = [given.get(field.name, pa.nulls(len(ids_N), field.type)) for field in schema]
            yield pa.record_batch(arrays, schema)

    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, parts()), str(path), schema=schema)


def drawn(ids_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw which labels are right, and a score that tells them apart somewhat."""
    rng = np.random.default_rng(int(ids_N[0]))
    right_N = rng.random(len(ids_N)) < 0.4
    return right_N, (rng.normal(size=len(ids_N)) + right_N).astype(np.float32)


def examples(ids_N: np.ndarray) -> dict[str, Any]:
    """Return one text per row."""
    return {"text": pc.binary_join_element_wise("row", pa.array(ids_N).cast(pa.string()), " ")}


def labels(ids_N: np.ndarray) -> dict[str, Any]:
    """Return labels, of which one in fifty cannot be read."""
    right_N, raw_N = drawn(ids_N)
    word_N = pa.array(np.where(ids_N % 50 == 7, 2, right_N))
    return {
        "label": pa.array(["no", "yes", None]).take(word_N),
        "completion": pa.array([" no", " yes", " perhaps"]).take(word_N),
        "mean_logprob": -np.exp(-raw_N),
        "trust_raw": raw_N,
        "trust_trust": 1 / (1 + np.exp(-raw_N)),
    }


def golds(ids_N: np.ndarray) -> dict[str, Any]:
    """Return gold labels, which are all yes."""
    return {"gold": pa.repeat("yes", len(ids_N))}


def grades(ids_N: np.ndarray) -> dict[str, Any]:
    """Return the grades as drawn; what cannot be read is wrong."""
    right_N, _ = drawn(ids_N)
    return {"correct": right_N & (ids_N % 50 != 7), "judged": np.zeros(len(ids_N), dtype=np.bool_)}


def select(folder: Path, num_rows: int) -> None:
    """Run the select stage of three arms."""
    from curation.stages.budget import ScoredSplit
    from curation.stages.chooser import SelectJob
    from curation.stages.gold import GoldTexts
    from curation.stages.select import select as select_stage
    from curation.storage.paths import to_place

    scored, n = io.find_latest(str(folder / "pool-labels.lance")), num_rows // KEPT
    job = SelectJob(
        pool=io.find_latest(str(folder / "pool.lance")),
        labels=scored,
        audit=None,
        grades=None,
        texts=GoldTexts(source="answer"),
        measured=ScoredSplit(labels=scored, grades=None),
        calibration=None,
        domain=DOMAIN,
        selection=SelectionConfig.model_validate({"budget": {"n": n}, "arms": ARMS}),
        teacher=None,
        generation=0,
        seed=0,
    )
    _, selections = select_stage(job, to_place(str(folder / "selected")))
    assert [item.num_rows for item in selections] == [n] * len(ARMS)


def report(folder: Path, num_rows: int) -> None:
    """Write the report of what was selected."""
    from curation.report import GenerationRecord, RunRecord, collect
    from curation.report import write as write_report
    from curation.report.numbers import compute_numbers
    from curation.storage.paths import to_place

    def table(name: str) -> TableRef:
        return io.find_latest(str(folder / f"{name}.lance"))

    counts = {"rows": num_rows, "unparsed": 0, "truncated": 0, "errors": {}}
    same = {"auc": {"value": 0.5, "low": 0.4, "high": 0.6, "n": 10}, "p_value": 0.5, "num_source": 5, "num_pool": 5}
    generation = GenerationRecord(
        index=0,
        teacher=None,
        student_base=None,
        labels={split: table(f"{split}-labels") for split in ("pool", "source")},
        grades={split: table(f"{split}-grades") for split in ("pool", "source")},
        trust=TrustRef(uri="trust", digest="00"),
        trust_fit={
            "kind": "neural",
            "num_fit": NUM_SOURCE,
            "share_right_fit": 0.4,
            "num_repeats": 0,
            "choice": None,
        },
        selections={arm: table(f"selected/{arm}") for arm in ARMS},
        formats={
            arm: {
                "format": "rollout",
                "completion_source": "weak",
                "format_note": None,
                "median_characters": 3.0,
                "num_rows": num_rows // KEPT,
                "num_questions": num_rows // KEPT,
            }
            for arm in ARMS
        },
        repeats={"num_pool": num_rows, "num_rows": 0, "num_questions": 0, "most": 0, "example": None},
        budget={
            "n": num_rows // KEPT,
            "rule": "n",
            "reference": "trust",
            "oracle": False,
            "threshold": None,
            "risk": None,
        },
        shift={"source": {**same, "differs": False, "strength": "none shown", "warning": None}},
        tests={},
        label_counts={"pool": counts, "source": {**counts, "rows": NUM_SOURCE}},
        projection=None,
        asked={},
        unread={},
        too_long={},
        training={},
    )
    run = RunRecord(
        name="growth",
        config={
            "name": "growth",
            "trust": {},
            "evaluation": {"margin": 0.02},
            "splits": {"pool": {"from": "a"}, "calibration": None, "probes": {}},
        },
        config_path=None,
        seed=0,
        versions={},
        command="benchmarks.growth",
        domain=Graded(),  # type: ignore[arg-type]
        prepared={"pool": table("pool"), "source": table("source")},
        prepare_counts={"pool": {"rows": num_rows, "errors": {}}, "source": {"rows": NUM_SOURCE, "errors": {}}},
        overlap={"pairs": [], "dropped": {}, "repeats": {}, "uncompared": {}},
        stages=[],
        passes=[],
        generations=[generation],
    )
    found = collect(replace(run, numbers={generation.name: compute_numbers(run, generation)}))
    page, _ = write_report(found, to_place(str(folder)))
    assert found["trust"]["pool"]["all"]["num_rows"] == num_rows and page.exists()


def label(folder: Path, num_rows: int) -> None:
    """Run the label stage around the scripted teacher."""
    from curation.stages.label import RowShare
    from curation.stages.label import label as label_stage
    from curation.stages.label_chunks import LabelJob

    job = LabelJob(
        examples=io.find_latest(str(folder / "pool.lance")),
        labels_uri=str(folder / "made.lance"),
        domain=DOMAIN,
        teacher=TeacherConfig(
            backend="scripted",
            chunk_rows=8192,
            scripted=ScriptedConfig(state_size=64),
            actors=ActorsConfig(min=2, max=2),
        ),
        model=None,
        decoding=DecodingConfig(),
        seed=0,
    )
    label_stage(job, state_size=64, share=RowShare(), commit_seconds=2.0)


def grade(folder: Path, num_rows: int) -> None:
    """Run the grade stage."""
    from curation.stages.grade import grade as grade_stage

    labels, gold, pool = (
        io.find_latest(str(folder / f"{name}.lance")) for name in ("pool-labels", "pool-gold", "pool")
    )
    grade_stage(labels, gold, pool, DOMAIN, str(folder / "graded.lance"))


STAGES: dict[str, Callable[[Path, int], None]] = {"select": select, "report": report, "label": label, "grade": grade}
WITH_RAY = ("label", "grade")


def worker(stage: str, folder: Path, num_rows: int) -> dict[str, Any]:
    """Run one stage in this process; return what it took."""
    give_back()  # as every driver does
    peak, ended = [0.0], Event()

    def watch() -> None:
        while not ended.wait(0.3):
            for child in psutil.Process().children(recursive=True):
                try:
                    if child.name().startswith("ray::"):
                        peak[0] = max(peak[0], child.memory_info().rss / 2**20)
                except psutil.Error:
                    continue

    def run() -> float:
        Thread(target=watch, daemon=True).start()
        begun = time.monotonic()
        STAGES[stage](folder, num_rows)
        ended.set()
        return time.monotonic() - begun

    if stage in WITH_RAY:
        with local_or_cluster(RayConfig(num_cpus=4)):
            seconds = run()
    else:
        seconds = run()
    return {"stage": stage, "rows": num_rows, "seconds": seconds, "driver_mb": peak_mb(), "worker_mb": peak[0]}


def slope(rows: list[float], values: list[float]) -> float:
    """Return the slope of the least-squares line through the logarithms."""
    return float(np.polyfit(np.log(rows), np.log(values), 1)[0])


def told(results: list[dict[str, Any]]) -> str:
    """Return a table in Markdown, and the slopes."""
    lines = ["| stage | rows | seconds | driver MB | largest worker MB |", "| --- | ---: | ---: | ---: | ---: |"]
    for item in sorted(results, key=lambda item: (item["stage"], item["rows"])):
        lines.append(
            f"| {item['stage']} | {item['rows']:,} | {item['seconds']:.1f} | {item['driver_mb']:,.0f} | "
            f"{item['worker_mb'] or '-' if not item['worker_mb'] else format(item['worker_mb'], ',.0f')} |"
        )
    for stage in dict.fromkeys(item["stage"] for item in results):
        mine = sorted((item for item in results if item["stage"] == stage), key=lambda item: item["rows"])
        if len(mine) > 1:
            rows, seconds = [item["rows"] for item in mine], [item["seconds"] for item in mine]
            pair = slope(rows[-2:], seconds[-2:])
            more = mine[-1]["driver_mb"] - mine[max(0, len(mine) - 3)]["driver_mb"]
            lines.append(
                f"{stage}: slope of the time {slope(rows, seconds):.2f} over all sizes, {pair:.2f} over the last two; "
                f"driver +{more:,.0f} MB from {mine[max(0, len(mine) - 3)]['rows']:,} to {rows[-1]:,} rows"
            )
    return "\n".join(lines)


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """Plot seconds and memory by rows, both on logarithmic axes of rows."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    for place, stage in enumerate(dict.fromkeys(item["stage"] for item in results)):
        mine = sorted((item for item in results if item["stage"] == stage), key=lambda item: item["rows"])
        rows = [item["rows"] for item in mine]
        left.plot(rows, [item["seconds"] for item in mine], "o-", color=f"C{place}", label=stage)
        right.plot(rows, [item["driver_mb"] for item in mine], "o-", color=f"C{place}", label=f"{stage}, driver")
        if any(item["worker_mb"] for item in mine):
            right.plot(rows, [item["worker_mb"] for item in mine], "s--", color=f"C{place}", label=f"{stage}, worker")
    left.set(xscale="log", yscale="log", xlabel="rows", ylabel="seconds")
    right.set(xscale="log", xlabel="rows", ylabel="MB resident, peak", ylim=(0, None))
    left.legend()
    right.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Measure what is asked for, and print all results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--stages", choices=STAGES, nargs="+", default=list(STAGES))
    parser.add_argument("--results", type=Path, default=Path("growth.json"))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--folder", help="for the tables, instead of the default for temporary files")
    parser.add_argument("--worker", choices=STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(worker(options.worker, Path(options.folder), options.rows[0])))
        return
    results = json.loads(options.results.read_text()) if options.results.exists() else []
    for num_rows in options.rows:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            make_tables(Path(folder), num_rows)
            for stage in options.stages:
                wait_for_quiet()
                command = [sys.executable, "-m", "benchmarks.growth", "--worker", stage, "--rows", str(num_rows)]
                done = subprocess.run([*command, "--folder", folder], check=True, stdout=subprocess.PIPE, text=True)
                found = json.loads(done.stdout.splitlines()[-1])
                results = [item for item in results if (item["stage"], item["rows"]) != (stage, num_rows)] + [found]
                print(found, flush=True)
                options.results.write_text(json.dumps(results, indent=1) + "\n")
    print(told(results))
    if options.plot is not None:
        plot(results, options.plot)


if __name__ == "__main__":
    main()
