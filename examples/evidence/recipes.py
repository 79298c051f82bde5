"""Recipes of students, compared on the development split of a task: how much a student believes wrong labels.

The experiment's recipe was chosen here, on a deal and on test rows that no cell of it has.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.evidence.cells import DEVELOPMENT_SEED, TASKS, Cell, Task, development

COMMON = "preset: scratch, global_batch_size: 32, micro_batch_size: 32, warmup_ratio: 0.05, cpus_per_worker: 2"
RECIPES = {
    "full weights, 3 epochs, learning rate 1e-3": "epochs: 3, learning_rate: 1.0e-3",
    "full weights, 1 epoch, 1e-3": "epochs: 1, learning_rate: 1.0e-3",
    "LoRA, 3 epochs, 3e-3": "epochs: 3, learning_rate: 3.0e-3, lora: {}",
    "LoRA, 1 epoch, 1e-3": "epochs: 1, learning_rate: 1.0e-3, lora: {}",
    "LoRA, 1 epoch, 3e-3 (the experiment's)": "epochs: 1, learning_rate: 3.0e-3, lora: {}",
}
NAMES = ("mates", "equations")
"""Names of the tasks whose students are trained by SFT."""
PREFIX = "recipes-"
ARMS = ("naive_parsed", "trust", "trust_gold", "ground_truth")


def recipe_cells(home: Path, names: Sequence[str]) -> list[Cell]:
    """Return one cell per recipe; those of a task share a run directory, in which labels and trust are made once."""
    by_name = {task.name: task for task in TASKS}
    found = []
    for name in NAMES:
        for place, (words, keys) in enumerate(RECIPES.items() if name in names else ()):
            task = Task(
                name=f"{PREFIX}{name}-{place}",
                config=by_name[name].config,
                words=words,
                seconds=180 if place == 0 else 75,
                settings=(
                    *development(name),
                    f"selection.arms=[{', '.join(ARMS)}]",
                    f"student={{{COMMON}, {keys}}}",
                ),
                of=name,
            )
            directory = home / f"recipes-{name}"
            found.append(
                Cell(
                    name=task.name,
                    task=task,
                    seed=DEVELOPMENT_SEED,
                    gates=False,
                    directory=directory,
                    seconds=task.seconds,
                )
            )
    return found


def is_recipe(cell: Cell) -> bool:
    """Return whether a cell compares recipes."""
    return cell.task.name.startswith(PREFIX)


def recipe_results(cells: Sequence[Cell]) -> dict[str, list[dict[str, Any]]]:
    """By task what each recipe makes of each arm's rows."""
    found: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        report = cell.report
        found.setdefault(str(cell.task.of), []).append(
            {
                "words": cell.task.words,
                "teacher": report["teacher"]["test"],
                "arms": {arm["name"]: {key: arm[key] for key in ("purity", "accuracy")} for arm in report["arms"]},
            }
        )
    return found
