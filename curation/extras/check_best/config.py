"""The configuration section of the check of the best rows."""

from curation.config.base import PositiveInt, Section


class CheckBestConfig(Section):
    """A check of the best rows of a pool without gold labels (docs/data-forms.md)."""

    rows: PositiveInt
    """Number of pool rows that the program or the judge of ``domain.check`` checks: those that the arm
    ``selection.budget.reference`` ranks highest. Arms with the same ranking do not select rows that fail, so rows that
    pass come first. The check gets no reference answers for these rows."""
