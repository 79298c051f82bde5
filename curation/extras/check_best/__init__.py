"""A costly check, by a program or a judge, of the pool rows that trust ranks highest; rows that fail are left out."""

from curation.features import Feature

_HERE = "curation.extras.check_best"
CHECK_BEST = Feature(
    section=f"{_HERE}.config:CheckBestConfig",
    title="Checked rows",
    problems=f"{_HERE}.config:find_problems",
    warnings=f"{_HERE}.config:find_warnings",
    candidates=f"{_HERE}.stage:describe_check",
    selected=f"{_HERE}.stage:describe_selected",
    numbers=f"{_HERE}.stage:count_passed",
    page=f"{_HERE}:page.html.j2",
)
