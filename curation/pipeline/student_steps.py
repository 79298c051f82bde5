"""How many optimizer steps each student of a run gets, as far as its configuration tells, and whether they are few."""

from collections.abc import Iterator
from typing import NamedTuple

from curation.config import BudgetConfig, LmStudentConfig, RunConfig, StudentConfig
from curation.config.base import rows_in
from curation.config.models import EpochsConfig

FEW = 50
"""Fewer optimizer steps than these hardly move a student from its base: 200 rows in batches of 128 are two."""


class StudentSteps(NamedTuple):
    """The training of the students of one recipe."""

    line: str
    """Rows, batch and steps in words."""
    warning: str | None
    """The key that gives ``FEW`` steps, where there are fewer."""


def student_steps(config: RunConfig, num_pool: int) -> Iterator[StudentSteps]:
    """A line for each recipe of a run; none where the budget is known only once rows are labelled.

    ``num_pool``: rows of the pool of one generation.
    """
    found = _selected(config.selection.budget, num_pool)
    if found is None:
        return
    about, num_rows = found
    recipes: dict[str, StudentConfig] = {"student": config.student} if config.generations else {}
    for generation in config.generations:
        recipes |= {f"student {name}": own.recipe or config.student for name, own in generation.students.items()}
    for name, recipe in recipes.items():
        if not isinstance(recipe, LmStudentConfig) or (steps := recipe.num_steps(num_rows)) is None:
            continue
        line = (
            f"{name}: {about}{num_rows:,} rows, global_batch_size {recipe.global_batch_size:,}: {about}{steps:,} "
            f"optimizer step{'s' if steps != 1 else ''}"
        )
        few = f"{line}, which hardly move it from its base; {_mend(recipe, num_rows)}" if steps < FEW else None
        yield StudentSteps(line, few)


def _mend(recipe: LmStudentConfig, num_rows: int) -> str:
    """The largest batch that gives ``FEW`` steps; more epochs or rows where none does."""

    def steps(size: int) -> int:
        return recipe.model_copy(update={"global_batch_size": size}).num_steps(num_rows) or 0

    sizes = [2**power for power in range(recipe.global_batch_size.bit_length())]
    fits = [size for size in sizes if steps(size) >= FEW]
    if not fits:
        return "give it more epochs, or select more rows"
    size = fits[-1]
    divided = (
        f", micro_batch_size: {size}" if isinstance(recipe, EpochsConfig) and size < recipe.micro_batch_size else ""
    )
    return f"global_batch_size: {size}{divided} gives {steps(size):,}"


def _selected(budget: BudgetConfig, num_pool: int) -> tuple[str, int] | None:
    """The rows that each arm selects, and how well that is known; ``None`` where labels decide."""
    if budget.n is not None:
        return "", budget.n
    if budget.share is not None:
        return "about ", rows_in(budget.share, num_pool)
    if budget.oracle:
        return "at most ", min(budget.cap, num_pool)
    return None
