"""From a budget's rule to a number of rows, the same for every arm of a generation; plain numbers in."""

import math

from curation.config import BudgetConfig
from curation.errors import BudgetError


def oracle_budget(num_right: int, cap: int) -> int:
    """The paper's budget: the number of right weak labels in the pool, at most ``cap`` (App. "Budget definition").

    Raises:
        BudgetError: no weak label is right.
    """
    return min(_some(num_right, "oracle", "no weak label of the pool is right"), cap)


def fit_purity_budget(purity: float, num_right: int) -> int:
    """floor(purity on the fit set x right weak labels of the pool) (paper, App. "Quantitative Reasoning").

    Raises:
        BudgetError: the product is below 1.
    """
    found = f"purity {purity:.3f} on the fit set times {num_right} right weak labels is below 1"
    return _some(math.floor(purity * num_right), "fit_purity", found)


def share_budget(share: float, num_rows: int) -> int:
    """A share of the labelled pool, rounded down.

    Raises:
        BudgetError: less than one row.
    """
    return _some(math.floor(share * num_rows), "share", f"{share} of {num_rows} labelled rows is less than one")


def threshold_budget(num_above: int, threshold: float) -> int:
    """The rows whose trust reaches the threshold.

    Raises:
        BudgetError: there are none.
    """
    return _some(num_above, "threshold", f"no row has a trust of at least {threshold}")


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


def _some(n: int, rule: str, found: str) -> int:
    if n < 1:
        raise BudgetError(
            f"selection.budget.{rule}: {found}, which makes the budget 0; set selection.budget.n, "
            "or take a better teacher"
        )
    return n
