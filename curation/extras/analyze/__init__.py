"""Why an arm's rows teach (paper, section "Mechanisms"): ``curate analyze`` over a finished run."""

from curation.features import Feature

_HERE = "curation.extras.analyze"
ANALYZE = Feature(
    section=f"{_HERE}.config:AnalyzeConfig",
    title="Why it works",
    is_on=True,
    analysis=f"{_HERE}.describe:describe",
    check=f"{_HERE}.describe:check",
    page=f"{_HERE}:page.html.j2",
    figures=f"{_HERE}.figures:figures",
    lines=f"{_HERE}.describe:lines",
)
