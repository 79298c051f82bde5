"""Turns a budget's rule into a number of rows, the same for every arm of a generation. Inputs are plain numbers."""

from fractions import Fraction

from curation.config import BudgetConfig
from curation.errors import BudgetError


def oracle_budget(num_right: int, cap: int) -> int:
    """The paper's budget: the number of right weak labels in the pool, at most ``cap`` (App. "Budget definition").

    Raises:
        BudgetError: no weak label is right.
    """
    return min(_some(num_right, "oracle", "no weak label of the pool is right"), cap)


def fit_purity_budget(num_right_fit: int, num_fit: int, num_right: int) -> int:
    """floor(purity on the fit set x right weak labels of the pool) (paper, App. "Quantitative Reasoning").

    The purity is ``num_right_fit`` of the ``num_fit`` rows that the reference arm accepts in the fit set, or in the
    probe that replaces it.

    Raises:
        BudgetError: the product is below 1.
    """
    found = f"purity {num_right_fit}/{num_fit} on the fit set times {num_right} right weak labels is below 1"
    return _some(num_right_fit * num_right // max(num_fit, 1), "fit_purity", found)


def share_budget(share: float, num_rows: int) -> int:
    """A share of the labelled pool, rounded down.

    Raises:
        BudgetError: the share is less than one row.
    """
    wanted = int(Fraction(str(share)) * num_rows)  # the decimal as written: 0.29 of 100 is 29
    return _some(wanted, "share", f"{share} of {num_rows} labelled rows is less than one")


def threshold_budget(num_above: int, threshold: float) -> int:
    """The number of rows whose trust reaches the threshold.

    Raises:
        BudgetError: no row reaches it.
    """
    return _some(num_above, "threshold", f"no row has a trust of at least {threshold}")


def check_pool(budget: BudgetConfig, num_rows: int) -> None:
    """Refuse a budget larger than a pool of ``num_rows``, before anything is labelled.

    Raises:
        BudgetError: ``n`` is larger than ``num_rows``.
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
