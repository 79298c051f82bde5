"""Cuts the power under a run again and again: the part of ``python -m benchmarks.chaos --power-cuts 50``.

A run of a scripted teacher over sums is started. At a random moment after it began to work, it and Ray's workers are
killed at once, and its directory is replaced by what the disk holds (``benchmarks.synced``). The same command resumes.
A complete run is checked and the next one begins, until the requested number of power cuts.

Checked: rows committed before a cut exist after it, once, and are not labelled again; no command but `run` is needed;
each complete run has the selections of an undisturbed one, and passes `curate verify`.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import psutil

from benchmarks import synced
from curation.tables.versions import VERSIONS, parse_version
from tests.sums_run import SumsRun

NUM_POOL = 3_000
WAIT_SECONDS = 8.0
"""Maximum time of a cut after a driver began to work, in seconds; labelling takes about eight."""
EARLY = 0.1
"""Share of the cuts that may hit a driver while it starts."""
LABELS = "gen-0/label-pool-*/labels.lance"
MAX_SECONDS = 600.0
"""Time without progress, in seconds, after which a driver counts as hung."""


@dataclass
class Found:
    """The results of the cuts."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class CutRun(SumsRun):
    """A run whose processes record their fsync calls."""

    def __init__(self, directory: Path, address: str) -> None:
        directory.mkdir()
        super().__init__(
            directory,
            num_pool=NUM_POOL,
            actors={"min": 2, "max": 2},
            seconds_per_row=0.004,
        )
        self.address = address

    def begin(self) -> "subprocess.Popen[bytes]":
        """Start a driver that takes notes, as its environment says."""
        return self.start("--wait", "--address", self.address)

    def selections(self) -> dict[str, list[dict[str, Any]]]:
        """Return the selected rows by arm."""
        paths = sorted(self.directory.glob("gen-0/select-*/*.lance"))
        return {path.name: lance.dataset(str(path)).to_table().to_pylist() for path in paths}

    def promised(self) -> set[int]:
        """Return pool rows whose commit has ended: those of the newest whole version but one, as commits wait in turn.

        The kill may have come while a version was written, so it may be torn, and so is each older one that a cut tore.
        """
        whole: list[set[int]] = []
        for home in self.directory.glob(LABELS):
            paths = (home / VERSIONS).glob("*.manifest")
            numbers = sorted(filter(None, (parse_version(f"{VERSIONS}/{path.name}") for path in paths)), reverse=True)
            for number in numbers:
                with suppress(OSError, ValueError, RuntimeError):
                    rows = lance.dataset(str(home), version=number).to_table(columns=["row_id"])
                    whole.append(set(rows["row_id"].to_pylist()))
                if len(whole) == 2:
                    return whole[1]
        return set()

    def num_versions(self) -> int:
        """Return the number of versions of the pool's labels: the first is empty, and each commit adds one."""
        return len(list(self.directory.glob(f"{LABELS}/{VERSIONS}/*.manifest")))

    def num_events(self) -> int:
        """Return the length of the file of events."""
        path = self.directory / "events.jsonl"
        return path.stat().st_size if path.exists() else 0

    def is_at_work(self, num_versions: int, num_events: int) -> bool:
        """Return whether this driver committed labels, or had none to commit and began another stage."""
        manifest = self.directory / "manifest.json"
        is_labelled = manifest.is_file() and '"gen-0/label-pool"' in manifest.read_text()
        return (is_labelled and self.num_events() > num_events) or self.num_versions() > max(1, num_versions)


def cut_power(directory: Path, num_cuts: int, seed: int) -> Found:
    """Cut the power under runs in a directory so often; what was wrong."""
    from ray.cluster_utils import Cluster

    (runs := directory / "runs").mkdir()
    notes = directory / "notes"
    os.environ |= {"RAY_AUTH_MODE": "disabled", **synced.environment(runs, notes)}
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 3})
    try:
        return _cut_power(runs, notes, cluster.address, num_cuts, seed)
    finally:
        cluster.shutdown()


