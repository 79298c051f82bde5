"""The cells of the experiment, each of which is one run that is done once.

A finished cell leaves a stamp with the fingerprint of its configuration and its input files, and with its seconds. An
interrupted cell continues where it stopped, because a run resumes.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import curation
from curation.config import RunConfig
from curation.config.load import load_config
from curation.domains.grading import Graded
from curation.errors import RunFailedError, UserError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DEVELOPMENT_SEED = 1000
"""Seed of the runs on which gates are checked; the experiment itself does not use it."""


class CellFailedError(Exception):
    """The error of a cell whose run failed."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A run that is repeated over the seeds of the splits."""

    name: str
    config: str
    """Name of the configuration file in this folder."""
    words: str
    seconds: float
    """Expected seconds of one seed, alone on two cores."""
    gate_seconds: float | None = None
    """Expected seconds of the run on the development split; None if the task has no gates of its own."""
    seeds: int | None = None
    """Maximum number of seeds; None for all."""
    settings: tuple[str, ...] = ()
    """Settings that replace those of the file."""
    of: str | None = None
    """Name of the task in whose run directories this one runs afterwards, with the same labels and trust."""


GRPO = (
    "student={method: grpo, preset: scratch, epochs: 3, rollouts: {max_tokens: 16}, cpus_per_worker: 2}",
    "selection.budget.n=1000",
    "selection.arms=[naive_parsed, internal_confidence, trust, ground_truth]",
    "trust.options={}",
)
"""Settings of GRPO in place of those in the arithmetic file: 94 steps of 32 prompts with 8 answers each."""
CHAINS = "chain"
"""Name of the task with several generations."""
CAPPED = ("selection.arms=[trust, internal_confidence]", "trust.options={}")
"""Settings of arms with a cap on rows of one label; the cap itself differs by task."""
CHAIN = (
    f"generations={[{'student': {'path': str(HERE / 'bases/mates' / size)}} for size in ('small', 'medium', 'large')]}",
    "chain={arms: [trust, naive_parsed], shallow: [first_teacher, predecessor], shares: 4, stop: {}}",
    "selection.arms=[naive_parsed, trust, ground_truth]",
    "splits.probes={}",
    "trust.options={}",
)
"""Settings of a chain of three generations in place of those in the file of mate in one; each labels a quarter."""

TASKS = (
    Task(name="mates", config="mates.yaml", words="mate in one, SFT", seconds=220, gate_seconds=140),
    Task(
        name="mates-capped",
        config="mates.yaml",
        words="mate in one, SFT, at most 20 rows of a move",
        seconds=60,
        settings=(*CAPPED, "selection.max_per_label=20"),
        of="mates",
    ),
    Task(name="equations", config="equations.yaml", words="arithmetic, SFT", seconds=260, gate_seconds=200),
    Task(
        name="equations-capped",
        config="equations.yaml",
        words="arithmetic, SFT, at most 10 rows of a result",
        seconds=60,
        settings=(*CAPPED, "selection.max_per_label=10"),
        of="equations",
    ),
    Task(name="grpo", config="equations.yaml", words="arithmetic, GRPO", seconds=450, settings=GRPO, of="equations"),
    Task(
        name=CHAINS, config="mates.yaml", words="mate in one, three generations", seconds=1500, seeds=1, settings=CHAIN
    ),
)


