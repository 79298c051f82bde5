"""Growth of stages with rows: ``python -m benchmarks.growth --rows 10_000 100_000 1_000_000 --results growth.json``.

Each stage runs at each number of rows in a separate process. Recorded are its seconds, from the call to the return, and
the peak resident memory of that process, which is the driver, and of its largest worker. ``select`` (three arms, one in
ten rows) and ``report`` (all pool rows graded) read a table of random labels with scores; ``label`` asks the scripted
teacher with two actors, and ``grade`` compares labels in Ray tasks. ``score`` adds the raw score and the trust of a
linear probe on 64 states, and a signal. ``export`` writes the rows that an arm selected as Parquet. The report is
written as a page and as JSON.

Four stages have a peer, which does the same in a process of its own, directly after: Ray Data's ``map_batches`` +
``write_parquet`` with the same actors and the same probe for ``label`` and ``score`` (without a signal), DuckDB for
``select`` and ``export``, from the same rows as Parquet files. These files are written, and the probe is fitted, before
the clock starts. Checked: as many labels, equal scores, equal scores of the selected rows, equal exported rows.

Results are added to a file, so several calls can measure different sizes; ``--plot`` plots all of them. Printed are the
ratios to the peers and the slopes of log seconds and of log memory by log rows. With more than one size the exit code
is 1 if, for a stage with a peer, the slope of the seconds is above 1.05 or that of the driver's memory above 0.3.
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
from typing import Any, NamedTuple

import lance
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from benchmarks.machine import peak_mb, wait_for_quiet
from benchmarks.plain import Plain, write_parquet
from curation.cluster.session import local_or_cluster
from curation.config import (
    ActorsConfig,
    DecodingConfig,
    DomainConfig,
    RayConfig,
    ScriptedConfig,
    SelectionConfig,
    TeacherConfig,
    TrustConfig,
)
from curation.memory import give_back
from curation.refs import TableRef, TrustRef
from curation.stages.label_chunks import LabelJob
from curation.tables import io, schemas

DOMAIN = DomainConfig(name="benchmarks.growth:Graded")
ARMS = ("naive", "internal_confidence", "trust")
NUM_SOURCE = 10_000
KEPT = 10
"""Number of rows per selected row."""
WRITE_ROWS = 1 << 18
STATES = 64
STATE = schemas.get_state_column("output_last")
MOST_SLOPE, MOST_MEMORY_SLOPE = 1.05, 0.3
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
    write(
        folder / "states.lance", pa.schema([schemas.ROW_ID, (STATE, pa.list_(pa.float16(), STATES))]), num_rows, states
    )
    write(folder / "signal.lance", schemas.SIGNAL, num_rows, lambda ids_N: {"value": drawn(ids_N)[1]})


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


def states(ids_N: np.ndarray) -> dict[str, Any]:
    """Return hidden states, whose first dimension is higher for right labels."""
    right_N, _ = drawn(ids_N)
    states_ND = np.random.default_rng(int(ids_N[0])).standard_normal((len(ids_N), STATES), dtype=np.float32)
    states_ND[:, 0] += right_N
    return {STATE: pa.FixedSizeListArray.from_arrays(pa.array(states_ND.astype(np.float16).reshape(-1)), STATES)}


def select(folder: Path, num_rows: int) -> None:
    """Run the select stage of three arms."""
    from curation.stages.chooser import SelectJob
    from curation.stages.gold import GoldTexts
    from curation.stages.pool_scores import ScoredSplit
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
            }
            for arm in ARMS
        },
        repeats={"num_pool": num_rows, "num_rows": 0, "num_questions": 0},
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
        overlap={"pairs": [], "dropped": {}, "uncompared": {}},
        stages=[],
        passes=[],
        generations=[generation],
    )
    found = collect(replace(run, numbers={generation.name: compute_numbers(run, generation)}))
    page, _ = write_report(found, to_place(str(folder)))
    assert found["teacher"]["pool"]["n"] == num_rows and page.exists()


def label_job(folder: Path) -> LabelJob:
    """Return a job that asks the scripted teacher with two actors."""
    return LabelJob(
        examples=io.find_latest(str(folder / "pool.lance")),
        labels_uri=str(folder / "made.lance"),
        domain=DOMAIN,
        teacher=TeacherConfig(
            backend="scripted",
            chunk_rows=8192,
            scripted=ScriptedConfig(state_size=STATES),
            actors=ActorsConfig(min=2, max=2),
        ),
        model=None,
        decoding=DecodingConfig(),
        seed=0,
    )


def label(folder: Path, num_rows: int) -> None:
    """Run the label stage."""
    from curation.stages.label import RowShare
    from curation.stages.label import label as label_stage

    label_stage(label_job(folder), state_size=STATES, share=RowShare(), commit_seconds=2.0)


def label_by_ray_data(folder: Path, num_rows: int) -> None:
    """Label the same rows by ``map_batches`` and write them by ``write_parquet``."""
    job = label_job(folder)
    write_parquet(job, str(folder / "made"), job.teacher.actors)


def check_labels(folder: Path) -> None:
    """Require as many labels of ours as of the peer."""
    ours, theirs = io.find_latest(str(folder / "made.lance")), pyarrow.dataset.dataset(folder / "made")
    assert io.count(ours) == theirs.count_rows() == io.count(io.find_latest(str(folder / "pool.lance")))


def fit_probe(folder: Path) -> None:
    """Fit a linear probe on 2,000 of the states, and save it in ``folder``, before any clock starts."""
    from train.trust import fit_rows
    from train.trust_loop import LabelledRows

    ids_N = np.arange(2000)
    hidden_ND = np.asarray(states(ids_N)[STATE].flatten(), np.float16).reshape(len(ids_N), STATES)
    part_N = (ids_N % 10 == 0).astype(np.int8)
    rows = LabelledRows(hidden_ND, drawn(ids_N)[0], part_N, (STATES,), ids_N, np.zeros((len(ids_N), 0)), ())
    probe = fit_rows("linear_probe", rows, TrustConfig(), seed=0, origin={}).save(folder / "probe")
    (folder / "probe.json").write_text(json.dumps(probe.to_json()))


def read_probe(folder: Path) -> TrustRef:
    """Return the probe that :func:`fit_probe` has saved."""
    return TrustRef.from_json(json.loads((folder / "probe.json").read_text()))


def score(folder: Path, num_rows: int) -> None:
    """Run the score stage with a probe and a signal."""
    from curation.stages.score import score as score_stage

    signal = io.find_latest(str(folder / "signal.lance"))
    score_stage(io.find_latest(str(folder / "states.lance")), {"trust": read_probe(folder)}, {"signal": signal})


class Probe:
    """The probe as an actor of Ray Data."""

    def __init__(self, probe: TrustRef) -> None:
        self._probe = probe

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Return the rows with their raw scores and trust."""
        from curation.stages.score import compute_score_columns

        (rows,) = batch.combine_chunks().to_batches()
        columns = compute_score_columns(rows, {"trust": self._probe})
        return pa.table({"row_id": rows["row_id"], **columns})