def _cut_power(directory: Path, notes: Path, address: str, num_cuts: int, seed: int) -> Found:
    found, chance = Found(), random.Random(seed)
    quiet = CutRun(directory / "quiet", address)
    assert quiet.begin().wait(MAX_SECONDS) == 0, quiet.errors()
    expected = quiet.selections()
    assert expected, "a run that was left alone has selections"
    while found.counts["power cuts"] < num_cuts and len(found.wrong) < 5:
        run = CutRun(directory / f"run-{found.counts['runs']}", address)
        if _drive(run, notes, found, num_cuts, chance):
            found.wrong += [f"{run.directory.parent.name}: {line}" for line in _check(run, expected)]
        found.counts["runs"] += 1
    return found


def _drive(run: CutRun, notes: Path, found: Found, num_cuts: int, chance: random.Random) -> bool:
    """Start the driver until one ends by itself, cutting the power meanwhile; return whether it ended well."""
    marks: list[tuple[set[int], int]] = []
    while True:
        driver = run.begin()
        struck = found.counts["power cuts"] < num_cuts and _strike(run, driver, chance)
        code = driver.wait(None if struck else MAX_SECONDS)
        if not struck:
            log = run.labelled()
            again = sum(len(before.intersection(log[length:])) for before, length in marks)
            found.wrong += [f"{again} rows were labelled again that were committed before a cut"] if again else []
            found.wrong += [f"exit code {code}: {run.errors()[-2000:]}"] if code else []
            return code == 0
        before, length = run.promised(), len(run.labelled())
        stage = _last_stage(run)
        how = synced.Cut(new_names=chance.choice([0.0, 0.5, 1.0]), zeros=chance.random() < 0.3)
        synced.cut(run.directory, notes, how, chance)
        marks.append((before, length))
        found.counts["power cuts"] += 1
        found.counts[f"at {stage}"] += 1
        print(
            f"cut {found.counts['power cuts']} at {stage}, {len(before):,} rows committed, {how}: {run.directory}",
            flush=True,
        )


def _strike(run: CutRun, driver: "subprocess.Popen[bytes]", chance: random.Random) -> bool:
    """Kill a driver and Ray's workers at a random moment after it began to work; return False if it ended before."""
    begun, before = time.monotonic(), (run.num_versions(), run.num_events())
    if chance.random() > EARLY:
        while driver.poll() is None and not run.is_at_work(*before) and time.monotonic() - begun < MAX_SECONDS:
            time.sleep(0.05)
    until = time.monotonic() + chance.uniform(0, WAIT_SECONDS)
    while driver.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    if driver.poll() is not None:
        return False
    alive = [psutil.Process(driver.pid), *_workers()]
    for sign in (signal.SIGSTOP, signal.SIGKILL):  # at once: none may see that another one is gone
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(sign)
    driver.wait()
    psutil.wait_procs(alive[1:], timeout=10)
    return True


def _workers() -> list[psutil.Process]:
    """Return Ray's workers, which write; without its agents the node would be given up."""
    words = {child: _words(child) for child in psutil.Process().children(recursive=True)}
    return [child for child, text in words.items() if text.startswith("ray::") and "Agent" not in text]


def _words(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def _last_stage(run: CutRun) -> str:
    """Return the stage that was begun last, as far as the events can be read."""
    found, events = "the start", run.directory / "events.jsonl"
    if not events.exists():  # the power was cut before it was written, or before its name was
        return found
    for line in events.read_text(errors="replace").splitlines():
        with suppress(ValueError):
            event = json.loads(line)
            found = event["stage"] if event["event"] == "started" else found
    return found


def _check(run: CutRun, expected: dict[str, bytes]) -> list[str]:
    """Return what is wrong with a run that has ended."""
    wrong = []
    ids = run.committed()
    if len(ids) != NUM_POOL or ids != run.pool():
        wrong.append(f"{NUM_POOL} rows in, {len(ids)} out, {len(set(ids))} different")
    if run.selections() != expected:
        wrong.append("its selections are not those of the run that was left alone")
    command = [str(Path(sys.executable).with_name("curate")), "verify", str(run.directory)]
    told = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    if told.returncode:
        wrong.append(f"`curate verify`: {told.stdout[-500:]}")
    return wrong
