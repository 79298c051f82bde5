"""Scoring of stored hidden states beside a bare scan of them: ``python -m benchmarks.score``.

A labels table of ``--rows`` states of 1,024 float16, in fragments of 32 MB, in the page cache. The peer is pylance's
own scanner: ``lance.dataset(uri).scanner(columns=[state]).to_batches()``, which uses all cores and discards what it
reads. Our side reads the same column, and two numbers of the answer, and computes the raw scores of every row as the
tasks of the score stage do (``curation.stages.score``): one process per core, each with one fragment at a time and one
torch thread. They are started before the clock. A slow function scores only as many fragments as take about two
seconds. The functions are fitted on synthetic rows whose labels depend on a direction of the states:

- a linear probe;
- the quickstart's network (2 blocks of 128), alone, behind 256 principal components, and five of them
  (deep ensemble);
- the paper's chess network (4 blocks of 512);
- the default, a stack: of 1,500 rows (a probe) and of 6,000 (a probe and five networks of 2 blocks of 128).

Checked for each: raw scores equal those of the fitted ``nn.Module`` itself in float32 on joined float32 inputs (to 1e-4
of their standard deviation).

The lines also give a network's GFLOP per thousand rows and its GFLOP/s, beside those of a bare PyTorch product of the
same type on this machine; and the rows per second of each part of the work alone in the same processes (reading;
centring the states; the product of the first layer; all products), and of these one after another: an
upper bound for our side, which adds activations and norms.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import lance
import numpy as np
import pyarrow as pa
import torch

from benchmarks.machine import wait_for_quiet
from benchmarks.pairs import measure
from curation.config import TrustConfig
from curation.refs import TableRef, TrustRef
from curation.tables import io, schemas
from curation.trust import load_fitted
from curation.trust.states import SCORE_ROWS, StateTrust
from train.trust import fit_rows
from train.trust_loop import LabelledRows

if TYPE_CHECKING:
    from curation.trust.states import StateTrust

WIDTH, STATE = 1024, "output_last"
COLUMN = schemas.get_state_column(STATE)
NUMBERS = ("mean_logprob", "margin")
"""Columns that a stack reads beside the states."""
FRAGMENT_ROWS = 2**25 // (2 * WIDTH)
SECONDS = 2.0
"""Approximate maximum duration of a pass of our side, in seconds, which limits its number of fragments."""
BATCH_ROWS = 4096
CORES = 2
REACH = 0.5
MAX_STEPS = 20
QUICKSTART = {"depth": 2, "width": 128, "learning_rate": 3e-4}
CHESS = {"depth": 4, "width": 512, "learning_rate": 3e-4}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fitted trust function, with the matrix products per row."""

    name: str
    trust: StateTrust
    mflop: float
    has_network: bool = True


