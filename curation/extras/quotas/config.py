"""The key of quotas by class in the section ``selection``."""

from typing import Literal, Self

from pydantic import model_validator

from curation.config.selection import CoreSelection


class QuotaKeys(CoreSelection):
    """The key of quotas by class in the section ``selection``."""

    quota: Literal["auto", "none"] = "auto"
    """Quotas by class, if labels are a closed set (domain ``classification``): ``auto`` follows the classes' shares in
    the pool, estimated from the teacher's labels and its confusion on labelled rows; ``none`` takes the best rows of
    any class. All arms that take their best rows have the same quotas. ``auto`` leaves the rows of ``budget.risk`` and
    ``budget.threshold`` as they are (docs/budget.md)."""

    @model_validator(mode="after")
    def _check_quota(self) -> Self:
        if self.budget.is_by_label and self.quota == "none":
            raise ValueError(
                "quota: none: takes the best rows of whatever class, and budget.risk.per: label a cut in each; leave "
                "it out"
            )
        return self
