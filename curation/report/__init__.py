"""The report of one or several runs: a self-contained HTML page, and the same numbers as JSON."""

from curation.report.ablated import AblationRecord, collect_ablation, format_ablation
from curation.report.collect import collect
from curation.report.combine import Member, combine
from curation.report.compare import compare
from curation.report.html import write, write_ablation, write_combined, write_compared, write_search
from curation.report.people import ReviewRecord
from curation.report.record import (
    FORMAT,
    ChainRecord,
    GenerationRecord,
    PassRecord,
    RunRecord,
    SpentRecord,
    StageSummary,
)
from curation.report.searched import SearchRecord, collect_search, describe_point

__all__ = [
    "FORMAT",
    "AblationRecord",
    "ChainRecord",
    "GenerationRecord",
    "Member",
    "PassRecord",
    "ReviewRecord",
    "RunRecord",
    "SearchRecord",
    "SpentRecord",
    "StageSummary",
    "collect",
    "collect_ablation",
    "collect_search",
    "combine",
    "compare",
    "describe_point",
    "format_ablation",
    "write",
    "write_ablation",
    "write_combined",
    "write_compared",
    "write_search",
]
