"""A first cut of a filter, or cascade: rows that would hardly be kept are dropped after their prompt, unanswered."""

from curation.features import Feature

_HERE = "curation.extras.first_cut"
FIRST_CUT = Feature(
    section=f"{_HERE}.config:CascadeConfig",
    of="filter",
    problems=f"{_HERE}.config:find_problems",
    flag="Drop rows that would hardly be kept once their prompt is read.",
    gate=f"{_HERE}.gate:settle",
    package=f"{_HERE}.config:Cascade",
    export=f"{_HERE}.export:make_cascade",
    lines=f"{_HERE}.gate:describe_saved",
)
