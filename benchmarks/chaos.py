"""A run on a cluster that breaks: ``python -m benchmarks.chaos --minutes 5``.

On four Ray nodes of this machine, a run labels 100,000 rows with the scripted teacher. 0.1 % of the rows kill the
process that works on them. The run directory is in an object store (moto's S3 server). Every few seconds until the run
ends, a random failure occurs: a labelling actor, a whole node (another one joins a little later) or the driver (the
same command is started again, as by a job controller) is killed without warning, or the store refuses connections for
some seconds. The peer is the same run on the same cluster without failures or poison rows.

Checked, with exit code 1 on failure: every row is in the labels once; exactly the poison rows are error rows; no
committed row is labelled again; the run has its selection. The teacher is so slow that labelling in the peer's run
takes half of ``--minutes``; ``--no-quiet`` omits that run.

``--power-cuts 50`` cuts the power under runs on a local disk instead: see ``benchmarks.power_cuts``.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from curation.domains import Domain, Example
from curation.storage.paths import Place, to_place
from tests.object_store import ObjectStore, object_store

ROOT = Path(__file__).parents[1]
NUM_NODES = 4
NUM_SOURCE = 2_000
LABELS = ("a", "b")
PAUSE_SECONDS = (2.0, 6.0)
"""Shortest and longest time between two failures, in seconds."""
LOOK_SECONDS = 3.0
SHARES = {"actor": 0.5, "node": 0.15, "driver": 0.15, "store": 0.2}
DOWN_SECONDS = (2.0, 8.0)
"""Shortest and longest time for which the store is unavailable, in seconds."""
DRIVER_SECONDS = 60.0
"""Age before which a driver is not killed, in seconds, so that its actors have started."""
MAX_GIVEN_UP = 3
"""Maximum number of times that the driver may fail by itself, like the retry limit of a job controller."""


class Numbers(Domain):
    """A domain without cost: a row is a number with one of two labels."""

    columns = pa.schema([("number", pa.int64())])

    def gold(self, raw: Mapping[str, Any]) -> str | None:
        """Return the gold label, by parity."""
        return LABELS[raw["number"] % 2]

    def question(self, example: Example) -> str:
        """Return the number in words of one."""
        return f"{example['number']} is"


@dataclass
class Trial:
    """A run directory, the command that is run in it, and observations of its progress."""

    directory: Path
    """Folder of the sources, the configuration and the logs."""
    run: Place
    address: str
    config: Path
    labelled_before: list[tuple[np.ndarray, int]] = field(default_factory=list)
    """Newly committed row ids at each look, with the size of the teacher's log after it, in bytes."""
    fragments: set[int] = field(default_factory=set)
    """Ids of the table's fragments whose rows have been read."""
    given_up: list[str] = field(default_factory=list)
    starts: int = 0

    @property
    def log(self) -> Path:
        """Where the teacher writes each row that it labels."""
        return self.directory / "labelled.log"

    def start(self) -> subprocess.Popen[bytes]:
        """Start the driver, which takes the run directory over as soon as it can."""
        self.starts += 1
        command = [Path(sys.executable).with_name("curate"), "run", self.config, "--address", self.address, "--wait"]
        with (self.directory / "driver.log").open("ab") as log:
            return subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, start_new_session=True)

    def pool_table(self) -> str | None:
        """Return the table of the pool's labels, or None if there is none yet."""
        found = self.stages("label-pool")
        return str(found[-1] / "labels.lance") if found else None

    def stages(self, name: str) -> list[Place]:
        """Return the directories of a stage of the first generation."""
        generation = self.run / "gen-0"
        if not generation.exists():
            return []
        return sorted(path for path in generation.iterdir() if path.name.startswith(f"{name}-"))

    def look(self) -> None:
        """Note what is committed, and then how much the teacher has labelled: none of the first comes later."""
        uri = self.pool_table()
        if uri is None:
            return
        try:
            table = lance.dataset(uri)
            fresh = [fragment for fragment in table.get_fragments() if fragment.fragment_id not in self.fragments]
            ids_N = table.scanner(columns=["row_id"], fragments=fresh).to_table()["row_id"].to_numpy()
        except (OSError, ValueError):  # not created yet
            return
        self.fragments.update(fragment.fragment_id for fragment in fresh)
        self.labelled_before.append((ids_N, self.log.stat().st_size if self.log.exists() else 0))


