"""The experiment of docs/evidence.md: ``python -m examples.evidence``.

It makes rows and bases that are missing, checks the gates on development splits, does the cells that are missing, and
writes ``results.json`` after each. The same command goes on where it was stopped. ``--write-docs`` fills the tables of
docs/evidence.md and docs/log/evidence.md from ``results.json``; ``--plan`` prints what is missing and how long it
takes.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import curation
from curation.stopping import Stopped, compute_exit_code, stopped_by_signals
from examples.evidence import cells as plan
from examples.evidence.cells import CHAINS, HERE, ROOT, TASKS, Cell, CellFailedError
from examples.evidence.gates import Gate, gates, told
from examples.evidence.recipes import recipe_cells

RESULTS = HERE / "results.json"
PAGES = (ROOT / "docs" / "evidence.md", ROOT / "docs" / "log" / "evidence.md")
DATA_SECONDS, BASES_SECONDS = 420, 1100
"""Expected seconds, alone on two cores."""


def say(text: str) -> None:
    """Print a line with the time of day."""
    print(f"{datetime.now():%H:%M:%S} {text}", flush=True)


def make_inputs(cells: Sequence[Cell], workers: int) -> None:
    """Make missing rows, and missing models that the cells start from."""
    from examples.evidence.bases import make_bases
    from examples.evidence.data import make_data
    from examples.evidence.make_mates import engine_path

    if (engine := engine_path()) is None:
        say(
            "Stockfish is not installed: a third of the games of mate in one are other, easier ones, and its gate fails"
        )
    make_data(HERE / "data", workers=workers, engine=engine)
    needed: dict[str, set[str]] = {}
    for cell in cells:
        for model in cell.config.models.values():
            folder = Path(str(model.path))
            needed.setdefault(folder.parent.name, set()).add(folder.name)
    make_bases(needed, HERE / "data", HERE / "bases", workers=workers)


class Progress:
    """A runner of cells, one after the other, that prints how long the remaining ones take at the pace so far."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells = cells
        self._spent = self._expected = 0.0
        self.seconds: dict[str, float] = {}
        """Seconds of finished cells, by name."""

    def do(self, cell: Cell) -> None:
        """Run a cell, unless it is done."""
        if (stamp := cell.done) is None:
            pace = self._spent / self._expected if self._expected else 1.0
            missing = [other for other in self._cells if other.name not in self.seconds and not other.done]
            left = pace * sum(other.seconds for other in missing)
            say(f"{cell.name}: {cell.task.words}; {left / 60:.0f} minutes left in all")
            self._spent += plan.run(cell)
            self._expected += cell.seconds
            stamp = cell.done
            assert stamp is not None, "it has just been written"
            say(f"{cell.name}: {stamp['seconds'] / 60:.1f} minutes")
        self.seconds[cell.name] = stamp["seconds"]


def check_gates(found: Sequence[Cell]) -> dict[str, list[Gate]]:
    """Return the gates by task, and print them."""
    checked = {}
    for cell in found:
        checked[cell.task.name] = gates(cell.report, num_pool=cell.num_pool)
        say(told(cell.task.name, checked[cell.task.name]))
    return checked


def results(checked: dict[str, list[Gate]], finished: Sequence[Cell], seconds: dict[str, float]) -> dict[str, Any]:
    """Return the content of ``results.json``."""
    from curation.cluster.versions import find_versions
    from examples.evidence.recipes import is_recipe, recipe_results
    from examples.evidence.results import gate_results, task_results

    by_task: dict[str, list[Cell]] = {}
    for cell in finished:
        by_task.setdefault(cell.task.name, []).append(cell)
    recipes = [cell for cell in finished if is_recipe(cell)]
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": dict(find_versions()),
        "cores": os.cpu_count(),
        "gates": gate_results(checked),
        "tasks": {
            name: task_results(of_task, by_task.get(f"{name}-capped", ()))
            for name, of_task in by_task.items()
            if name != CHAINS and not name.endswith("-capped") and not is_recipe(of_task[0])
        },
        "recipes": recipe_results(recipes),
        "chain": [cell.report["chain"] for cell in by_task.get(CHAINS, ())],
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }


def print_plan(todo: Sequence[Cell]) -> None:
    """Print which cells are missing, and how long they take."""
    rows = [(cell.name, "done" if cell.done else f"{cell.seconds / 60:.0f} minutes") for cell in todo]
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:{width}}  {what}" for name, what in rows))
    left = sum(cell.seconds for cell in todo if not cell.done)
    inputs = (DATA_SECONDS + BASES_SECONDS) / 60
    print(f"{'left':{width}}  {left / 60:.0f} minutes, and {inputs:.0f} for rows and bases where they are missing")


def do(first: Sequence[Cell], others: Sequence[Cell], given: argparse.Namespace) -> bool:
    """Run the ``first`` cells and check their gates, then the ``others``; return False if gates stop it."""
    progress = Progress(first if given.gates else [*first, *others])
    for cell in first:
        progress.do(cell)
    checked = check_gates(first)
    failed = [name for name, found in checked.items() if not all(gate.passed for gate in found)]
    if failed and not given.no_gates:
        say(f"gates failed for {', '.join(failed)}: results would not be believed; --no-gates goes on anyway")
        return False
    for place in range(0 if given.gates else len(others)):
        progress.do(others[place])
        found = results(checked, others[: place + 1], progress.seconds)
        part = given.results.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1) + "\n")
        part.rename(given.results)
    return True


def main() -> int:
    """Run the command line, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [task.name for task in TASKS]
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--tasks", nargs="+", choices=names, default=names)
    parser.add_argument("--home", type=Path, default=ROOT / "runs" / "evidence", help="where the run directories go")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that make rows and models")
    parser.add_argument("--gates", action="store_true", help="check the gates, and stop")
    parser.add_argument("--no-gates", action="store_true", help="go on where a gate fails")
    parser.add_argument("--plan", action="store_true", help="print what is missing, and do nothing")
    parser.add_argument("--write-docs", action="store_true", help="fill docs/evidence.md and docs/log/evidence.md")
    given = parser.parse_args()
    home = given.home.absolute()
    first = plan.gate_cells(home, given.tasks)
    others = [*plan.cells(home, given.tasks, given.seeds), *recipe_cells(home, given.tasks)]
    if given.plan:
        print_plan([*first, *others])
        return 0
    if not (given.write_docs and given.results.is_file()):
        started = time.monotonic()
        make_inputs(first if given.gates else [*first, *others], given.workers)
        say(f"rows and bases are there ({(time.monotonic() - started) / 60:.1f} minutes)")
        try:
            with stopped_by_signals(), curation.session():
                if not do(first, others, given):
                    return 1
        except CellFailedError as error:
            say(str(error))
            return 1
        except (KeyboardInterrupt, Stopped) as stopped:
            say("stopped; the same command goes on")
            return compute_exit_code(signal.SIGTERM if isinstance(stopped, Stopped) else signal.SIGINT)
        if given.gates:
            return 0
        say(f"results: {given.results}")
    if given.write_docs:
        from examples.evidence.tables import write_docs

        for page in PAGES:
            write_docs(page, json.loads(given.results.read_text()))
            say(f"tables: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
