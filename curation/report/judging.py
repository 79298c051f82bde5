"""The judge's verdicts on labels that the domain's rule calls wrong.

The paper (App. "Difficulty Distribution in Quantitative Reasoning") gives the rule's accuracy, and the share of the
remaining labels that the judge calls right.
"""

from curation import metrics
from curation.json_types import Json
from curation.refs import TableRef
from curation.report.record import GenerationRecord
from curation.report.rows import count_graded


def collect_judging(record: GenerationRecord, *, alone: bool) -> Json | None:
    """Return the judge's counts and shares, by graded split and ``test-<model>``; ``None`` if the judge was not used.

    ``asked`` is the number of labels that the judge graded. ``by_rule`` is the share right by the rule alone,
    ``by_judge`` the share of ``asked`` that the judge calls right, ``together`` the share right by either. Of several
    test runs only the first counts. If ``alone``, the judge graded every label, without a rule (``check: judge``).
    """
    graded = {**record.grades, **{f"test-{name}": refs[0] for name, refs in record.tests.items()}}
    found = {what: _compute_shares(graded[what], asked, alone=alone) for what, asked in record.asked.items()}
    return found or None


def _compute_shares(grades: TableRef, asked: int, *, alone: bool) -> Json:
    counts = count_graded([grades])
    rows, right = counts["rows"], counts["right"]
    judged = right if alone else counts["judged"]
    return {
        "rows": rows,
        "asked": asked,
        "judged": judged,
        "by_rule": metrics.compute_proportion(right - judged, rows).to_json() if rows and not alone else None,
        "by_judge": metrics.compute_proportion(judged, asked).to_json() if asked else None,
        "together": metrics.compute_proportion(right, rows).to_json() if rows else None,
    }