def states(rng: np.random.Generator, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw states whose dimensions differ in place and scale, as a model's do, and which of the labels are right."""
    shared = np.random.default_rng(0)
    mean_D, scale_D = 3 * shared.standard_normal(WIDTH), np.exp(shared.standard_normal(WIDTH))
    direction_D = shared.standard_normal(WIDTH) / WIDTH**0.5
    noise_ND = rng.standard_normal((num_rows, WIDTH), dtype=np.float32)
    correct_N = rng.random(num_rows) < 1 / (1 + np.exp(-2 * (noise_ND @ direction_D)))
    return (noise_ND * scale_D + mean_D).astype(np.float16), correct_N


def numbers_of(hidden_ND: np.ndarray) -> np.ndarray:
    """Return a number of the answer each of ``NUMBERS``, float64 [N, 2]: a dimension of the states."""
    return hidden_ND[:, :2].astype(np.float64)


def write_labels(uri: str, num_rows: int) -> TableRef:
    """Return the table: row ids and states."""
    numbers = [(name, pa.float32()) for name in NUMBERS]
    schema = pa.schema([schemas.ROW_ID, (COLUMN, pa.list_(pa.float16(), WIDTH)), *numbers])
    rng = np.random.default_rng(1)

    def parts() -> Iterator[pa.RecordBatch]:
        for start in range(0, num_rows, 1 << 15):
            hidden_ND, _ = states(rng, min(1 << 15, num_rows - start))
            column = pa.FixedSizeListArray.from_arrays(pa.array(hidden_ND.reshape(-1)), WIDTH)
            numbers = [pa.array(number_N) for number_N in numbers_of(hidden_ND).T.astype(np.float32)]
            yield pa.record_batch([pa.array(np.arange(start, start + len(hidden_ND))), column, *numbers], schema)

    reader = pa.RecordBatchReader.from_batches(schema, parts())
    lance.write_dataset(reader, uri, schema=schema, max_rows_per_file=FRAGMENT_ROWS)
    return io.find_latest(uri)


def cases(only: str) -> Iterator[Case]:
    """Yield the functions to score by, each fitted when it is asked for: a few steps, for an order to keep."""
    hidden_ND, correct_N = states(np.random.default_rng(2), 6000)
    part_N = np.array([0] * 8 + [1, 2], dtype=np.int8)[np.arange(6000) % 10]
    rows = LabelledRows(hidden_ND, correct_N, part_N, (WIDTH,), np.arange(6000), numbers_of(hidden_ND), NUMBERS)

    def fitted(name: str, kind: str, num_rows: int = len(correct_N), **settings: object) -> Iterator[Case]:
        if only not in name:
            return
        torch.set_num_threads(CORES)
        config = TrustConfig(max_steps=MAX_STEPS, patience=None, **settings)
        arrays = {
            name: column[:num_rows]
            for name, column in rows._asdict().items()
            if name.endswith(("_N", "_ND", "_NK")) and column is not None
        }
        trust = fit_rows(kind, rows._replace(**arrays), config, seed=0, origin={})
        print(f"  fitted: {name}", flush=True)
        weights = products(trust)
        yield Case(name=name, trust=trust, mflop=2e-6 * weights, has_network=weights > WIDTH)

    yield from fitted("linear probe", "linear_probe")
    yield from fitted("2 x 128", "neural", **QUICKSTART)
    yield from fitted("2 x 128 behind 256 components", "neural", **QUICKSTART, pca=256)
    yield from fitted("five of 2 x 128", "deep_ensemble", **QUICKSTART)
    yield from fitted("4 x 512", "neural", **CHESS)
    yield from fitted("stack of 1,500 rows", "stacked", num_rows=1500)
    yield from fitted("stack of 6,000 rows", "stacked")


def products(trust: StateTrust) -> int:
    """Count the multiplications of a row by a function's matrices, with a projection folded into the input."""
    matrices = [weight for weight in trust.weights.values() if weight.ndim == 2]
    if not matrices:
        return WIDTH
    folded = 0 if trust.pca is None else (WIDTH - trust.pca.shape[1]) * len(matrices[0])
    return sum(weight.numel() for weight in matrices) + folded


def workers() -> ProcessPoolExecutor:
    """Return a pool with one process per core, each with one thread of torch."""
    return ProcessPoolExecutor(CORES, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,))


def ours(pool: ProcessPoolExecutor, ref: TableRef, trust: TrustRef, num_fragments: int) -> np.ndarray:
    """Return the raw scores of the first fragments, as the tasks of the score stage compute them."""
    return np.concatenate(list(pool.map(scored, repeat(ref), repeat(trust), range(num_fragments))))


def scored(ref: TableRef, trust: TrustRef, number: int) -> np.ndarray:
    """Return the raw scores of a fragment."""
    function = loaded(trust)
    return np.concatenate([function.raw_score(batch) for batch in batches(ref, number)])


@lru_cache(maxsize=1)
def loaded(trust: TrustRef) -> "StateTrust":
    """Load a function, once per process."""
    return load_fitted(trust)


def batches(ref: TableRef, number: int) -> Iterator[pa.RecordBatch]:
    """Return the states of a fragment."""
    return io.open_table(ref).get_fragments()[number].to_batches(columns=[COLUMN, *NUMBERS], batch_size=BATCH_ROWS)


def peer(ref: TableRef) -> int:
    """Read the column, and nothing else; the rows."""
    scanner = io.open_table(ref).scanner(columns=[COLUMN])
    return sum(batch.num_rows for batch in scanner.to_batches())


def timed(work: Callable[[], object], num_rows: int) -> float:
    """Return rows a second."""
    begun = time.monotonic()
    work()
    return num_rows / (time.monotonic() - begun)


def by_pair(work: Callable[[], object], num_rows: int) -> Callable[[int], float]:
    """Return the same measurement for every pair."""
    return lambda _: timed(work, num_rows)


def check(ref: TableRef, case: Case) -> str:
    """Compare with the plain float32 network, on the first rows."""
    batch = next(iter(io.open_table(ref).to_batches(columns=[COLUMN, *NUMBERS], batch_size=1 << 15)))
    hidden_ND = batch.column(COLUMN).values.to_numpy().reshape(-1, WIDTH).astype(np.float32)
    raw_N = case.trust.raw_score(batch)
    plain_N = case.trust.raw_with(torch.from_numpy(hidden_ND), numbers_of(hidden_ND), NUMBERS)
    worst = float(np.abs(raw_N - plain_N).max() / plain_N.std())
    assert worst < 1e-4, (case.name, worst)
    return f"largest difference {worst:.1e} sd"


