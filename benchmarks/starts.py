"""Cost of the first minutes: CPU seconds and elapsed seconds of each command: ``python -m benchmarks.starts``.

Compared in turn: processes without bytecode (each compiles its imports, as in images with ``PYTHONDONTWRITEBYTECODE``),
the first process that keeps its bytecode in an empty folder (cold), and the next ones (warm, the median of
``--repeats``; without cold ones, with the installation's bytecode); with ``--peer DIR`` also the same of another
checkout (``git worktree add DIR COMMIT``), with the same interpreter and packages. CPU seconds are the user and system
time of a command's whole process tree, including Ray and its workers, and are valid on a busy machine; elapsed seconds
are valid only on an idle one.

The rows are generated sums: 300 labelled and 200 to label for ``run``, 3,000 in all for read-only commands. ``run``
ends when its first row is committed, and ``whole run`` with its report; their teacher is a tiny model of the
repository. ``--model`` is the teacher of the read-only commands (``plan`` is ``plan --no-probe``).

``--teacher`` compares actors with that model instead: one with all cores (the default without a GPU), and one per core.
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import yaml

from benchmarks.recorded import planned

HERE = Path(__file__).parents[1]
MODEL = HERE / "examples/bases/sums_teacher"
LOOKS = ("help", "init", "validate", "plan", "status")
RUNS = ("run", "whole run")
STATES = ("without", "cold", "warm")
"""States of the bytecode."""
LOOK_SECONDS = 0.1
"""Interval between looks at a command's processes, in seconds; orphans that live for less are missed."""


class Cost(NamedTuple):
    """The cost of a command."""

    cpu: float
    clock: float


class Place(NamedTuple):
    """A folder with the files of a benchmark."""

    folder: Path
    model: Path

    def write(self, name: str, num_labelled: int, num_unlabelled: int, model: Path) -> Path:
        """Write the rows and the configuration of a run; return the configuration's path."""
        folder = self.folder / name
        folder.mkdir()
        sums = [f"{10 + n % 89} + {10 + n // 89 % 89} = ?" for n in range(num_labelled + num_unlabelled)]
        answers = [str(sum(map(int, text.removesuffix(" = ?").split(" + ")))) for text in sums]
        rows = list(zip(sums, answers, strict=True))
        for path, names, part in (
            ("labelled.csv", ("problem", "answer"), rows[:num_labelled]),
            ("unlabelled.csv", ("problem",), [row[:1] for row in rows[num_labelled:]]),
        ):
            with (folder / path).open("w", newline="") as file:
                csv.writer(file).writerows([names, *part])
        config = yaml.safe_load((HERE / "examples/own_data/own.yaml").read_text())
        config["run_dir"] = str(folder / "run")
        config["teacher"]["model"]["path"] = str(model)
        config["teacher"].pop("actors")
        config["selection"]["budget"] = {"n": num_unlabelled // 4}
        (folder / "own.yaml").write_text(yaml.safe_dump(config))
        return folder / "own.yaml"


def measure(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    checkout: Path = HERE,
    ended: Callable[[], bool] | None = None,
) -> Cost:
    """Run a command until it ends, or is no longer needed as ``ended`` says, and return what its processes took.

    It runs in the folder of ``checkout``, since ``python -m`` imports from there before ``PYTHONPATH``.

    Raises:
        RuntimeError: it failed.
    """
    before, begun = os.times(), time.monotonic()
    seen: dict[tuple[int, float], float] = {}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, cwd=checkout, env=environment, stdout=said, stderr=subprocess.STDOUT)
        tree, is_enough = psutil.Process(process.pid), False
        while process.poll() is None and not is_enough:
            _look(tree, seen)
            is_enough = ended is not None and ended()
            time.sleep(LOOK_SECONDS)
        clock = time.monotonic() - begun
        if is_enough:
            process.terminate()
        process.wait()
        if not is_enough and process.returncode:
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}\n{said.read()}")
    after = os.times()
    waited = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(sum(seen.values()) if is_enough else max(waited, sum(seen.values())), clock)


def _look(tree: psutil.Process, seen: dict[tuple[int, float], float]) -> None:
    """Keep the CPU seconds so far of a process and all that it started, by process id and start."""
    try:
        processes = [tree, *tree.children(recursive=True)]
    except psutil.Error:
        return
    for process in processes:
        try:
            times = process.cpu_times()
            seen[process.pid, process.create_time()] = times.user + times.system
        except psutil.Error:
            continue  # it has ended since


def has_rows(directory: Path) -> bool:
    """Return whether a run has committed a row that its teacher labelled."""
    events = directory / "events.jsonl"
    for line in events.read_text().splitlines() if events.is_file() else ():
        try:
            event = json.loads(line)
        except ValueError:  # its end is not written yet
            continue
        if "/label-" in event.get("stage", "") and (event.get("rows") or event["event"] == "finished"):
            return True
    return False


