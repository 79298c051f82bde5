"""A maximum number of rows with the same label in every arm (``selection.max_per_label``)."""

from curation.features import Feature

_HERE = "curation.extras.caps"
CAPS = Feature(
    within="selection",
    section=f"{_HERE}.config:CapKeys",
    warnings=f"{_HERE}.division:find_warnings",
    settings=f"{_HERE}.division:check_settings",
    division=f"{_HERE}.division:CapDivision",
    spread=f"{_HERE}.division:suggest_cap",
)
