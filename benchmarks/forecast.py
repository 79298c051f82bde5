"""Forecasts of ``curate plan`` beside the actual costs of runs: ``python -m benchmarks.forecast``.

Five runs, each planned (``curate plan --json``) and then executed in a separate process:

- chess: real puzzles, a small model of transformers, hidden states stored;
- skewed: a scripted teacher whose time is proportional to text length, and files sorted by length, so that the first
  rows mislead (their own forecast is printed too);
- slow start: a scripted teacher whose actors take 8 s to start, which must not be counted per row;
- questions: multiple choice, answered by a model from scratch;
- resumed: puzzles with students, stopped when half of the stages are done, then planned and run to the end.

Printed for each amount: the forecast, its 95 % interval, what the forecast's stages have used since, and whether the
interval contains it; and the same for the time of the whole command, including training, tests and report. All run
directories are X
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from curation.config import DomainConfig, PricesConfig
from curation.domains import get_domain
from curation.metrics import compute_proportion
from curation.metrics.totals import compute_population_mean, compute_ratio, make_exact
from curation.refs import TableRef
from curation.report.costs import UNITS, compute_amounts, compute_covered, compute_money, describe_amount
from curation.rundir.events import EventLog, compute_spent
from curation.rundir.manifest import Manifest
from curation.sources import Assignment, Permutation
from curation.tables import io
from curation.telemetry.standing import Spent

HERE = Path(__file__).parents[1]
LINES = ("prompt_tokens", "output_tokens", "hours", "cpu_hours", "bytes", "money")
PRICES = {"currency": "EUR", "cpu_hour": 0.05, "storage_gb_month": 0.02}


def chess(directory: Path) -> dict[str, Any]:
    """Return a run of the quickstart's rows and teacher, without its students."""
    return {
        "domain": "chess",
        "sources": {"puzzles": {"path": str(HERE / "examples/data/puzzles.parquet")}},
        "splits": {
            "source": {"from": "puzzles", "rows": 3000},
            "pool": {"from": "puzzles", "rows": 16000},
            "overlap": "report",
        },
        "teacher": {
            "model": {"path": str(HERE / "examples/bases/teacher")},
            "states": ["prompt_last", "output_last"],
            "decoding": {"max_tokens": 4},
            "chunk_rows": 512,
            "actors": {"min": 2, "max": 2},
        },
        "trust": {"states": ["output_last"]},
    }


def _problems(directory: Path, rows: int, files: int) -> dict[str, Any]:
    """Return a run of problems of very different lengths, the shortest first, in several files."""
    rng = np.random.default_rng(0)
    lengths = np.sort(np.exp(rng.normal(3.2, 0.9, rows)).astype(int) + 3)
    for number, part in enumerate(np.array_split(np.arange(rows), files)):
        lines = [json.dumps({"problem": f"Case {row}: " + "word " * lengths[row], "answer": "1"}) for row in part]
        (directory / f"problems-{number}.jsonl").write_text("\n".join(lines))
    return {"domain": "math", "sources": {"problems": {"path": str(directory / "problems-*.jsonl")}}}


