"""The cost of storing hidden states, and the savings of scoring without it: ``python -m benchmarks.fused_scoring``.

A free teacher (scripted, 1,024 numbers a state, float16) labels, and the paper's chess trust function (4 blocks of 512,
random weights) scores, in two ways in turn, as whole stages with their start-up:

- states stored: the label stage stores them, and the score stage reads them (``teacher.store_states: true``);
- fused: the actors score, and store the states of a sample of the rows (``false``): 5,000 of a pool of a million.

Checked on every row by id: fused scores equal those of stored states to float16's precision. Bytes are those of the
data files on disk; a teacher without cost shows the largest possible differences in rows/s.
"""

import argparse
import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import ray
import ray.data
import torch

from benchmarks.pairs import Ratios
from benchmarks.plain import Plain, make_examples
from curation.config import ActorsConfig, DecodingConfig, DomainConfig, ScriptedConfig, TeacherConfig, TrustConfig
from curation.refs import TableRef
from curation.stages.label import RowShare, label
from curation.stages.label_chunks import LabelJob
from curation.stages.score import ScoredOnly, score
from curation.tables import io
from curation.tables.schemas import get_state_column
from curation.trust.neural import Architecture, NeuralTrust, NeuralTrustNet

WIDTH = 1024
STATE = "output_last"
POOL_ROWS = 1_000_000
"""Size of the pool that the rows stand for; its sampling rate decides which rows' states are kept."""
PRECISION = 2.0**-10
"""Relative precision of float16."""


def trust_function() -> NeuralTrust:
    """Return the chess preset's network with random weights."""
    torch.manual_seed(0)
    net = NeuralTrustNet(Architecture.of(TrustConfig(preset="strategy_games"), WIDTH))
    return NeuralTrust(net, (STATE,), {})


def labelled(directory: Path, examples: TableRef, reduction: ScoredOnly | None = None) -> TableRef:
    """Return all rows labelled by a free teacher."""
    job = LabelJob(
        examples=examples,
        labels_uri=str(directory / "labels.lance"),
        domain=DomainConfig(name=f"{Plain.__module__}:{Plain.__name__}"),
        teacher=TeacherConfig(
            backend="scripted",
            scripted=ScriptedConfig(state_size=WIDTH),
            chunk_rows=1024,
            actors=ActorsConfig(min=2, max=2),
        ),
        model=None,
        decoding=DecodingConfig(),
        seed=0,
        reduction=reduction,
    )
    return label(job, state_size=WIDTH, share=RowShare(), commit_seconds=2.0).table


def run(directory: Path, num_rows: int, num_turns: int) -> str:
    """Run both ways in turn; return what they measured, in lines."""
    examples = make_examples(str(directory / "examples.lance"), num_rows)
    whole = {"neural": trust_function().save(directory / "whole")}
    fuse = ScoredOnly(fitted=tuple(whole.items()), states=(STATE,), num_rows=POOL_ROWS, seed=0)
    ways: dict[str, Callable[[Path], TableRef]] = {
        "stored": lambda where: score(labelled(where, examples), whole, {}),
        "fused": lambda where: labelled(where, examples, fuse),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    size: dict[str, float] = {}
    for turn in range(num_turns):
        found = {}
        for name in [*ways][turn % 2 :] + [*ways][: turn % 2]:
            begun = time.monotonic()
            found[name] = ways[name](directory / name)
            rates[name].append(num_rows / (time.monotonic() - begun))
            files = (directory / name / "labels.lance" / "data").iterdir()
            size[name] = sum(file.stat().st_size for file in files) / num_rows
        compared = check(found["stored"], found["fused"], num_rows)
        sample = io.count(found["fused"], filter=f"{get_state_column(STATE)} IS NOT NULL")
        print(f"  turn {turn}: " + ", ".join(f"{name} {rates[name][-1]:,.0f} rows/s" for name in ways), flush=True)
        for name in ways:
            shutil.rmtree(directory / name)
    lines = [f"  {compared}"]
    lines += [f"  {name}: {size[name]:,.1f} bytes a row, {median(rates[name]):,.0f} rows/s" for name in ways]
    scored = size["fused"] - 2 * WIDTH * sample / num_rows
    lines.append(f"  of the fused: the states of {sample:,} rows, and {scored:,.1f} bytes a row")
    ratios = Ratios(ours=rates["fused"], peers=rates["stored"]).ratios
    lines.append(
        f"fused against states stored, labelling and scoring of {num_rows:,} rows: "
        f"{size['stored'] / size['fused']:.1f} times fewer bytes a row, rows/s ratio {median(ratios):.3f} "
        f"(range {min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} turns)"
    )
    return "\n".join(lines)


def check(stored: TableRef, fused: TableRef, num_rows: int) -> str:
    """Return the largest difference of the trust scores, row by row.

    Raises:
        AssertionError: other rows, or scores that differ by more than float16's precision.
    """
    one, other = (io.read(ref, ["row_id", "neural_raw", "neural_trust"]).sort_by("row_id") for ref in (stored, fused))
    assert one.num_rows == other.num_rows == num_rows
    assert one["row_id"].equals(other["row_id"])
    differences = []
    for name in ("neural_raw", "neural_trust"):
        a_N, b_N = one[name].to_numpy(), other[name].to_numpy()
        assert np.isfinite(a_N).all()
        np.testing.assert_allclose(b_N, a_N, rtol=PRECISION, atol=PRECISION)
        differences.append(float(np.abs(a_N - b_N).max()))
    return (
        f"checked {num_rows:,} rows: scores differ by at most {differences[0]:.2g} raw, {differences[1]:.2g} in trust"
    )


def main() -> None:
    """Run and print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8_192)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as directory:
        print(run(Path(directory), options.rows, options.turns))


if __name__ == "__main__":
    main()