def score_by_ray_data(folder: Path, num_rows: int) -> None:
    """Score the same rows by ``map_batches`` and write them by ``write_parquet``."""
    import ray.data

    ray.data.read_parquet(str(folder / "states")).map_batches(
        Probe,
        fn_constructor_args=(read_probe(folder),),
        batch_size=8192,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(min_size=2, max_size=2),
        num_cpus=1,
    ).write_parquet(str(folder / "scored"))


def check_scores(folder: Path) -> None:
    """Require equal scores of ours and of the peer."""
    names = ["row_id", "trust_raw"]
    ours = io.open_table(io.find_latest(str(folder / "states.lance"))).to_table(columns=names).sort_by("row_id")
    theirs = pyarrow.dataset.dataset(folder / "scored").to_table(columns=names).sort_by("row_id")
    assert ours["row_id"].equals(theirs["row_id"])
    np.testing.assert_allclose(ours["trust_raw"].to_numpy(), theirs["trust_raw"].to_numpy(), rtol=1e-4, atol=1e-5)


def export(folder: Path, num_rows: int) -> None:
    """Write what the arm ``trust`` selected as Parquet, as `curate export` does."""
    from curation.extras.hub.exports import write_data

    (folder / "exported").mkdir()
    selected = io.open_table(io.find_latest(str(folder / "selected" / "trust.lance")))
    write_data(selected.scanner(batch_size=1 << 14, scan_in_order=True).to_reader(), folder / "exported", "parquet")