def _scripted(directory: Path, rows: int, **script: Any) -> dict[str, Any]:
    return {
        **_problems(directory, rows, 4),
        "splits": {"source": {"from": "problems", "rows": rows // 10}, "pool": {"from": "problems"}},
        "teacher": {
            "backend": "scripted",
            "chunk_rows": 100,
            "actors": {"min": 1, "max": 2},
            "scripted": {"completions": [" \\boxed{1}", " \\boxed{2}"], **script},
        },
    }


def skewed(directory: Path) -> dict[str, Any]:
    """Return a run of files sorted by length, on which time grows with length."""
    return _scripted(directory, 8000, seconds_per_token=0.0002)


def slow_start(directory: Path) -> dict[str, Any]:
    """Return a run whose actors take long to start, and little time per row."""
    return _scripted(directory, 5000, seconds_per_row=0.004, start_seconds=8.0)


def questions(directory: Path) -> dict[str, Any]:
    """Return a run of multiple choice, by a model from scratch."""
    rng, lines = random.Random(0), []
    for number in range(6000):
        choices = [str(option) for option in rng.sample(range(1000), 4)]
        question = f"Case {number}: which is the number of case {rng.randrange(10**6)}?"
        lines.append(json.dumps({"question": question, "choices": choices, "answer": rng.randrange(4)}))
    (directory / "questions.jsonl").write_text("\n".join(lines))
    return {
        "domain": "mcqa",
        "sources": {"questions": {"path": str(directory / "questions.jsonl")}},
        "splits": {
            "adapt": {"from": "questions", "rows": 500},
            "source": {"from": "questions", "rows": 1500},
            "pool": {"from": "questions"},
            "overlap": "report",
        },
        "teacher": {
            "model": {"init": {"hidden_size": 64, "num_layers": 2}},
            "adapt": {"preset": "scratch", "epochs": 2, "global_batch_size": 32, "micro_batch_size": 32},
            "chunk_rows": 256,
            "actors": {"min": 1, "max": 2},
        },
    }


def resumed(directory: Path) -> dict[str, Any]:
    """Return a run of puzzles with students, which is stopped half-way."""
    found = chess(directory)
    splits = {"test": {"from": "puzzles", "rows": 500}, "pool": {"from": "puzzles", "rows": 4000}}
    return found | {
        "splits": found["splits"] | splits,
        "generations": [{"student": {"path": str(HERE / "examples/bases/student")}}],
        "student": {"preset": "scratch", "epochs": 2, "global_batch_size": 32, "micro_batch_size": 32},
    }


RUNS = {
    "chess": chess,
    "skewed": skewed,
    "slow start": slow_start,
    "questions": questions,
    "resumed": resumed,
}
HALF_WAY = {"resumed"}
"""Names of the runs that are planned after half of their stages."""


class Compared(NamedTuple):
    """A run with its forecast and its actual costs."""

    costs: dict[str, Any] | None
    """The forecast's amounts beside the actual ones; ``None`` if nothing could be probed."""
    seconds: dict[str, float]
    """Forecast of the seconds of the whole command: ``value``, ``low`` and ``high``."""
    actual: float
    """Actual seconds of the whole command."""

    @property
    def is_inside(self) -> bool:
        """Whether the actual time lies in the range."""
        return self.seconds["low"] <= self.actual <= self.seconds["high"]


def planned_and_run(name: str, directory: Path) -> Compared:
    """Forecast, do the run, and compare both."""
    config = {
        "name": name.replace(" ", "-"),
        "run_dir": str(directory.parent / "runs" / name.replace(" ", "-")),
        "selection": {"budget": {"n": 500}, "arms": ["naive", "internal_confidence", "trust"]},
        "prices": PRICES,
        "ray": {"num_cpus": 2},
        **RUNS[name](directory),
    }
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    if name in HALF_WAY:
        _half_way(path, Path(config["run_dir"]))
    planned = json.loads(_curate("plan", str(path), "--json"))
    if planned["total"]["seconds"] is None:
        raise RuntimeError(f"{name}: no time was forecast, as a model was never measured here; do such a run before")
    before = _read_spent(config["run_dir"])
    begun = time.monotonic()
    _curate("run", str(path))
    actual = time.monotonic() - begun
    costs = None if planned["forecast"] is None else _compare(planned["forecast"], config["run_dir"], before)
    return Compared(costs, planned["total"]["seconds"], actual)


def _read_spent(run_dir: str) -> dict[str, Spent]:
    return compute_spent(EventLog(Path(run_dir)).last(1 << 40))


def _compare(forecast: dict[str, Any], run_dir: str, before: dict[str, Spent]) -> dict[str, Any]:
    """Return a forecast's amounts, and what its stages have used in the run beyond ``before``, in lines."""
    manifest, spent = Manifest.load(Path(run_dir)), _read_spent(run_dir)
    stages = [stage["name"] for stage in forecast["stages"]]

    def since(amount: str) -> float:
        return sum(
            getattr(spent.get(name, Spent()), amount) - getattr(before.get(name, Spent()), amount) for name in stages
        )

    starts = [(datetime.fromisoformat(manifest.stages[name].started).timestamp(), name) for name in stages]
    spans = [(began, began + manifest.stages[name].seconds) for began, name in starts]
    sizes = [io.get_table_size(TableRef.from_json(manifest.stages[name].outputs["labels"])) for name in stages]
    used = {
        "prompt_tokens": make_exact(since("prompt_tokens")),
        "output_tokens": make_exact(since("output_tokens")),
        "hours": make_exact(compute_covered(spans) / 3600),
        **compute_amounts(make_exact(since("actor_seconds") / 3600), forecast["workforce"]),
        "bytes": make_exact(sum(sizes)),
    }
    used |= compute_money(used, PricesConfig(**PRICES))
    lines = [
        {
            "name": name,
            "words": UNITS[name],
            "forecast": of,
            "actual": used[name].value,
            "inside": None if None in (of["low"], of["high"]) else of["low"] <= used[name].value <= of["high"],
        }
        for name, of in forecast["total"].items()
    ]
    return {"probe_rows": sum(probe["rows"] for probe in forecast["probes"]), "lines": lines}


def _curate(*arguments: str) -> str:
    command = [sys.executable, "-m", "curation.cli", *arguments]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def _half_way(path: Path, run: Path) -> None:
    """Stop a run when half of its stages are done."""
    stages = json.loads(_curate("plan", str(path), "--no-probe", "--json"))["stages"]
    command = [sys.executable, "-m", "curation.cli", "run", str(path)]
    driver = subprocess.Popen(command, cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    events = run / "events.jsonl"
    while driver.poll() is None:
        if events.exists() and events.read_text().count('"event": "finished"') >= len(stages) // 2:
            driver.send_signal(signal.SIGTERM)
            break
        time.sleep(0.2)
    if driver.wait() != 143:
        raise SystemExit(f"{path}: the run ended by itself, with code {driver.returncode}")


def table(name: str, compared: Compared) -> str:
    """Return the lines of a run that matter, and how many are inside."""
    costs, seconds = compared.costs, compared.seconds
    probed = "nothing to probe" if costs is None else f"probe of {costs['probe_rows']:,} rows"
    lines = [f"{name}: {probed}"]
    lines.append(
        f"  {'seconds of the command':<40}{seconds['value']:>12,.0f} [{seconds['low']:,.0f}, {seconds['high']:,.0f}]  "
        f"actual {compared.actual:>12,.0f}  {'inside' if compared.is_inside else 'OUTSIDE'}"
    )
    if costs is None:
        return "\n".join(lines)
    found = [line for line in costs["lines"] if line["name"] in LINES]
    for line in found:
        value, low, high = (
            describe_amount(line["name"], line["forecast"][bound]) for bound in ("value", "low", "high")
        )
        actual = describe_amount(line["name"], line["actual"])
        inside = {True: "inside", False: "OUTSIDE", None: "unknown"}[line["inside"]]
        lines.append(f"  {line['words']:<40}{value:>12} [{low}, {high}]  actual {actual:>12}  {inside}")
    return "\n".join([*lines, f"  {sum(line['inside'] is True for line in found)} of {len(found)} inside"])


def first_rows(directory: Path, costs: dict[str, Any], num: int = 256) -> str:
    """Return what the first rows of the first file would have forecast about the prompts' tokens."""
    domain = get_domain(DomainConfig(name="math"))
    with (directory / "problems-0.jsonl").open() as file:
        prompts = [domain.prompt(domain.read(json.loads(line))) for line in islice(file, num)]
    mean = float(np.mean([len(prompt.split()) for prompt in prompts]))
    rows = sum(1 for path in directory.glob("problems-*.jsonl") for _ in path.open())
    actual = next(line["actual"] for line in costs["lines"] if line["name"] == "prompt_tokens")
    return f"  the first {num} rows would have forecast {rows * mean:,.0f} prompt tokens; actual {actual:,.0f}"


def coverage(repeats: int) -> str:
    """Return how often the intervals of tokens and of the rate contain the truth."""
    rng = np.random.default_rng(0)
    population_N = np.sort(np.round(np.exp(rng.normal(4.0, 1.0, 50_000))))  # as a sorted file
    dealt = Assignment(counts={"source": 5_000, "pool": 45_000}, permutation=Permutation(size=50_000, seed=1))
    pool_N = population_N[dealt.split_of(np.arange(50_000)) == 1]
    tokens = rates = 0
    for seed in range(repeats):
        found = compute_population_mean(population_N[dealt.draw(("pool",), 1024, seed)], len(pool_N))
        tokens += found.low <= pool_N.mean() <= found.high
        # 15 chunks of 64 rows; the time of a row follows its length, that of a chunk varies by a twentieth beside
        lengths = rng.choice(pool_N, size=(15, 64))
        seconds = lengths.sum(axis=1) * 0.001 * rng.normal(1, 0.05, 15)
        rate = compute_ratio(seconds, np.full(15, 64))
        rates += rate.low <= pool_N.mean() * 0.001 <= rate.high
    told = []
    for what, hits in (("tokens of a row", tokens), ("seconds of a row", rates)):
        share = compute_proportion(hits, repeats)
        told.append(f"  {what}: {100 * share.value:.1f} % ({100 * share.low:.1f} to {100 * share.high:.1f})")
    return "\n".join([f"coverage of the 95 % intervals, {repeats:,} simulated probes of 1,024 rows:", *told])


def main() -> None:
    """Plan, run and compare; then simulate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="*", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--repeats", type=int, default=4000)
    options = parser.parse_args()
    inside = 0
    with tempfile.TemporaryDirectory() as text:
        for name in options.runs:
            directory = Path(text) / name.replace(" ", "-")
            directory.mkdir()
            compared = planned_and_run(name, directory)
            inside += compared.is_inside
            print(table(name, compared), flush=True)
            if name == "skewed" and compared.costs is not None:
                print(first_rows(directory, compared.costs), flush=True)
    print(f"time of the whole command: {inside} of {len(options.runs)} inside", flush=True)
    print(coverage(options.repeats), flush=True)


if __name__ == "__main__":
    main()
