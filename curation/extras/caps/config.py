"""The keys of a cap in the section ``selection``."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from curation.config.base import PositiveInt, Share
from curation.config.selection import CoreSelection


def _require_count_or_share(value: object) -> Any:
    """Refuse values that are neither a count nor a share, such as 1.0, which could mean either."""
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise ValueError(f"{value!r} is not a number; give a number of rows, e.g. 20, or a share of n, e.g. 0.01")
    if value is not None and (value <= 0 or (isinstance(value, float) and value >= 1)):
        raise ValueError(f"{value} is neither a number of rows (1, 2, ...) nor a share of n above 0 and below 1")
    return value


class CapKeys(CoreSelection):
    """The keys of a cap in the section ``selection``."""

    max_per_label: Annotated[PositiveInt | Share | None, BeforeValidator(_require_count_or_share)] = None
    """Maximum number of rows with the same label in every arm: a number (``20``), or a share of n (``0.01``); unset: no
    limit. The best rows of a label are taken. If fewer than n rows fit, all arms select the number that fits in each.
    No guarantee of ``budget.risk`` holds for rows selected under this limit (docs/budget.md)."""
    max_per_label_by: Annotated[str, Field(min_length=1)] = "label"
    """Key by which ``max_per_label`` counts rows: the ``label`` that is taught, or a column of the pool."""

    @property
    def counted_by(self) -> dict[str, str]:
        """The key by which rows of a label are counted, if their number is limited."""
        found = super().counted_by
        return found if self.max_per_label is None else {**found, "max_per_label": self.max_per_label_by}

    @model_validator(mode="after")
    def _check_cap(self) -> Self:
        if self.max_per_label is None and self.max_per_label_by != "label":
            raise ValueError("max_per_label_by: nothing is counted by it without max_per_label; set that, too")
        if self.budget.is_by_label and self.max_per_label is not None:
            raise ValueError(
                "max_per_label: leaves out certified rows of a class, and budget.risk.per: label promises of all that "
                "pass its cut; leave one of the two out"
            )
        return self