def arguments(verb: str, look: Path, run: Path) -> list[str]:
    """Return the command line of a verb."""
    folder = look.parent
    if verb == "init":
        (folder / "new.yaml").unlink(missing_ok=True)
        files = [str(folder / "labelled.csv"), str(folder / "unlabelled.csv")]
        return ["init", "--data", *files, "--model", str(MODEL), "--output", str(folder / "new.yaml")]
    if verb in RUNS:
        shutil.rmtree(run.parent / "run", ignore_errors=True)
        return ["run", str(run)]
    return {"help": ["--help"], "plan": ["plan", "--no-probe", str(look)]}.get(verb, [verb, str(look)])


def environment_of(checkout: Path, state: str, bytecode: Path | None) -> dict[str, str]:
    """Return the environment of a command of a checkout; ``bytecode``: its folder, None where Python keeps it."""
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment |= {} if bytecode is None else {"PYTHONPYCACHEPREFIX": str(bytecode)}
    return environment | ({"PYTHONDONTWRITEBYTECODE": "1"} if state == "without" else {})


def compare(
    place: Place, verbs: Sequence[str], checkouts: Mapping[str, Path], states: Sequence[str], repeats: int
) -> None:
    """Print the costs of each verb, by the state of the bytecode and the checkout."""
    look, run = place.write("look", 300, 2_700, place.model), place.write("run", 300, 200, MODEL)
    print(f"{'command':<18}{'bytecode':<10}" + "".join(f"{name + ' CPU s':>12}{'clock s':>10}" for name in checkouts))
    for verb in verbs:
        folders = {
            (name, kept): Path(tempfile.mkdtemp(dir=place.folder)) for name in checkouts for kept in (True, False)
        }
        for state in states:
            cells: list[float] = []
            for name, checkout in checkouts.items():
                bytecode = None if state == "warm" and "cold" not in states else folders[name, state != "without"]
                environment = environment_of(checkout, state, bytecode)
                costs: list[Cost] = []
                for _ in range(repeats if state == "warm" else 1):
                    command = [sys.executable, "-m", "curation.cli", *arguments(verb, look, run)]
                    ended = (lambda: has_rows(run.parent / "run")) if verb == "run" else None
                    costs.append(measure(command, environment, checkout=checkout, ended=ended))
                cells += [statistics.median(cost.cpu for cost in costs), statistics.median(c.clock for c in costs)]
            numbers = "".join(f"{cpu:>12.2f}{clock:>10.1f}" for cpu, clock in zip(cells[::2], cells[1::2], strict=True))
            print(f"{verb:<18}{state:<10}{numbers}", flush=True)


def compare_actors(place: Place, num_rows: int) -> None:
    """Print what labelling the pool takes by one actor with all cores, and by as many actors as there are cores."""
    cores = os.cpu_count() or 1
    kinds = {f"1 actor of {cores}": {"max": 1}, f"{cores} actors of 1": {"min": cores, "max": cores, "num_cpus": 1}}
    print(f"{'actors':<18}{'command CPU s':>15}{'clock s':>10}{'labelling s':>13}{'rows/s':>9}")
    for number, (name, actors) in enumerate(kinds.items()):
        config = place.write(f"actors-{number}", 300, num_rows, place.model)
        command = [sys.executable, "-m", "curation.cli", "run", str(config), "--until", "gen-0/label-pool"]
        cost = measure(
            [*command, "--set", f"teacher.actors={json.dumps(actors)}"], os.environ | {"PYTHONPATH": str(HERE)}
        )
        seconds = planned(config.parent / "run")["gen-0/label-pool"]["seconds"]
        print(f"{name:<18}{cost.cpu:>15.1f}{cost.clock:>10.1f}{seconds:>13.1f}{num_rows / seconds:>9.1f}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL, help="a model's folder, e.g. of 270 million parameters")
    parser.add_argument("--peer", type=Path, help="another checkout")
    parser.add_argument("--only", action="append", choices=(*LOOKS, *RUNS), help="this command (again and again)")
    parser.add_argument("--bytecode", action="append", choices=STATES, help="with bytecode in this state")
    parser.add_argument("--repeats", type=int, default=3, help="of warm commands")
    parser.add_argument("--teacher", action="store_true", help="compare actors")
    parser.add_argument("--rows", type=int, default=2_000, help="rows of the pool that the actors label")
    options = parser.parse_args()
    checkouts = {"ours": HERE} | ({} if options.peer is None else {"peer": options.peer.resolve()})
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), options.model.resolve())
        if options.teacher:
            compare_actors(place, options.rows)
        else:
            compare(place, options.only or (*LOOKS, *RUNS), checkouts, options.bytecode or STATES, options.repeats)


if __name__ == "__main__":
    main()
