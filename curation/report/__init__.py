"""The report of one or several runs: a self-contained HTML page, and the same numbers as JSON."""

from curation.report.collect import collect
from curation.report.combine import Member, combine
from curation.report.html import write, write_combined, write_search
from curation.report.record import FORMAT, GenerationRecord, PassRecord, RunRecord, StageRecord
from curation.report.searched import SearchRecord, collect_search, in_words

__all__ = [
    "FORMAT",
    "GenerationRecord",
    "Member",
    "PassRecord",
    "RunRecord",
    "SearchRecord",
    "StageRecord",
    "collect",
    "collect_search",
    "combine",
    "in_words",
    "write",
    "write_combined",
    "write_search",
]
