"""From a budget's rule to a number of rows, the same for every arm of a generation."""

from curation.config import BudgetConfig
from curation.errors import BudgetError


def oracle_budget(num_right: int, cap: int) -> int:
    """The paper's budget: the number of right weak labels in the pool, at most ``cap`` (App. "Budget definition").

    Raises:
        BudgetError: no weak label is right.
    """
    if num_right < 1:
        raise BudgetError(
            "selection.budget.oracle: no weak label of the pool is right, which makes the oracle budget 0; "
            "set selection.budget.n, or take a better teacher"
        )
    return min(num_right, cap)


def resolve(budget: BudgetConfig, num_right: int | None) -> int:
    """The number of rows to select; ``num_right`` is counted on the audit set, None where there is none.

    Raises:
        BudgetError: an oracle budget without an audit set, or with no right label in it.
    """
    if budget.n is not None:
        return budget.n
    if num_right is None:
        raise BudgetError(
            "selection.budget.oracle: counts right labels on the audit set, and there is none; "
            "set splits.audit: true, or selection.budget.n"
        )
    return oracle_budget(num_right, budget.cap)


def check_pool(budget: BudgetConfig, num_rows: int) -> None:
    """Refuse, before anything is labelled, a budget that no pool of ``num_rows`` can meet.

    Raises:
        BudgetError: ``n`` is larger.
    """
    if budget.n is not None and budget.n > num_rows:
        raise BudgetError(
            f"selection.budget: n = {budget.n:,} is more than the {num_rows:,} rows of the pool (of a generation's "
            "share of it); lower n or give a larger pool"
        )
