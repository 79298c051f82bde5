"""Several trials at once on one machine: part 3 of ``benchmarks.ntf_fit``.

A trial is ``tune.objective.run_trial`` of a network of 2 x 128, batches of 256, with a fixed number of steps and 20
evaluations, on one fold of five; its processes are Ray actors that read the source rows from the object store.

- Memory of k processes after a trial each, from ``/proc/PID/smaps_rollup``, where a page that p processes map counts
  1/p in each (PSS). Shared memory is that of the object store, which the driver maps too. A process's private memory is
  relative to that after a trial on 1,000 rows; its peak is sampled during a trial.
- Trials per hour: two processes with one thread each against one process with one thread, or with two. Checked: trials
  with one thread give bitwise the same AUC in any process.
- Many networks in one process by ``torch.func``: stacked weights, one ``vmap`` over networks with their own batches,
  and one fused AdamW over the stack (with one learning rate for all), against the same networks one after another. Only
  steps are measured, without dropout, so that losses can be compared.
"""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from torch import Tensor, nn

from benchmarks.machine import Busy, quiet
from benchmarks.pairs import in_turn, spread
from curation.cluster.session import local_or_cluster
from curation.config import RayConfig, TrustConfig
from curation.trust.neural import Architecture, NeuralTrustNet
from train.trust_loop import LabelledRows
from tune.objective import Fold, TrialRows, run_trial
from tune.space import Point

PROCESSES = (1, 2, 4, 8)
NETS = (2, 4, 8)
FASTER = 1.8
"""Minimum speedup of two processes over one."""
COPIES = 1.05
"""Maximum memory that all processes together may hold of the rows, in copies of the rows."""
TRIALS = 2
"""Number of trials per process and turn."""
SHAPE = {"depth": 2, "width": 128, "batch_size": 256}
NAME = "output_last"
MB = 1e6


class Ran(NamedTuple):
    """The trials of a process."""

    values: list[float]
    """AUCs or losses."""
    cpu_seconds: float


def source_of(hidden_ND: np.ndarray, correct_N: np.ndarray) -> TrialRows:
    """Return rows as trials read them."""
    ids_N = np.arange(len(correct_N))
    return TrialRows(
        ids_N, ids_N, correct_N, np.ones(len(ids_N), dtype=np.bool_), {NAME: hidden_ND}, np.empty((len(ids_N), 0)), ()
    )


class Memory(NamedTuple):
    """The memory of a process in bytes, with its share of shared pages."""

    shared: int
    alone: int


def memory(pid: int | str = "self") -> Memory:
    """Return the memory that a process holds now."""
    lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]]
    kilobytes = {name.rstrip(":"): int(value) for name, value, *_ in lines}
    return Memory(1024 * kilobytes["Pss_Shmem"], 1024 * kilobytes["Pss_Anon"])


@ray.remote(num_cpus=0)
class Process:
    """A process that runs trials with a number of threads."""

    def __init__(self, num_threads: int, steps: int) -> None:
        torch.set_num_threads(num_threads)
        self._steps = steps

    def start(self, source: list["ray.ObjectRef[TrialRows]"]) -> tuple[int, Memory]:
        """Run a trial on few rows, then map all; the process, and what it held in between."""
        rng = np.random.default_rng(0)
        few_ND, correct_N = rng.standard_normal((1000, 16)).astype(np.float16), rng.random(1000) < 0.5
        self._source = source_of(few_ND, correct_N)
        self.trials(0, 1)
        before = memory()
        self._source = ray.get(source[0])
        return os.getpid(), before

    def trials(self, first: int, num: int) -> Ran:
        """Run trials."""
        trust = TrustConfig.model_validate({**SHAPE, "learning_rate": 1e-3, "max_steps": self._steps, "patience": None})
        point = Point(kind="neural", trust=trust)
        begun = time.process_time()
        outcomes = [
            run_trial(self._source, point, Fold(trial % 5, 5, seed=0, fit_seed=trial))
            for trial in range(first, first + num)
        ]
        return Ran([outcome.value for outcome in outcomes], time.process_time() - begun)

    def steps(self, nets: list[int], num_steps: int, *, stacked: bool) -> Ran:
        """Train nets of these seeds, stacked or one after another."""
        begun = time.process_time()
        train = _stacked if stacked else _one_by_one
        losses = train(self._source.inputs[NAME], self._source.correct_N, nets, num_steps)
        return Ran(losses, time.process_time() - begun)


def _net(seed: int, size: int) -> NeuralTrustNet:
    torch.manual_seed(seed)
    config = TrustConfig.model_validate({**SHAPE, "dropout": 0, "stochastic_depth": 0, "standardise": False})
    return NeuralTrustNet(Architecture.of(config, size))