def development(name: str) -> tuple[str, ...]:
    """Return the settings that make a task's file a run on its development split."""
    return (
        f"sources.tests.path={HERE / 'data' / name / 'development.parquet'}",
        "splits.test.rows=3000",
        "splits.probes={}",
        "trust.options={}",
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
    """Expected seconds."""

    @property
    def settings(self) -> list[str]:
        """Settings that replace those of the task's file."""
        settings = [f"name=evidence-{self.directory.name}", f"seed={self.seed}", f"run_dir={self.directory}"]
        settings += self.task.settings
        if self.gates:
            settings += [
                *development(self.task.name),
                "splits.pool.rows=20000",
                "selection.arms=[naive_parsed, trust, ground_truth]",
            ]
        return settings

    @property
    def config(self) -> RunConfig:
        """Configuration of the run."""
        return load_config(HERE / self.task.config, self.settings)

    @property
    def num_pool(self) -> int:
        """Number of rows of the experiment's pool, whatever the size of this cell's pool."""
        rows = load_config(HERE / self.task.config, list(self.task.settings)).splits.pool.rows
        assert rows is not None, "the files say so"
        return rows

    @property
    def report(self) -> dict[str, Any]:
        """Content of ``report.json``."""
        found: dict[str, Any] = json.loads(self.kept("report.json").read_text())
        return found

    @property
    def tests(self) -> dict[str, list[Graded]]:
        """Graded test rows of each model of the last generation, as the cell left them."""
        found: dict[str, list[Graded]] = {}
        with np.load(self.kept("tests.npz")) as arrays:
            for name in arrays.files:
                row_ids_N, correct_N = arrays[name]
                found[name] = [Graded(row_ids_N=row_ids_N, correct_N=correct_N.astype(np.bool_), question_N=row_ids_N)]
        return found

    def kept(self, name: str) -> Path:
        """Return the path of a file that stays as the cell left it, whatever its directory is used for afterwards."""
        return self.directory / "kept" / self.name / name

    @property
    def stamp(self) -> Path:
        """Path of the file that marks the cell as done."""
        return self.kept("done.json")

    @property
    def fingerprint(self) -> str:
        """Digest of the configuration and of the names, sizes and times of the input files, both rows and models."""
        config = self.config
        files = [Path(str(source.path)) for source in config.sources.values()]
        for model in config.models.values():
            files += sorted(Path(str(model.path)).glob("*"))
        told = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.is_file()]
        text = json.dumps([config.model_dump(mode="json", by_alias=True), told], default=str, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def done(self) -> dict[str, Any] | None:
        """Content of the stamp; None if it is missing or has another fingerprint."""
        if not self.stamp.is_file():
            return None
        stamp: dict[str, Any] = json.loads(self.stamp.read_text())
        return stamp if stamp["fingerprint"] == self.fingerprint else None


def gate_cells(home: Path, names: Sequence[str]) -> list[Cell]:
    """Return the cells on development splits."""
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
    """Return all other cells, seed after seed, so that the first cells cover all tasks."""
    return [
        Cell(
            name=f"{task.name}-{seed}",
            task=task,
            seed=seed,
            gates=False,
            directory=home / f"{task.of or task.name}-{seed}",
            seconds=task.seconds,
        )
        for place, seed in enumerate(seeds)
        for task in TASKS
        if task.name in names and (task.seeds is None or place < task.seeds)
    ]


def run(cell: Cell) -> float:
    """Run or resume a cell; return its seconds in all. Runs of a ``curation.session`` share processes.

    Raises:
        CellFailedError: the run failed.
    """
    cell.stamp.parent.mkdir(parents=True, exist_ok=True)
    spent, log = cell.kept("spent.json"), cell.kept("output.log")
    before = json.loads(spent.read_text()) if spent.is_file() else 0.0
    started = time.monotonic()
    try:
        with log.open("a") as output, redirect_stderr(output):
            curation.run(cell.config)
    except (UserError, RunFailedError) as error:
        raise CellFailedError(f"{cell.name}: {error}; what it said is in {log}") from error
    finally:
        seconds = before + time.monotonic() - started
        spent.write_text(json.dumps(seconds))
    keep(cell)
    part = cell.stamp.with_suffix(".part")
    part.write_text(json.dumps({"fingerprint": cell.fingerprint, "seconds": round(seconds, 1)}))
    part.rename(cell.stamp)
    return seconds


def keep(cell: Cell) -> None:
    """Keep copies of the report of the run in the cell's directory, and of its models' graded test rows."""
    from curation.extras.combine.runs import load_run
    from curation.report.tested import read_tests

    shutil.copy(cell.directory / "report.json", cell.kept("report.json"))
    tests = read_tests(load_run(str(cell.directory)).generations[-1].tests)
    arrays = {name: np.stack([run.row_ids_N, run.correct_N.astype(np.int64)]) for name, (run,) in tests.items()}
    np.savez_compressed(cell.kept("tests.npz"), **arrays)
