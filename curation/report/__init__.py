"""The report of one or several runs: a self-contained HTML page, and the same numbers as JSON."""

from curation.report.collect import collect
from curation.report.combine import Member, combine
from curation.report.html import write, write_combined
from curation.report.record import FORMAT, GenerationRecord, PassRecord, RunRecord, StageRecord

__all__ = [
    "FORMAT",
    "GenerationRecord",
    "Member",
    "PassRecord",
    "RunRecord",
    "StageRecord",
    "collect",
    "combine",
    "write",
    "write_combined",
]
