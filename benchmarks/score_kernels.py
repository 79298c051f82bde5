"""Potential of faster kernels for the scoring of a small network: ``python -m benchmarks.score_kernels``.

``benchmarks.score`` measures our scoring of rows of 1,024 float16 by a network of 2 blocks of 128, and its parts.
This measures, in memory and on one core, two alternatives:

- ``torch.compile`` (Inductor) of the same folded network, which fuses norms, gates and sums; needs a C++ compiler;
- the product of the first layer in bfloat16 or int8 instead of float32, and the rounding of the states to these.

Checked: compiled logits equal ours to 0.0001. All alternatives run in turn.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from curation.trust.folded import FoldedNets
from curation.trust.neural import Architecture, NeuralTrustNet

SIZE, WIDTH, DEPTH = 1024, 128, 2
TOLERANCE = 1e-4


def network(rows: int) -> tuple[FoldedNets, torch.Tensor]:
    """Make an unfitted network, folded as it scores, and rows of standard normal states, float16 [rows, 1024]."""
    torch.manual_seed(0)
    shape = Architecture(
        input_size=SIZE, width=WIDTH, depth=DEPTH, expansion=2.0, dropout=0, stochastic_depth=0, standardise=True
    )
    return FoldedNets([NeuralTrustNet(shape).eval()], None), torch.randn(rows, SIZE).half()


def kernels(rows: int) -> dict[str, Callable[[], object]]:
    """Return what is timed, by name; each works on the same rows."""
    folded, states_BD = network(rows)

    def eager() -> torch.Tensor:
        return folded([states_BD])

    compiled = torch.compile(lambda columns: folded(columns), dynamic=False)
    expected_MB = eager()  # first: it splits the weights, which Inductor cannot
    start = time.perf_counter()
    with torch.inference_mode():
        apart = float((compiled([states_BD]) - expected_MB).abs().max())
    print(f"torch.compile took {time.perf_counter() - start:.1f} s; its logits differ by at most {apart:.4f}")
    if apart > TOLERANCE:
        raise RuntimeError(f"compiled logits differ by {apart}, more than {TOLERANCE}")
    scale_D = torch.rand(SIZE) + 1
    weight_WD = (30 * torch.randn(WIDTH, SIZE)).to(torch.int8)
    input_BD = (30 * torch.randn(rows, SIZE)).to(torch.int8)
    weight_bf_WD, input_bf_BD = weight_WD.bfloat16(), input_BD.bfloat16()
    weight_float_WD, input_float_BD = weight_WD.float(), input_BD.float()

    def to_int8() -> torch.Tensor:
        return states_BD.to(torch.float32, copy=True).mul_(scale_D).round_().clamp_(-127, 127).to(torch.int8)

    def to_bfloat16() -> torch.Tensor:
        return states_BD.to(torch.float32, copy=True).sub_(scale_D).bfloat16()

    return {
        "ours": eager,
        "ours, compiled": lambda: compiled([states_BD]),
        "first product, float32": lambda: torch.nn.functional.linear(input_float_BD, weight_float_WD),
        "first product, bfloat16": lambda: torch.nn.functional.linear(input_bf_BD, weight_bf_WD),
        "first product, int8": lambda: torch._int_mm(input_BD, weight_WD.t()),
        "centring and rounding to bfloat16": to_bfloat16,
        "scaling and rounding to int8": to_int8,
    }


def main() -> None:
    """Time all kernels in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=512, help="rows of a pass")
    parser.add_argument("--turns", type=int, default=15)
    given = parser.parse_args()
    torch.set_num_threads(1)
    timed = kernels(given.rows)
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    with torch.inference_mode():
        for _ in range(given.turns):
            for name, kernel in timed.items():
                start = time.perf_counter()
                for _ in range(16):
                    kernel()
                seconds[name].append((time.perf_counter() - start) / (16 * given.rows) * 1e6)
    for name, taken in seconds.items():
        print(f"{name:36} {statistics.median(taken):.2f} µs a row ({min(taken):.2f} to {max(taken):.2f})")


if __name__ == "__main__":
    main()