class Nodes:
    """A Ray cluster with a head node without CPUs, which is never killed, and worker nodes."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        self._workers = [self._add() for _ in range(NUM_NODES)]
        self._cluster.wait_for_nodes()
        self.address: str = self._cluster.address

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=1, wait=False)

    def actors(self) -> list[int]:
        """Return the process ids of the labelling actors."""
        found = []
        for node in self._workers:
            for raylet in node.all_processes["raylet"]:
                try:
                    children = psutil.Process(raylet.process.pid).children(recursive=True)
                    found += [child.pid for child in children if "ModelActor" in " ".join(child.cmdline())]
                except psutil.NoSuchProcess:
                    continue
        return found

    def lose_one(self, chance: random.Random) -> None:
        """Remove a node at once; another one joins."""
        node = self._workers.pop(chance.randrange(len(self._workers)))
        self._cluster.remove_node(node, allow_graceful=False)
        time.sleep(chance.uniform(0.5, 3.0))
        self._workers.append(self._add())

    def end(self) -> None:
        """End all of it."""
        self._cluster.shutdown()


def main() -> int:
    """Measure and check; 0 where nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--chunk-rows", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-quiet", action="store_true")
    parser.add_argument("--power-cuts", type=int, default=0, help="so many power cuts in place of the blows above")
    options = parser.parse_args()
    if options.power_cuts:
        return cut_power(options.power_cuts, options.seed)
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    poison = sorted(random.Random(options.seed).sample(range(options.rows), options.rows // 1000))
    with tempfile.TemporaryDirectory(prefix="chaos-") as name, object_store() as store:
        nodes = Nodes()
        try:
            wrong, quiet_seconds = [], None
            if not options.no_quiet:
                quiet = make_trial(Path(name) / "quiet", store, nodes.address, options, ())
                quiet_seconds = drive(quiet, None)
                wrong += check(quiet, options.rows, [])
            broken = make_trial(Path(name) / "broken", store, nodes.address, options, poison)
            blows = Blows(nodes, store, options.seed)
            chaos_seconds = drive(broken, blows)
        finally:
            nodes.end()
        wrong += check(broken, options.rows, poison)
        log_rows = len(broken.log.read_bytes().split())
    print(f"{options.rows:,} rows, {len(poison)} of them poison, {NUM_NODES} nodes")
    print(f"blows: {', '.join(f'{number} x {kind}' for kind, number in sorted(blows.counts.items()))}")
    print(f"drivers started: {broken.starts}, of which ended by themselves before the end: {len(broken.given_up)}")
    for line in broken.given_up:
        print(f"  {line}")
    again = log_rows - NUM_SOURCE - (options.rows - len(poison))
    print(f"rows labelled again, none of them committed before: {again:,}")
    against = f", quiet {quiet_seconds:.0f} s, ratio {chaos_seconds / quiet_seconds:.2f}" if quiet_seconds else ""
    print(f"broken {chaos_seconds:.0f} s{against}")
    print("\n".join(wrong) if wrong else "every row once, every poison row named, nothing committed labelled again")
    return 1 if wrong else 0


def cut_power(num_cuts: int, seed: int) -> int:
    """Cut the power so often and print what was wrong; 0 where nothing was lost."""
    from benchmarks import power_cuts

    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        found = power_cuts.cut_power(Path(name), num_cuts, seed)
    print(", ".join(f"{number} {what}" for what, number in sorted(found.counts.items())))
    print(
        "\n".join(found.wrong) if found.wrong else "every row once, nothing that was committed lost or labelled again"
    )
    return 1 if found.wrong else 0


def make_trial(
    directory: Path, store: ObjectStore, address: str, options: argparse.Namespace, poison: Sequence[int]
) -> Trial:
    """Make the sources and the configuration of a run in a directory."""
    directory.mkdir()
    numbers = np.arange(NUM_SOURCE + options.rows)
    for name, part_N in (("source", numbers[options.rows :]), ("pool", numbers[: options.rows])):
        pq.write_table(pa.table({"id": part_N, "number": part_N}), directory / f"{name}.parquet")
    settings = {
        "name": "chaos",
        "run_dir": store.url(directory.name),
        "domain": "benchmarks.chaos:Numbers",
        "sources": {
            name: {"path": str(directory / f"{name}.parquet"), "id_column": "id"} for name in ("source", "pool")
        },
        "splits": {"source": {"from": "source"}, "pool": {"from": "pool"}},
        "teacher": {
            "backend": "scripted",
            "chunk_rows": options.chunk_rows,
            "actors": {"min": 1, "initial": NUM_NODES, "max": NUM_NODES, "num_cpus": 1},
            "scripted": {
                "completions": [f" {label}" for label in LABELS],
                "seconds_per_row": options.minutes * 60 / 2 * NUM_NODES / options.rows,
                "log": str(directory / "labelled.log"),
                "poison_rows": list(poison),
            },
        },
        "selection": {"budget": {"n": options.rows // 10}, "arms": ["naive", "internal_confidence"]},
        "commit_seconds": 2.0,
    }
    config = directory / "chaos.yaml"
    config.write_text(yaml.safe_dump(settings))
    return Trial(directory=directory, run=to_place(store.url(directory.name)), address=address, config=config)


class Blows:
    """The random failures of a run."""

    def __init__(self, nodes: Nodes, store: ObjectStore, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._nodes, self._store = nodes, store
        self._chance = random.Random(seed)
        self._due = time.monotonic() + self._chance.uniform(*PAUSE_SECONDS)

    def strike(self, driver: subprocess.Popen[bytes]) -> None:
        """Kill something, where it is time for that."""
        if time.monotonic() < self._due:
            return
        (kind,) = self._chance.choices(list(SHARES), list(SHARES.values()))
        if kind == "driver" and time.time() - psutil.Process(driver.pid).create_time() < DRIVER_SECONDS:
            return
        if kind == "node":
            self._nodes.lose_one(self._chance)
        elif kind == "driver":
            driver.kill()
        elif kind == "store":
            self._store.proxy.down()
            time.sleep(self._chance.uniform(*DOWN_SECONDS))
            self._store.proxy.up()
        elif actors := self._nodes.actors():
            with suppress(psutil.NoSuchProcess):
                psutil.Process(self._chance.choice(actors)).kill()
        else:
            return
        self.counts[kind] += 1
        self._due = time.monotonic() + self._chance.uniform(*PAUSE_SECONDS)


def drive(trial: Trial, blows: Blows | None) -> float:
    """Start the driver until one ends well; return the seconds."""
    begun = time.monotonic()
    while True:
        driver = trial.start()
        looked = time.monotonic()
        while (code := driver.poll()) is None:
            time.sleep(0.1)
            if time.monotonic() - looked > LOOK_SECONDS:
                trial.look()
                looked = time.monotonic()
            if blows is not None:
                blows.strike(driver)
        trial.look()
        if code == 0:
            return time.monotonic() - begun
        if code > 0:
            last = (trial.directory / "driver.log").read_text(errors="replace").strip().splitlines()[-1:]
            trial.given_up.append(f"exit code {code}: {''.join(last)}")
            if len(trial.given_up) > MAX_GIVEN_UP:
                raise SystemExit("\n".join(["the run failed again and again:", *trial.given_up]))


def check(trial: Trial, num_rows: int, poison: Sequence[int]) -> list[str]:
    """Return what is wrong with a run that has ended."""
    wrong = []
    uri = trial.pool_table()
    assert uri is not None
    table = lance.dataset(uri).to_table(columns=["row_id", "error"])
    ids_N = table["row_id"].to_numpy()
    if len(ids_N) != num_rows or not np.array_equal(np.sort(ids_N), np.arange(num_rows)):
        wrong.append(f"{trial.directory.name}: {num_rows} rows in, {len(ids_N)} out, {len(np.unique(ids_N))} different")
    failed = {row["row_id"]: row["error"] for row in table.to_pylist() if row["error"] is not None}
    if sorted(failed) != list(poison) or any(not text.startswith("poison:") for text in failed.values()):
        odd = sorted(set(failed) ^ set(poison))
        wrong.append(f"{trial.directory.name}: {len(odd)} rows are error rows or poison and not both, e.g. {odd[:3]}")
    text = trial.log.read_bytes()
    for before_M, length in trial.labelled_before:
        later = np.array(text[length:].split(), dtype=np.int64)
        again = np.intersect1d(later, before_M)
        if len(again):
            wrong.append(f"{trial.directory.name}: {len(again)} rows were labelled again that were committed before")
    if not trial.stages("select"):
        wrong.append(f"{trial.directory.name}: nothing was selected")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
