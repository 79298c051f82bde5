"""Places by class: the rows of an arm are divided among the classes (``selection.quota``)."""

from curation.features import Feature

_HERE = "curation.extras.quotas"
QUOTAS = Feature(
    within="selection",
    section=f"{_HERE}.config:QuotaKeys",
    settings=f"{_HERE}.division:describe_settings",
    divided=f"{_HERE}.division:describe_classes",
    division=f"{_HERE}.division:QuotaDivision",
    spread=f"{_HERE}.division:suggest_places",
)