def _batches(seed: int, num_rows: int, num_steps: int) -> np.ndarray:
    size = SHAPE["batch_size"]
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(num_rows)[:size] for _ in range(num_steps)])


def _one_by_one(hidden_ND: np.ndarray, correct_N: np.ndarray, nets: list[int], num_steps: int) -> list[float]:
    """Return the last loss of each net."""
    found = []
    for seed in nets:
        net = _net(seed, hidden_ND.shape[1])
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
        loss = torch.zeros(())
        for rows_B in _batches(seed, len(hidden_ND), num_steps):
            optimizer.zero_grad()
            loss = _loss(net(torch.from_numpy(hidden_ND[rows_B])), torch.from_numpy(correct_N[rows_B]).float())
            torch.autograd.backward(loss)
            optimizer.step()
        found.append(float(loss.detach()))
    return found


def _stacked(hidden_ND: np.ndarray, correct_N: np.ndarray, nets: list[int], num_steps: int) -> list[float]:
    """Return the same by one ``vmap`` over the nets."""
    made = [_net(seed, hidden_ND.shape[1]) for seed in nets]
    weights, buffers = torch.func.stack_module_state(made)
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-3, fused=True)
    base = made[0]

    def loss_of(weights: dict[str, Tensor], hidden_BD: Tensor, correct_B: Tensor) -> Tensor:
        return _loss(torch.func.functional_call(base, (weights, buffers), (hidden_BD,)), correct_B)

    losses_of = torch.func.vmap(loss_of)
    losses = torch.zeros(len(nets))
    for rows_kB in np.stack([_batches(seed, len(hidden_ND), num_steps) for seed in nets], axis=1):
        optimizer.zero_grad()
        losses = losses_of(weights, torch.from_numpy(hidden_ND[rows_kB]), torch.from_numpy(correct_N[rows_kB]).float())
        torch.autograd.backward(losses.sum())
        optimizer.step()
    return losses.tolist()