def query(statement: str) -> None:
    """Run a statement of DuckDB on two threads."""
    import duckdb

    with duckdb.connect(config={"threads": 2}) as connection:
        connection.execute(statement)


def select_by_duckdb(folder: Path, num_rows: int) -> None:
    """Write the best rows of each arm, with their texts."""
    columns = {"naive": "hash(row_id)", "internal_confidence": "mean_logprob", "trust": "trust_raw"}
    for arm, column in columns.items():
        query(
            f"COPY (SELECT * FROM '{folder}/pool-labels/*.parquet' JOIN '{folder}/pool/*.parquet' USING (row_id) WHERE "
            f"label IS NOT NULL ORDER BY {column} DESC LIMIT {num_rows // KEPT}) TO '{folder}/{arm}.parquet'"
        )


def check_selected(folder: Path) -> None:
    """Require equal scores of the rows that ours and the peer have selected by trust."""
    ours = io.open_table(io.find_latest(str(folder / "selected" / "trust.lance"))).to_table(columns=["trust"])
    theirs = pyarrow.dataset.dataset(folder / "trust.parquet").to_table(columns=["trust_trust"])
    pair = (np.sort(ours["trust"].to_numpy()), np.sort(theirs["trust_trust"].to_numpy()))
    np.testing.assert_allclose(*pair, rtol=1e-6)


def export_by_duckdb(folder: Path, num_rows: int) -> None:
    """Copy the rows that the arm selected, which stand in a Parquet file, in their order."""
    query(f"COPY (SELECT * FROM '{folder}/selected/trust/*.parquet') TO '{folder}/copied.parquet'")


def check_exported(folder: Path) -> None:
    """Require the same rows of ours and of the peer, in the same order."""
    ours, theirs = (pyarrow.dataset.dataset(folder / name) for name in ("exported", "copied.parquet"))
    assert ours.to_table(columns=["row_id"]).equals(theirs.to_table(columns=["row_id"]))


def make_parquet(folder: Path, name: str) -> None:
    """Write a table as Parquet files of 2^18 rows, for peers that cannot read it."""
    reader = io.open_table(io.find_latest(str(folder / f"{name}.lance"))).scanner(batch_size=1 << 16).to_reader()
    pyarrow.dataset.write_dataset(
        reader,
        folder / name,
        format="parquet",
        max_rows_per_file=WRITE_ROWS,
        max_rows_per_group=1 << 16,
        preserve_order=True,
    )


def grade(folder: Path, num_rows: int) -> None:
    """Run the grade stage."""
    from curation.stages.grade import grade as grade_stage

    labels, gold, pool = (
        io.find_latest(str(folder / f"{name}.lance")) for name in ("pool-labels", "pool-gold", "pool")
    )
    grade_stage(labels, gold, pool, DOMAIN, str(folder / "graded.lance"))


STAGES: dict[str, Callable[[Path, int], None]] = {
    "select": select,
    "report": report,
    "label": label,
    "grade": grade,
    "score": score,
    "export": export,
}
"""Stages by name; ``report`` and ``export`` read what ``select`` has written."""


class Peer(NamedTuple):
    """Another engine that does the same as a stage."""

    words: str
    run: Callable[[Path, int], None]
    check: Callable[[Path], None]
    """Raises if the stage and its peer have different results."""
    reads: tuple[str, ...] = ()
    """Tables that it reads as Parquet files."""


