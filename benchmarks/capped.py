"""The best rows under a cap on labels (``selection.max_per_label``): ``python -m benchmarks.capped``.

``speed``: ``PoolScores.grouped`` selects from a Lance table of a million rows with a hundred thousand labels, whose
frequencies follow Zipf's law. The peer is pandas with the same columns in memory: a sort, ``groupby.cumcount``,
``head``. Both must give the ids of a plain loop over the sorted rows, in order, also if the table is in another order.

``risk``: whether the guarantee of a risk budget holds for the certified rows that remain under a cap. A row is right
with a probability r and has a score as in ``benchmarks.risk_simulation``. Right rows have one of ten frequent labels
with the probability ``among_right``, wrong ones with ``among_wrong``; the other labels are all different. Of each
frequent label, a cap keeps the best rows, a share ``CAP`` of the pool. The noise of all rows above a threshold, and of
those that the cap keeps, has a closed form for a large pool, so violations are exact, not estimated.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.optimize import brentq
from scipy.special import ndtr

from benchmarks.machine import peak_mb
from benchmarks.pairs import measure
from benchmarks.risk_simulation import ALPHAS, DELTA, POOL_ROWS, Scores, chess_like
from curation.arrays import Int64s
from curation.extras.caps.division import LabelKeys
from curation.hashing import hash64
from curation.metrics import compute_proportion
from curation.refs import TableRef
from curation.selection.risk import calibrate
from curation.stages.pool_scores import Groups, PoolScores
from curation.tables import io

SEED, PART_ROWS = 3, 1 << 16
NUM_FREQUENT, CAP, CALIBRATION_ROWS = 10, 0.002, 3000


def make_rows(num_rows: int, num_labels: int) -> pd.DataFrame:
    """Make rows with ids in a random-looking order; a fiftieth has no label, scores tie, common labels score higher."""
    rng = np.random.default_rng(SEED)
    weights_G = 1 / np.arange(1, num_labels + 1)
    label_N = rng.choice(num_labels, num_rows, p=weights_G / weights_G.sum())
    score_N = (rng.normal(size=num_rows) - np.log10(label_N + 1) / 2).round(4).astype(np.float32)
    ids_N = np.arange(num_rows) * 0x9E3779B1 % (1 << 40)
    text_N = np.where(rng.random(num_rows) < 0.02, None, np.char.add("label ", label_N.astype(str)).astype(object))
    return pd.DataFrame({"row_id": ids_N, "label": text_N, "trust_raw": score_N, "tie": hash64(ids_N, SEED)})


def write(rows: pd.DataFrame, uri: str) -> TableRef:
    """Write the rows as a labels table."""
    schema = pa.schema(
        [("row_id", pa.int64()), ("label", pa.string()), ("trust_raw", pa.float32()), ("error", pa.string())]
    )

    def parts() -> Iterator[pa.Table]:
        for start in range(0, len(rows), PART_ROWS):
            some = rows.iloc[start : start + PART_ROWS]
            yield pa.table(
                [pa.array(some[name]) for name in schema.names[:3]] + [pa.nulls(len(some), pa.string())], schema=schema
            )

    return io.write_parts(parts(), schema, uri)


def by_pandas(rows: pd.DataFrame, n: int, cap: int) -> Int64s:
    """Select the rows by pandas, all in memory; only rows that have a label."""
    ranked = rows[rows["label"].notna()].sort_values(["trust_raw", "tie"], ascending=[False, True])
    found: Int64s = ranked[ranked.groupby("label").cumcount() < cap].head(n)["row_id"].to_numpy()
    return found


def by_a_walk(rows: pd.DataFrame, n: int, cap: int) -> list[int]:
    """Select the rows by the rule as its description states it."""
    order_N = np.lexsort((rows["tie"], -rows["trust_raw"].to_numpy()))
    taken: list[int] = []
    with_label = Counter[str]()
    ranked = rows.iloc[order_N]
    for row_id, label in zip(ranked["row_id"].tolist(), ranked["label"].tolist(), strict=True):
        if isinstance(label, str) and with_label[label] < cap:
            with_label[label] += 1
            taken.append(row_id)
            if len(taken) == n:
                break
    return taken


def speed(num_rows: int, num_labels: int, n: int, cap: int, num_pairs: int) -> None:
    """Compare the rates of ours and of pandas, checked against the walk."""
    rows = make_rows(num_rows, num_labels)
    walked = by_a_walk(rows, n, cap)
    with tempfile.TemporaryDirectory() as folder:
        labels = write(rows, str(Path(folder) / "labels.lance"))
        other = write(rows.sample(frac=1, random_state=SEED), str(Path(folder) / "other.lance"))

        def ours(_: int, ref: TableRef = labels) -> float:
            begun = time.perf_counter()
            scores = PoolScores(labels=ref, trust="trust")
            found = scores.grouped(Groups(LabelKeys(by="label", pool=ref).reader, cap), n, SEED)
            seconds = time.perf_counter() - begun
            assert found.row_ids_n.tolist() == walked, "other rows than those of the walk"
            return num_rows / seconds

        def peer(_: int) -> float:
            begun = time.perf_counter()
            found = by_pandas(rows, n, cap)
            seconds = time.perf_counter() - begun
            assert found.tolist() == walked, "other rows than those of the walk"
            return num_rows / seconds

        before = peak_mb()
        ours(0)
        print(f"{num_rows:,} rows, {num_labels:,} labels, n = {n:,}, at most {cap} rows a label: {len(walked):,} rows")
        print(f"peak of resident memory {peak_mb():,.0f} MB, {before:,.0f} MB before the first cut")
        found = measure(ours, peer, num_pairs)
        print(f"ours {num_rows / np.median(found.ours):.2f} s with the reading of the table")
        print(found.line("capped selection", "rows/s", 1))
        ours(0, other)
        print("the rows in a random order: the same ids in the same order")


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """A model of the scores and the labels of rows."""

    scores: Scores
    among_right: float
    among_wrong: float

    def _above(self, threshold: float) -> tuple[float, float]:
        """Return the shares of the pool that are right, and wrong, and score at least that."""
        of = self.scores
        right = of.share_right * ndtr((of.shift - threshold) / of.spread)
        return float(right), float((1 - of.share_right) * ndtr(-threshold))

    def left(self, threshold: float) -> tuple[float, float]:
        """Return the share that the cap leaves of the rows past a threshold, and its noise."""
        right, wrong = self._above(threshold)

        def frequent(at: float) -> tuple[float, float]:
            right, wrong = self._above(at)
            return self.among_right * right, self.among_wrong * wrong

        most, lowest = NUM_FREQUENT * CAP, threshold
        if sum(frequent(threshold)) > most:
            lowest = float(brentq(lambda at: sum(frequent(at)) - most, threshold, 40))
        right_left, wrong_left = frequent(lowest)
        right_left += (1 - self.among_right) * right
        wrong_left += (1 - self.among_wrong) * wrong
        return (right_left + wrong_left) / (right + wrong), wrong_left / (right_left + wrong_left)


CASES = {
    "labels say nothing": (0.5, 0.5),
    "frequent labels are right": (0.8, 0.05),
    "frequent labels are wrong": (0.05, 0.8),
}


def risk(num_runs: int) -> None:
    """Count violations of the certified rows and of those that the cap leaves, over the same draws."""
    print("\n| labels | alpha | certified rows: violation % (95 %) | left of them % | rows left: violation % (95 %) |")
    print("| --- | --- | --- | --- | --- |")
    for name, (among_right, among_wrong) in CASES.items():
        for alpha in ALPHAS:
            of = Labelled(scores=chess_like(2.0), among_right=among_right, among_wrong=among_wrong)
            whole = capped = 0
            shares = []
            for run in range(num_runs):
                rng = np.random.default_rng((SEED, run))
                score_M, correct_M = of.scores.draw(CALIBRATION_ROWS, rng)
                pool_N = of.scores.draw(POOL_ROWS, rng)[0]
                threshold = calibrate(score_M, correct_M, pool_N, alpha=alpha, delta=DELTA).threshold
                if threshold is None:
                    continue
                share, noise = of.left(threshold)
                shares.append(share)
                whole += of.scores.noise(threshold) > alpha
                capped += noise > alpha
            cells = [
                f"{100 * rate.value:.1f} ({100 * rate.low:.1f}-{100 * rate.high:.1f})"
                for rate in (compute_proportion(whole, num_runs), compute_proportion(capped, num_runs))
            ]
            left = f"{100 * float(np.mean(shares)):.0f}" if shares else "-"
            print(f"| {name} | {alpha} | {cells[0]} | {left} | {cells[1]} |", flush=True)
    print(
        f"\n{num_runs:,} runs a row, delta {DELTA}, {CALIBRATION_ROWS:,} calibration rows, pools of {POOL_ROWS:,}. "
        "Above delta in any row, the guarantee does not hold under a cap, so it is withheld."
    )


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--labels", type=int, default=100_000)
    parser.add_argument("--n", type=int, default=50_000)
    parser.add_argument("--cap", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--only", choices=["speed", "risk"], nargs="+", default=["speed", "risk"])
    options = parser.parse_args()
    if "speed" in options.only:
        speed(options.rows, options.labels, options.n, options.cap, options.pairs)
    if "risk" in options.only:
        risk(options.runs)


if __name__ == "__main__":
    main()