def _loss(logit_B: Tensor, correct_B: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(logit_B, correct_B)


def trials(rows: LabelledRows, *, steps: int, num_turns: int) -> bool:
    """Do part 3; return whether its bounds hold."""
    assert isinstance(rows.hidden_ND, np.ndarray)
    with local_or_cluster(RayConfig(num_cpus=2)):
        shared = ray.put(source_of(rows.hidden_ND, rows.correct_N))
        held = _memory(shared, rows.hidden_ND.nbytes, steps)
        actor: Any = Process
        made = {name: actor.remote(threads, steps) for name, threads in (("a", 1), ("b", 1), ("two threads", 2))}
        ray.get([process.start.remote([shared]) for process in made.values()])
        held &= _at_once(made, steps, num_turns)
        _many_in_one(made, steps, (num_turns + 1) // 2)
    return held


def _memory(shared: "ray.ObjectRef[TrialRows]", size: int, steps: int) -> bool:
    print(f"\n| processes | rows held by all, copies of {size / MB:.0f} MB | alone a process, MB | its peak | holds |")
    print("| --- | --- | --- | --- | --- |")
    actor: Any = Process
    held, processes, pids, before = True, [], [], []
    for num in PROCESSES:
        while len(processes) < num:
            processes.append(actor.remote(1, min(steps, 100)))
            pid, had = ray.get(processes[-1].start.remote([shared]))
            pids.append(pid)
            before.append(had)
        running = [process.trials.remote(k, 1) for k, process in enumerate(processes)]
        peaks = [0] * num
        while running:
            _, running = ray.wait(running, num_returns=len(running), timeout=0.05)
            peaks = [max(peak, memory(pid).alone) for peak, pid in zip(peaks, pids, strict=True)]
        now = [memory(pid) for pid in pids]
        copies = (sum(of.shared for of in (*now, memory())) - sum(of.shared for of in before)) / size
        alone, peak = (
            f"{statistics.median(a - had.alone for a, had in zip(values, before, strict=True)) / MB:.0f}"
            for values in ([of.alone for of in now], peaks)
        )
        holds = copies <= COPIES
        held &= holds
        print(f"| {num} | {copies:.2f} | {alone} | {peak} | <= {COPIES}: {'yes' if holds else 'NO'} |", flush=True)
    for process in processes:
        ray.kill(process)
    return held


class Turn(NamedTuple):
    """The measurements of a side in a turn."""

    rate: float
    """Number of trials per hour."""
    cpu_rate: float
    """Number of trials per hour by CPU time, as if each process had its own cores."""
    others: float
    """Number of cores that other processes kept busy meanwhile."""
    values: list[float]


def _turn(num: int, calls: Callable[[], list["ray.ObjectRef[Ran]"]]) -> Turn:
    busy, begun = Busy(), time.perf_counter()
    ran: list[Ran] = ray.get(calls())
    seconds, cpu_seconds = time.perf_counter() - begun, sum(one.cpu_seconds for one in ran)
    values = [value for one in ran for value in one.values]
    cpu_rate = 3600 * num * len(ran) / cpu_seconds
    return Turn(3600 * num / seconds, cpu_rate, busy.others(cpu_seconds), values)


def _rate(turns: list[Turn]) -> str:
    return f"{statistics.median(turn.rate for turn in turns):,.0f}"


def _at_once(made: dict[str, Any], steps: int, num_turns: int) -> bool:
    one, other, threads = made.values()
    sides = {
        "two processes": lambda: _turn(
            2 * TRIALS, lambda: [one.trials.remote(0, TRIALS), other.trials.remote(TRIALS, TRIALS)]
        ),
        "one process of one thread": lambda: _turn(TRIALS, lambda: [one.trials.remote(0, TRIALS)]),
        "one process of two threads": lambda: _turn(TRIALS, lambda: [threads.trials.remote(0, TRIALS)]),
    }
    ray.get([process.trials.remote(0, 1) for process in made.values()])  # warm
    found = in_turn(sides, num_turns)
    ours_all = found.pop("two processes")
    print(f"\nTrials of {steps} steps, two processes of one thread each")
    print("| peer | same? | trials/h, ours / peer | ratio | by CPU time | turns | holds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    held = True
    for peer, peers_all in found.items():
        turns = quiet(ours_all, peers_all)
        ours, theirs = turns.ours, turns.peers
        bound = peer == "one process of one thread"
        apart = max(abs(a - b) for a, b in zip(ours[0].values[:TRIALS], theirs[0].values, strict=True))
        assert apart < 5e-3 and not (bound and apart), f"{peer}: AUCs {ours[0].values} and {theirs[0].values}"
        ratios, cpu_ratios = turns.ratios(lambda turn: turn.rate), turns.ratios(lambda turn: turn.cpu_rate)
        holds = not bound or statistics.median(ratios if turns.are_quiet else cpu_ratios) >= FASTER
        held &= holds
        cells = (
            peer,
            f"yes, AUCs within {apart:.0e}" if apart else "yes, AUCs equal to the bit",
            f"{_rate(ours)} / {_rate(theirs)}",
            spread(ratios, ".2f"),
            spread(cpu_ratios, ".2f") if bound else "",  # threads wait busily
            turns.words,
            f">= {FASTER}: {'yes' if holds else 'NO'}" if bound else "",
        )
        print(f"| {' | '.join(cells)} |", flush=True)
    return held


def _many_in_one(made: dict[str, Any], steps: int, num_turns: int) -> None:
    one, other, threads = made.values()
    num_steps = max(20, steps // 8)
    print(f"\nThe steps of a trial alone ({steps}; {num_steps} are timed), trials/h; ratios to two processes")
    print("| nets | two processes, one after another | one process of two threads, by vmap | ratio | ", end="")
    print("two processes, by vmap | ratio | by CPU time | losses | turns |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for num in NETS:
        nets = list(range(num))
        halves = nets[: num // 2], nets[num // 2 :]

        def split(stacked: bool, halves: Any = halves) -> list["ray.ObjectRef[Ran]"]:
            pairs = zip((one, other), halves, strict=True)
            return [process.steps.remote(half, num_steps, stacked=stacked) for process, half in pairs]

        def whole(nets: list[int] = nets) -> list["ray.ObjectRef[Ran]"]:
            return [threads.steps.remote(nets, num_steps, stacked=True)]

        trials = num * num_steps / steps
        sides = {
            "loop": lambda split=split, trials=trials: _turn(trials, lambda: split(False)),
            "vmap": lambda whole=whole, trials=trials: _turn(trials, whole),
            "vmaps": lambda split=split, trials=trials: _turn(trials, lambda: split(True)),
        }
        for warm in sides.values():
            warm()
        loop_all, vmap_all, vmaps_all = in_turn(sides, num_turns).values()
        one_process, two_processes = quiet(loop_all, vmap_all), quiet(loop_all, vmaps_all)
        both = (vmap_all[0].values, vmaps_all[0].values)
        apart = max(abs(a - b) for values in both for a, b in zip(values, loop_all[0].values, strict=True))
        assert apart < 1e-2, f"other losses: {loop_all[0].values}, {both}"
        cells = (
            str(num),
            _rate(one_process.ours),
            _rate(one_process.peers),
            spread([1 / ratio for ratio in one_process.ratios(lambda turn: turn.rate)], ".2f"),
            _rate(two_processes.peers),
            spread([1 / ratio for ratio in two_processes.ratios(lambda turn: turn.rate)], ".2f"),
            spread([1 / ratio for ratio in two_processes.ratios(lambda turn: turn.cpu_rate)], ".2f"),
            f"within {apart:.0e}",
            f"{one_process.words}; {two_processes.words}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)
