"""Diversity of the selected labels, and the selected rows as a share of the pool's right labels.

Of a pool of more than ``MOST_GRADED`` rows the labels of a sample are counted; their number and perplexity are then
lower bounds, marked as such.
"""

import numpy as np
import pyarrow as pa

from curation.arms import ARMS, TRUST, Configured, Fitted
from curation.hashing import derive
from curation.json_types import Json
from curation.report.record import GenerationRecord
from curation.report.rows import MOST_GRADED, SAMPLE, GradedRows, read_scores
from curation.tables import io

MUCH = 0.5
"""Share of the right labels above which wrong ones are selected too, unless trust ranks almost without error."""


def count_labels(labels: pa.ChunkedArray, num_rows: int) -> Json:
    """Count the different ones of ``num_rows`` labels, or of a sample of them, and their perplexity.

    Perplexity is the exponential of the entropy of the labels' shares: k for k equally frequent labels.
    """
    count_G = labels.value_counts().field("counts").to_numpy()
    share_G = count_G / max(len(labels), 1)
    return {
        "num_rows": num_rows,
        "num_labels": len(count_G),
        "perplexity": float(np.exp(-(share_G * np.log(share_G)).sum())) if len(count_G) else None,
        "largest": float(share_G.max()) if len(count_G) else None,
        "is_bound": len(labels) < num_rows,
    }


def measure_diversity(
    record: GenerationRecord, arm: str | None, num_pool: int, pool: GradedRows | None, seed: int
) -> Json:
    """Return label counts of each arm and of the pool's parsed rows, and n as a share of the expected right labels.

    ``arm`` is the arm shown. If the pool is graded, the share of right labels is scaled up to all labelled rows.
    Otherwise the expected number is the sum of the arm's trust over the parsed rows, if that trust is calibrated.
    """
    labels, functions = record.labels["pool"], []
    if pool is None and arm is not None and isinstance(TRUST[ARMS[arm].trust], Fitted | Configured):
        functions = [ARMS[arm].trust]
    rows = read_scores(labels, functions, share=min(1.0, MOST_GRADED / max(num_pool, 1)), seed=derive(seed, SAMPLE))
    num_parsed, parsed_N = io.count(labels, f"({io.make_answered_filter(labels)}) AND label IS NOT NULL"), rows.parsed_N
    arms = {}
    for name, ref in record.selections.items():
        selected = io.read(ref, ["label"], "label IS NOT NULL")["label"]
        arms[name] = count_labels(selected, len(selected))
    expected, right = None, None
    if pool is not None and len(pool):
        expected = pool.share_right().value * num_pool
    elif rows.scores:
        (score,) = rows.scores.values()
        expected = float(score.trust_N[parsed_N].sum()) * num_parsed / max(int(parsed_N.sum()), 1)
    if expected is not None:
        share = record.n / expected if expected else None
        much = share is None or share > MUCH
        basis = "trust" if pool is None else "audit"
        right = {"basis": basis, "expected": expected, "n": record.n, "share": share, "is_much": much}
    return {"arms": arms, "pool": count_labels(rows.label_N.drop_null(), num_parsed), "right": right}