RAY_DATA = "map_batches + write_parquet"
PEERS = {
    "label": Peer(RAY_DATA, label_by_ray_data, check_labels),
    "score": Peer(RAY_DATA, score_by_ray_data, check_scores, ("states",)),
    "select": Peer("DuckDB", select_by_duckdb, check_selected, ("pool", "pool-labels")),
    "export": Peer("DuckDB", export_by_duckdb, check_exported, ("selected/trust",)),
}
WITH_RAY = ("label", "grade", "score")


def worker(stage: str, folder: Path, num_rows: int, *, by_peer: bool) -> dict[str, Any]:
    """Run one stage, or its peer, in this process; return what it took."""
    function = PEERS[stage].run if by_peer else STAGES[stage]
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
        function(folder, num_rows)
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


def told(results: list[dict[str, Any]]) -> tuple[str, bool]:
    """Return a table in Markdown with the slopes, and whether all bars hold."""
    lines = [
        "| stage | rows | seconds | driver MB | largest worker MB | peer | its seconds | ratio |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    for item in sorted(results, key=lambda item: (item["stage"], item["rows"])):
        cells = ["", "", ""]
        if theirs := item.get("peer_seconds"):
            cells = [PEERS[item["stage"]].words, f"{theirs:.1f}", f"{theirs / item['seconds']:.2f}"]
        worker_mb = format(item["worker_mb"], ",.0f") if item["worker_mb"] else "-"
        lines.append(
            f"| {item['stage']} | {item['rows']:,} | {item['seconds']:.1f} | {item['driver_mb']:,.0f} | {worker_mb} | "
            f"{' | '.join(cells)} |"
        )
    holds = True
    for stage in dict.fromkeys(item["stage"] for item in results):
        mine = sorted((item for item in results if item["stage"] == stage), key=lambda item: item["rows"])
        if len(mine) > 1:
            rows = [item["rows"] for item in mine]
            time_slope, memory_slope = (slope(rows, [item[key] for item in mine]) for key in ("seconds", "driver_mb"))
            more = mine[-1]["driver_mb"] - mine[0]["driver_mb"]
            words = f"{stage}: slope of the seconds {time_slope:.2f}, of the driver's memory {memory_slope:.2f} "
            if stage in PEERS:
                is_met = time_slope <= MOST_SLOPE and memory_slope <= MOST_MEMORY_SLOPE
                words += f"(at most {MOST_SLOPE} and {MOST_MEMORY_SLOPE}: {'yes' if is_met else 'NO'}) "
                holds = holds and is_met
            lines.append(f"{words}from {rows[0]:,} to {rows[-1]:,} rows; driver {more:+,.0f} MB")
    return "\n".join(lines), holds


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
    parser.add_argument("--by-peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        (num_rows,) = options.rows
        print(json.dumps(worker(options.worker, Path(options.folder), num_rows, by_peer=options.by_peer)))
        return
    results = json.loads(options.results.read_text()) if options.results.exists() else []
    for num_rows in options.rows:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            folder = Path(name)
            make_tables(folder, num_rows)
            fit_probe(folder)
            for stage in options.stages:
                peer = PEERS.get(stage)
                for table in () if peer is None else peer.reads:
                    make_parquet(folder, table)
                found = measure(stage, folder, num_rows)
                if peer is not None:
                    found["peer_seconds"] = measure(stage, folder, num_rows, "--by-peer")["seconds"]
                    peer.check(folder)
                results = [item for item in results if (item["stage"], item["rows"]) != (stage, num_rows)] + [found]
                print(found, flush=True)
                options.results.write_text(json.dumps(results, indent=1) + "\n")
    words, holds = told(results)
    print(words)
    if options.plot is not None:
        plot(results, options.plot)
    sys.exit(not holds)


def measure(stage: str, folder: Path, num_rows: int, *more: str) -> dict[str, Any]:
    """Run a stage, or its peer, in a process of its own on a quiet machine; return what it took."""
    wait_for_quiet()
    command = [sys.executable, "-m", "benchmarks.growth", "--worker", stage, "--rows", str(num_rows)]
    done = subprocess.run([*command, "--folder", str(folder), *more], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