def bound(pool: ProcessPoolExecutor, ref: TableRef, trust: StateTrust, scan: float) -> str:
    """Return rows a second of the parts of a network's work alone, and of all of them one after another."""
    shapes = [(len(w), WIDTH if "input." in name else w.shape[1]) for name, w in trust.weights.items() if w.ndim == 2]
    first = [shape for shape in shapes if shape[1] == WIDTH]
    work: dict[str, tuple[object, ...]] = {
        "reading": (read, ref),
        "centring": (centred,),
        "first product": (multiplied, first),
        "all products": (multiplied, shapes),
    }
    rates = {name: sum(pool.map(repeated, *([part] * CORES for part in parts))) for name, parts in work.items()}
    whole = 1 / sum(1 / rate for name, rate in rates.items() if name != "first product")
    told = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    return f"alone, rows/s: {told}; one after another {whole:,.0f}, {whole / scan:.2f} of the scan"


def repeated(work: Callable[..., int], *arguments: object) -> float:
    """Return rows a second of a function that returns its rows, repeated for half a second."""
    work(*arguments)
    begun, rows = time.monotonic(), 0
    while time.monotonic() - begun < 0.5:
        rows += work(*arguments)
    return rows / (time.monotonic() - begun)


def read(ref: TableRef) -> int:
    """Read the first fragment; return its number of rows."""
    return sum(batch.num_rows for batch in batches(ref, 0))


def centred() -> int:
    """Centre states in memory, one pass at a time."""
    hidden_ND, centre_D = torch.zeros(16 * SCORE_ROWS, WIDTH, dtype=torch.float16), torch.ones(WIDTH)
    for part_ND in hidden_ND.split(SCORE_ROWS):
        part_ND.to(torch.float32, copy=True).sub_(centre_D)
    return len(hidden_ND)


def multiplied(shapes: list[tuple[int, int]]) -> int:
    """Multiply rows by matrices of some shapes, 64 times."""
    pairs = [(torch.ones(SCORE_ROWS, width), torch.ones(size, width)) for size, width in shapes]
    for _ in range(64):
        for rows, weight in pairs:
            torch.nn.functional.linear(rows, weight)
    return 64 * SCORE_ROWS


def bare_products() -> float:
    """Return GFLOP/s of PyTorch's own product on as many threads as cores."""
    a, b = torch.randn(2048, 512), torch.randn(2048, 512)
    torch.set_num_threads(CORES)
    torch.nn.functional.linear(a, b)
    begun, num = time.monotonic(), 0
    while time.monotonic() - begun < 1:
        torch.nn.functional.linear(a, b)
        num += 1
    return 2e-9 * 2048 * 512 * 2048 * num / (time.monotonic() - begun)


def main() -> None:
    """Print a line a function."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16 * FRAGMENT_ROWS)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--only", default="", help="functions whose name holds this")
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    wait_for_quiet()
    print(f"bare product, {CORES} threads: {bare_products():,.0f} GFLOP/s")
    with tempfile.TemporaryDirectory(dir=options.directory) as directory, workers() as pool:
        ref = write_labels(str(Path(directory) / "labels.lance"), options.rows)
        for place, case in enumerate(cases(options.only)):
            print(f"  {check(ref, case)}", flush=True)
            trust = case.trust.save(Path(directory) / f"trust-{place}")
            ours(pool, ref, trust, CORES)
            pilot = timed(partial(ours, pool, ref, trust, CORES), CORES * FRAGMENT_ROWS)
            num = min(options.rows // FRAGMENT_ROWS, CORES * max(1, round(SECONDS * pilot / (CORES * FRAGMENT_ROWS))))
            found = measure(
                by_pair(partial(ours, pool, ref, trust, num), num * FRAGMENT_ROWS),
                by_pair(partial(peer, ref), options.rows),
                options.pairs,
            )
            rate = statistics.median(found.ours)
            print(found.line(case.name, "rows/s", REACH))
            print(f"  {case.mflop:.2f} GFLOP a thousand rows: {case.mflop * rate / 1e3:,.0f} GFLOP/s", flush=True)
            if case.has_network:
                print(f"  {bound(pool, ref, case.trust, statistics.median(found.peers))}", flush=True)


if __name__ == "__main__":
    main()
