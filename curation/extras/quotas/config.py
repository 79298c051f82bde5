"""The key of quotas by class in the section ``selection``."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, model_validator

from curation.arms import ARMS
from curation.config.selection import CUTS, CoreSelection


def _parse_quota(value: object) -> Any:
    """Return a quota with class names as strings, since YAML reads 0 as a number."""
    if not isinstance(value, Mapping):
        return value
    weights = list(value.values())
    are_numbers = all(isinstance(item, int | float) and not isinstance(item, bool) for item in weights)
    if not are_numbers or not all(0 <= item < float("inf") for item in weights) or not sum(weights):
        raise ValueError(f"{dict(value)} gives no places; give each class a number from 0 on, e.g. {{spam: 1, ham: 3}}")
    return {str(name): float(item) for name, item in value.items()}


def explain_no_quota(rule: str) -> str:
    """Return why a budget that takes all rows above a cut refuses quotas, and the fix."""
    return (
        f"quota: classes cannot have places of their own in budget.{rule}, where all rows above a cut are taken; set "
        "budget.n or budget.share, or quota: none"
    )


class QuotaKeys(CoreSelection):
    """The key of quotas by class in the section ``selection``."""

    quota: Annotated[Literal["auto", "none"] | dict[str, float], BeforeValidator(_parse_quota)] = "auto"
    """Quotas by class, if labels are a closed set (domain ``classification``): ``auto`` follows the classes' shares in
    the pool, estimated from the teacher's labels and its confusion on labelled rows; ``none`` takes the best rows of
    any class; ``{spam: 1, ham: 3}`` sets proportions. All arms that take their best rows have the same quotas. ``auto``
    leaves the rows of ``budget.risk`` and ``budget.threshold`` as they are (docs/budget.md)."""

    @model_validator(mode="after")
    def _can_be_divided(self) -> Self:
        if isinstance(self.quota, dict) and self.budget.rule in CUTS:
            raise ValueError(explain_no_quota(self.budget.rule))
        others = [name for name in self.arms if ARMS[name].ranked and not ARMS[name].takes_top]
        if isinstance(self.quota, dict) and others:
            raise ValueError(
                f"quota: the arm {others[0]} divides its places by another rule; leave it out, or set quota: none"
            )
        if self.budget.is_by_label and self.quota == "none":
            raise ValueError(
                "quota: none: takes the best rows of whatever class, and budget.risk.per: label a cut in each; leave "
                "it out"
            )
        return self
