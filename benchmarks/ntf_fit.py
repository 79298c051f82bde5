"""The cost of a fit beside a plain PyTorch loop, scikit-learn, and parallel fits: ``python -m benchmarks.ntf_fit``.

The rows are synthetic: float16 states of 64 factors of decreasing variance with noise, and labels that depend on six of
the factors, partly by products and squares, and on chance. There are 50,000 rows to fit on, 1 % more to validate on,
and 20 % more that no fit sees, on which every AUC is computed.

1. ``fit_arrays`` against two plain loops: the same network, initial weights, fused AdamW, batch order, dropout masks
   and class weights, and as many evaluations on the same rows (20 in all, AUC by scikit-learn). One plain loop converts
   and standardises each batch of float16 rows, the other has all rows standardised in float32 beforehand. The clock
   runs from the first batch to the last evaluation; checked: both have the same losses and weights. Start-up is the
   time before, and is measured for a new process too: from its start, including imports, to the end of its first step
   and evaluation, with the states mapped from a file.
2. Each kind against scikit-learn's. The linear probe and the trees call scikit-learn themselves, so their peer computes
   the same thing, which is checked; the network's peer is an MLP with as many weights.
3. Parallel trials, see ``benchmarks.ntf_at_once``.

All sides run in turn, in one process and with the same threads. Ratios are medians over turns, with the range. On a
shared machine each measurement waits until it is quiet, for at most a minute or ``BENCHMARK_WAIT_SECONDS``; turns in
which other processes kept more than a quarter of a core busy are dropped. If fewer than three turns remain, all are
used, and the ratio of CPU time must meet the bounds, as load hardly affects it with one thread. The exit code is 1 if a
bound is missed.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import sklearn
import torch
from torch import Tensor, nn

from benchmarks.machine import Busy, quiet
from benchmarks.pairs import in_turn, spread
from curation.config import TrustConfig
from curation.hashing import derive
from curation.trust.neural import Architecture, NeuralTrust, NeuralTrustNet
from curation.trust.parts import FIT, VALIDATION
from train.trust_loop import MIN_EVALUATIONS, LabelledRows, _iter_batches, fit_arrays

Logits = npt.NDArray[np.floating[Any]]

SEED = 0
FACTORS = 64
HELD_OUT = -1
SMALL = {"depth": 2, "width": 128}
SIZES: dict[str, dict[str, int]] = {"2 x 128": SMALL, "4 x 512": {"depth": 4, "width": 512}}
EPOCHS = {"2 x 128": 2, "4 x 512": 1}
TIMES, START_SECONDS = 1.1, 5.0
"""Maximum ratio of a fit's time to the peer's, and maximum seconds until its first step."""


def make_rows(num_fit: int, size: int, seed: int = SEED) -> LabelledRows:
    """Make rows of all parts, those that no fit sees last."""
    counts = {FIT: num_fit, VALIDATION: max(200, num_fit // 100), HELD_OUT: num_fit // 5}
    num, rng = sum(counts.values()), np.random.default_rng(seed)
    factors_NK = rng.standard_normal((num, FACTORS), dtype=np.float32)
    directions_KD = rng.standard_normal((FACTORS, size), dtype=np.float32)
    directions_KD *= np.sqrt(1 / np.arange(1, FACTORS + 1, dtype=np.float32))[:, None]
    hidden_ND = factors_NK @ directions_KD
    hidden_ND += rng.standard_normal((num, size), dtype=np.float32)
    hidden_ND *= rng.uniform(0.1, 3, size).astype(np.float32)
    hidden_ND += rng.uniform(-2, 2, size).astype(np.float32)
    a, b, c, d, e, f = factors_NK[:, [0, 3, 7, 12, 20, 30]].T
    value_N = a + b + 1.5 * c * d + e**2 - 1 + f + rng.logistic(size=num)
    part_N = np.repeat([*counts], [*counts.values()]).astype(np.int8)
    return LabelledRows(
        hidden_ND.astype(np.float16), value_N > 0.5, part_N, (size,), np.arange(len(part_N)), np.empty((len(part_N), 0))
    )


class Course(NamedTuple):
    """The course of a fit."""

    start_seconds: float
    """Seconds until the first batch is requested."""
    seconds: float
    """Seconds from the first batch to the last evaluation."""
    cpu_seconds: float
    others: float
    """Number of cores that other processes kept busy meanwhile."""
    losses: list[float]
    aucs: list[float]
    weights: dict[str, Tensor]


class _Clock:
    """A timer of a fit from the first request of batches to the last evaluation."""

    def __init__(self) -> None:
        self.begun, self.ended, self.cpu_begun, self.cpu_ended = 0.0, 0.0, 0.0, 0.0

    def batches(self, *arguments: Any) -> Iterator[npt.NDArray[np.int64]]:
        """Return the batches of ``trust_loop``; the first request starts the clock."""
        if not self.begun:
            self.begun, self.cpu_begun = time.perf_counter(), time.process_time()
            self.busy = Busy()
        return _iter_batches(*arguments)

    def note(self, done: int, total: int, words: str) -> None:
        """Stop the clock after an evaluation; the last one counts."""
        self.ended, self.cpu_ended = time.perf_counter(), time.process_time()


def ours(rows: LabelledRows, config: TrustConfig) -> Course:
    """Measure ``fit_arrays``."""
    clock, begun = _Clock(), time.perf_counter()
    new_net = partial(NeuralTrustNet, Architecture.of(config, rows.hidden_ND.shape[1]))
    with patch("train.trust_loop._iter_batches", clock.batches):
        found = fit_arrays(rows, config, new_net, NeuralTrust, seed=SEED, origin={}, note=clock.note)
    weights = {name: parameter.detach() for name, parameter in found.net.named_parameters()}
    return Course(
        clock.begun - begun,
        clock.ended - clock.begun,
        clock.cpu_ended - clock.cpu_begun,
        clock.busy.others(),
        found.fit["losses"],
        found.fit["validation_aucs"],
        weights,
    )


def plain(rows: LabelledRows, config: TrustConfig, *, ahead: bool) -> Course:
    """Measure a loop by hand; ``ahead``: all rows are converted and standardised before it."""
    from sklearn.metrics import roc_auc_score

    begun = time.perf_counter()
    fit_F, validation_V = torch.from_numpy(rows.places(FIT)), torch.from_numpy(rows.places(VALIDATION))
    hidden_ND, correct_N = torch.from_numpy(rows.hidden_ND), torch.from_numpy(rows.correct_N).float()
    wide_FD = hidden_ND[fit_F].double()
    mean_D, scale_D = wide_FD.mean(0).float(), wide_FD.std(0, unbiased=False).float()
    del wide_FD
    if ahead:
        hidden_ND = hidden_ND.float().sub_(mean_D).div_(scale_D)
    share = float(correct_N[fit_F].mean())
    wrong, right = (float((0.5 / part) ** config.class_weight) for part in (1 - share, share))
    weight_N = torch.where(correct_N > 0, right, wrong)

    def inputs(rows_B: Tensor) -> Tensor:
        return hidden_ND[rows_B] if ahead else (hidden_ND[rows_B].float() - mean_D) / scale_D

    torch.manual_seed(derive(SEED, "trust weights"))
    bare = config.model_copy(update={"standardise": False})
    net = NeuralTrustNet(Architecture.of(bare, hidden_ND.shape[1]))
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    started, cpu_started, busy = time.perf_counter(), time.process_time(), Busy()
    losses, aucs = [], []
    batches: list[Tensor] = []
    epoch = 0
    interval = -(-config.max_steps // MIN_EVALUATIONS)
    for done in range(0, config.max_steps, interval):
        torch.manual_seed(derive(SEED, f"trust step {done} shard 0"))  # for the same masks
        net.train()
        loss_sum, num_rows = torch.zeros(()), 0
        for _ in range(min(interval, config.max_steps - done)):
            if not batches:
                order_F = np.random.default_rng([SEED, epoch]).permutation(fit_F.numpy())
                batches, epoch = list(torch.from_numpy(order_F).split(config.batch_size))[::-1], epoch + 1
            rows_B = batches.pop()
            loss = nn.functional.binary_cross_entropy_with_logits(
                net(inputs(rows_B)), correct_N[rows_B], weight=weight_N[rows_B]
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss_sum += loss.detach() * len(rows_B)
            num_rows += len(rows_B)
        losses.append(float(loss_sum) / num_rows)
        net.eval()
        with torch.inference_mode():
            logit_V = net(inputs(validation_V))
        aucs.append(float(roc_auc_score(correct_N[validation_V], logit_V)))
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    weights = {name: parameter.detach() for name, parameter in net.named_parameters()}
    return Course(started - begun, seconds, cpu_seconds, busy.others(), losses, aucs, weights)


def agreement(one: Course, other: Course) -> str:
    """Return how far apart two fits are, which must be no more than rounding."""
    weights = max(float((one.weights[name] - other.weights[name]).abs().max()) for name in one.weights)
    losses = max(abs(a - b) / abs(b) for a, b in zip(one.losses, other.losses, strict=True))
    assert losses < 1e-4, f"other losses: {one.losses} and {other.losses}"
    assert max(abs(a - b) for a, b in zip(one.aucs, other.aucs, strict=True)) < 1e-3, (one.aucs, other.aucs)
    if weights == losses == 0:
        return f"{len(one.losses)} losses and all weights equal to the bit"
    return f"{len(one.losses)} losses within {losses:.0e}, weights within {weights:.0e}"


def beside_plain(rows: LabelledRows, nets: Sequence[str], num_turns: int) -> bool:
    """Do part 1; return whether its bounds hold."""
    print(
        "\n| net | peer | same? | epoch, ours / peer, s | ratio | of CPU time | turns | start, ours / peer, s | holds |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    held = True
    for name in nets:
        shape, epochs = SIZES[name], EPOCHS[name]
        steps = epochs * -(-len(rows.places(FIT)) // TrustConfig().batch_size)
        config = TrustConfig.model_validate({**shape, "learning_rate": 1e-4, "max_steps": steps, "patience": None})
        found = in_turn(
            {
                "ours": partial(ours, rows, config),
                "plain loop, float16 rows": partial(plain, rows, config, ahead=False),
                "plain loop, rows standardised beforehand": partial(plain, rows, config, ahead=True),
            },
            num_turns,
        )
        ours_all = found.pop("ours")
        for peer, peers_all in found.items():
            turns = quiet(ours_all, peers_all)
            mine, theirs = turns.ours, turns.peers
            ratios, cpu_ratios = turns.ratios(lambda fit: fit.seconds), turns.ratios(lambda fit: fit.cpu_seconds)
            holds = statistics.median(ratios if turns.are_quiet else cpu_ratios) <= TIMES
            held &= holds
            times, starts = (
                " / ".join(f"{statistics.median(values):.2f}" for values in pair)
                for pair in (
                    ([course.seconds / epochs for course in side] for side in (mine, theirs)),
                    ([course.start_seconds for course in side] for side in (mine, theirs)),
                )
            )
            same, words = agreement(mine[0], theirs[0]), turns.words
            cells = (name, peer, same, times, spread(ratios), spread(cpu_ratios), words, starts)
            print(f"| {' | '.join(cells)} | <= {TIMES}: {'yes' if holds else 'NO'} |", flush=True)
    return held


FIRST_STEP = """
import sys
import numpy as np
import torch
from curation.config import TrustConfig
from train.trust import fit_neural
from train.trust_loop import LabelledRows
torch.set_num_threads(int(sys.argv[2]))
arrays = [np.load(f"{sys.argv[1]}/{name}.npy", mmap_mode="r") for name in ("hidden_ND", "correct_N", "part_N")]
num = len(arrays[0])
rows = LabelledRows(*arrays, (arrays[0].shape[1],), np.arange(num), np.empty((num, 0)))
fit_neural(rows, TrustConfig(max_steps=1, patience=None), seed=0, origin={})
"""


class Start(NamedTuple):
    """The start of a new process."""

    seconds: float
    cpu_seconds: float
    others: float
    """Number of cores that other processes kept busy meanwhile."""


def start_up(rows: LabelledRows, threads: int, num_turns: int) -> bool:
    """Measure the time of a new process until its first step; return whether the bound holds."""
    with tempfile.TemporaryDirectory() as directory:
        for name, array in rows._asdict().items():
            np.save(Path(directory) / f"{name}.npy", array)

        def start() -> Start:
            busy, begun, before = Busy(), time.perf_counter(), os.times()
            subprocess.run([sys.executable, "-c", FIRST_STEP, directory, str(threads)], check=True)
            seconds, after = time.perf_counter() - begun, os.times()
            cpu_seconds = sum(after[2:4]) - sum(before[2:4])
            return Start(seconds, cpu_seconds, busy.others())

        turns = quiet(found := in_turn({"start": start}, num_turns)["start"], found)
    seconds, cpu_seconds = [one.seconds for one in turns.ours], [one.cpu_seconds for one in turns.ours]
    holds = statistics.median(seconds if turns.are_quiet else cpu_seconds) <= START_SECONDS
    print(
        f"\nA new process until the end of its first step (4 x 512): {spread(seconds, '.1f')} s, of CPU time "
        f"{spread(cpu_seconds, '.1f')} s; {turns.words}; <= {START_SECONDS:.0f}: {'yes' if holds else 'NO'}"
    )
    return holds


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=7, help="turns of every comparison; kinds take a half of them")
    parser.add_argument("--nets", nargs="+", choices=SIZES, default=[*SIZES], help="of the first part")
    parser.add_argument("--threads", type=int, default=1, help="of either side")
    parser.add_argument("--epochs", type=int, default=10, help="of the kinds beside scikit-learn")
    parser.add_argument("--steps", type=int, default=400, help="of a trial")
    parser.add_argument("--parts", nargs="+", choices=("plain", "start", "kinds", "trials"))
    return parser.parse_args(arguments)


def main() -> int:
    """Run it and print what it found; 1 if a bound is missed."""
    options = parse()
    if os.environ.get("OMP_NUM_THREADS") != str(options.threads):  # read once, when a process first uses threads
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.ntf_fit", *sys.argv[1:]])
    torch.set_num_threads(options.threads)
    import ray

    from benchmarks.ntf_at_once import trials
    from benchmarks.ntf_kinds import beside_sklearn

    print(
        f"{os.cpu_count()} cores, {options.threads} threads a side, load {os.getloadavg()[0]:.1f}; Python "
        f"{platform.python_version()}, torch {torch.__version__}, scikit-learn {sklearn.__version__}, numpy "
        f"{np.__version__}, ray {ray.__version__}; {options.rows:,} rows x {options.features:,} float16"
    )
    rows = make_rows(options.rows, options.features)
    parts, held = options.parts or ("plain", "start", "kinds", "trials"), True
    if "plain" in parts:
        held &= beside_plain(rows, options.nets, options.repeats)
    if "start" in parts:
        held &= start_up(rows, options.threads, options.repeats)
    if "kinds" in parts:
        beside_sklearn(rows, options.epochs, (options.repeats + 1) // 2)
    if "trials" in parts:
        held &= trials(rows, steps=options.steps, num_turns=options.repeats)
    print("\nall bounds hold" if held else "\na bound is missed")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
