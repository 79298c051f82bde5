"""The cells of the experiment: each is one ``curate run`` in a run directory of its own, done once.

A cell that is done leaves a stamp with the fingerprint of its configuration and its input files, and with its seconds.
A cell that was cut off goes on where it stopped, because the same ``curate run`` resumes it.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curation.config import RunConfig
from curation.config.load import load_config

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DEVELOPMENT_SEED = 1000
"""Of the deal on which gates are checked; no seed of the experiment."""


class CellFailedError(Exception):
    """A cell's run ended with another exit code than 0."""

    def __init__(self, name: str, code: int, log: Path) -> None:
        super().__init__(name, code, str(log))
        self.name, self.code, self.log = name, code, log

    def __str__(self) -> str:
        return f"{self.name}: curate run ended with exit code {self.code}; its output is in {self.log}"


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is repeated over the seeds of the deal."""

    name: str
    config: str
    """The file in this folder."""
    words: str
    seconds: float
    """What one seed took alone on two cores (docs/evidence.md)."""
    gate_seconds: float | None = None
    """The same of the run on the development split; ``None``: the task has no gates of its own."""
    seeds: int | None = None
    """Only so many of the seeds."""
    settings: tuple[str, ...] = ()
    """What it changes in the file."""


GRPO = (
    "student={method: grpo, preset: scratch, epochs: 6, rollouts: {max_tokens: 16}}",
    "selection.budget.n=1000",
    "selection.arms=[naive_parsed, internal_confidence, neural, neural_gold, ground_truth]",
    "splits.probes={}",
    "trust.options={}",
)
"""What GRPO changes in the file of arithmetic: 188 steps of 32 prompts with 8 answers each."""

CHAIN = (
    f"generations={[{'student': {'path': str(HERE / 'bases/mates' / size)}} for size in ('small', 'medium', 'large')]}",
    "chain={arms: [neural, naive_parsed], shallow: [first_teacher, predecessor], shares: 4, stop: {}}",
    "selection.arms=[naive_parsed, neural, ground_truth]",
    "splits.probes={}",
    "trust.options={}",
)
"""What a chain of three generations changes in the file of mate in one: each labels a quarter of the pool."""

TASKS = (
    Task(name="mates", config="mates.yaml", words="mate in one, SFT", seconds=900, gate_seconds=300),
    Task(name="equations", config="equations.yaml", words="arithmetic, SFT", seconds=600, gate_seconds=240),
    Task(name="grpo", config="equations.yaml", words="arithmetic, GRPO", seconds=600, settings=GRPO),
    Task(
        name="chain", config="mates.yaml", words="mate in one, three generations", seconds=1500, seeds=1, settings=CHAIN
    ),
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run."""

    name: str
    task: Task
    seed: int
    gates: bool
    directory: Path
    seconds: float
    """Expected."""

    @property
    def settings(self) -> list[str]:
        """What it changes in the task's file."""
        settings = [f"name=evidence-{self.name}", f"seed={self.seed}", f"run_dir={self.directory}"]
        settings += self.task.settings
        if self.gates:
            settings += [
                f"sources.tests.path={HERE / 'data' / self.task.name / 'development.parquet'}",
                "splits.test.rows=3000",
                "splits.pool.rows=20000",
                "splits.probes={}",
                "selection.arms=[naive_parsed, neural, ground_truth]",
                "trust.options={}",
            ]
        return settings

    @property
    def config(self) -> RunConfig:
        """Its configuration."""
        return load_config(HERE / self.task.config, self.settings)

    @property
    def num_pool(self) -> int:
        """Rows of the experiment's pool, whatever this cell's own is."""
        rows = load_config(HERE / self.task.config, list(self.task.settings)).splits.pool.rows
        assert rows is not None, "the files say so"
        return rows

    @property
    def report(self) -> dict[str, Any]:
        """What ``report.json`` holds."""
        found: dict[str, Any] = json.loads((self.directory / "report.json").read_text())
        return found

    @property
    def stamp(self) -> Path:
        """The file that says that it is done."""
        return self.directory / "done.json"

    @property
    def fingerprint(self) -> str:
        """Of the configuration and of the names, sizes and times of its input files."""
        config = self.config
        files = [Path(str(source.path)) for source in config.sources.values()]
        told = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        text = json.dumps([config.model_dump(mode="json", by_alias=True), told], default=str, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def done(self) -> dict[str, Any] | None:
        """The stamp; ``None`` where it is missing, or of another configuration or other files."""
        if not self.stamp.is_file():
            return None
        stamp: dict[str, Any] = json.loads(self.stamp.read_text())
        return stamp if stamp["fingerprint"] == self.fingerprint else None


def gate_cells(home: Path, names: Sequence[str]) -> list[Cell]:
    """The runs on development splits."""
    return [
        Cell(
            name=f"gates-{task.name}",
            task=task,
            seed=DEVELOPMENT_SEED,
            gates=True,
            directory=home / f"gates-{task.name}",
            seconds=task.gate_seconds,
        )
        for task in TASKS
        if task.gate_seconds is not None and task.name in names
    ]


def cells(home: Path, names: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """All other runs, seed after seed, so that what is done first has all tasks."""
    return [
        Cell(
            name=f"{task.name}-{seed}",
            task=task,
            seed=seed,
            gates=False,
            directory=home / f"{task.name}-{seed}",
            seconds=task.seconds,
        )
        for place, seed in enumerate(seeds)
        for task in TASKS
        if task.name in names and (task.seeds is None or place < task.seeds)
    ]


def run(cell: Cell) -> float:
    """Do a cell, or go on with it; the seconds that it took in all.

    Raises:
        CellFailedError: ``curate run`` failed, or was stopped.
    """
    cell.directory.mkdir(parents=True, exist_ok=True)
    spent, log = cell.directory / "spent.json", cell.directory / "output.log"
    before = json.loads(spent.read_text()) if spent.is_file() else 0.0
    started = time.monotonic()
    command = [sys.executable, "-m", "curation.cli", "run", str(HERE / cell.task.config)]
    command += [part for setting in cell.settings for part in ("--set", setting)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with log.open("a") as output:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        with _forwarding(child):
            code = child.wait()
    seconds = before + time.monotonic() - started
    spent.write_text(json.dumps(seconds))
    if code:
        raise CellFailedError(cell.name, code, log)
    part = cell.stamp.with_suffix(".part")
    part.write_text(json.dumps({"fingerprint": cell.fingerprint, "seconds": round(seconds, 1)}))
    part.rename(cell.stamp)
    return seconds


@contextmanager
def _forwarding(child: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Pass SIGTERM and SIGINT on to the run, which commits what it has and ends."""

    def forward(number: int, frame: object) -> None:
        child.send_signal(number)

    kept = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
