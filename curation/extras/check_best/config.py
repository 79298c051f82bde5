"""The check's setting."""

from curation.config.base import PositiveInt, Section


class CheckBestConfig(Section):
    """A check of the best rows of a pool without gold labels (docs/data-forms.md)."""

    rows: PositiveInt
    """How many rows of the pool the program or the judge of ``domain.check`` checks: those that trust
    (``selection.budget.reference``) puts first. What fails is dropped from that arm, so that rows which passed come
    first. The check is given no reference answer of these rows."""
