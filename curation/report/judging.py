"""What the judge said of the labels that the domain's rule calls wrong.

Paper, App. "Difficulty Distribution in Quantitative Reasoning": the rule's accuracy, and of the remaining labels the
share that the judge calls right.
"""

from curation import metrics
from curation.refs import TableRef
from curation.report.measures import Json
from curation.report.record import GenerationRecord
from curation.report.rows import graded_counts


def judging(record: GenerationRecord) -> Json | None:
    """By graded split and ``test-<model>`` of which the judge was asked; ``None`` where it was not asked at all.

    ``asked`` counts the labels that it was asked about; ``by_rule`` is the share right by the rule alone,
    ``by_judge`` the share of those asked that the judge calls right, ``together`` the share right by either. Of several
    test runs it is the first.
    """
    graded = {**record.grades, **{f"test-{name}": refs[0] for name, refs in record.tests.items()}}
    found = {what: _shares(graded[what], asked) for what, asked in record.asked.items()}
    return found or None


def _shares(grades: TableRef, asked: int) -> Json:
    counts = graded_counts([grades])
    rows, judged, right = counts["rows"], counts["judged"], counts["right"]
    return {
        "rows": rows,
        "asked": asked,
        "judged": judged,
        "by_rule": metrics.proportion(right - judged, rows).to_json() if rows else None,
        "by_judge": metrics.proportion(judged, asked).to_json() if asked else None,
        "together": metrics.proportion(right, rows).to_json() if rows else None,
    }
