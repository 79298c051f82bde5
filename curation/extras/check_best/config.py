"""The configuration section of the check of the best rows, its conflicts with other settings, and warnings."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from curation.arms import ARMS
from curation.config.base import PositiveInt, Section
from curation.errors import RowError

if TYPE_CHECKING:
    from curation.config import RunConfig


class CheckBestConfig(Section):
    """A check of the best rows of a pool without gold labels (docs/data-forms.md)."""

    rows: PositiveInt
    """Number of pool rows that the program or the judge of ``domain.check`` checks: those that the arm
    ``selection.budget.reference`` ranks highest. Arms with the same ranking do not select rows that fail, so rows that
    pass come first. The check gets no reference answers for these rows."""


def find_problems(config: "RunConfig", section: CheckBestConfig) -> Iterator[str]:
    """Yield reasons why a run cannot check the best rows."""
    from curation.domains.text import KEY, JudgeCheck  # it imports the configuration

    selection, budget, domain = config.selection, config.selection.budget, config.domain_of("pool")
    reference = f"{budget.reference} (selection.budget.reference)"
    if domain.command is None and domain.judge is None:
        yield (
            "check_best: runs a program on rows of the pool, or asks a judge about them, and domain.check names "
            "neither; set domain: {name: text, check: {command: [python, check.py]}} or check: judge, or leave "
            "check_best out"
        )
    if domain.judge is not None:
        try:
            JudgeCheck(**domain.judge).question("1 + 1 = ?", None, "2")
        except RowError as error:
            yield (
                f"check_best: rows of the pool have no reference answer, and {KEY}.prompt fails without one ({error}); "
                "put what reads it between {% if reference is defined %} and {% endif %}"
            )
    if config.splits.audit:
        yield (
            "check_best: with splits.audit the check grades the whole pool, so that nothing is saved; leave one of the "
            "two out"
        )
    if budget.rule not in ("n", "share"):
        yield (
            f"check_best: budget.{budget.rule} says how many rows are selected before any is checked; set budget.n or "
            "budget.share"
        )
    if budget.reference not in selection.arms:
        yield f"check_best: drops rows from the arm {reference}, which is not among selection.arms; add it"
    if not ARMS[budget.reference].takes_top:
        yield (
            f"check_best: checks the rows that {reference} puts first, which does not take its best rows; name an arm "
            "that does, e.g. trust"
        )


def find_warnings(config: "RunConfig", section: CheckBestConfig) -> Iterator[str]:
    """Yield a warning if fewer rows are checked than selected, since unchecked rows are then selected in any case."""
    n = config.selection.budget.n
    if n is not None and section.rows < n:
        yield (
            f"check_best.rows: {section.rows:,} rows are checked and {n:,} selected (selection.budget.n), so that at "
            f"least {n - section.rows:,} selected rows are not checked; raise rows above budget.n, or lower n"
        )
